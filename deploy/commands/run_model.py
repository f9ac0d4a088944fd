"""The command ``run-model``, which is also ``python deploy/runner.py``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tightbeam.deploy.console import Version, command_line, drop_output, say
from tightbeam.deploy.errors import BundleError, FrontEnd, GenerationError, InputError, message_for
from tightbeam.deploy.generation.layers import COMMAND_LINE, GENERATION_CONFIG, with_source
from tightbeam.deploy.inputs.lines import LineFormat
from tightbeam.deploy.ray.partition import FieldNames
from tightbeam.deploy.ray.rows import RowSettings
from tightbeam.deploy.ray.run import RayRun, run_on_ray
from tightbeam.deploy.run_model.input_files import STDIN
from tightbeam.deploy.run_model.output_file import STDOUT
from tightbeam.deploy.run_model.run import FileRun, run_files
from tightbeam.deploy.run_model.subtitles import FORMATS

__all__ = ["main"]

HINTS = {
    **dict.fromkeys(("--sample", "--sampling"), "sampling is --do-sample"),
    **dict.fromkeys(("--beams", "--beam-size"), "beams are --num-beams"),
    **dict.fromkeys(("--max-tokens", "--max-decoding-length"), "the limit is --max-new-tokens"),
    **dict.fromkeys(("--n", "--num-hypotheses"), "several results for each input are --num-return-sequences"),
    **dict.fromkeys(("--random-seed", "--sampling-seed"), "the seed is --seed"),
    **dict.fromkeys(
        ("--precision", "--dtype", "--compute-type", "--quantization", "--fp16", "--int8"),
        "the bundle has one precision, which export-model --precision sets",
    ),
    **dict.fromkeys(("--model", "--bundle"), "the bundle is the first argument: run-model BUNDLE FILE"),
    **dict.fromkeys(("--input", "--src", "--text"), "inputs are files, or - for standard input: run-model BUNDLE FILE"),
    **dict.fromkeys(("--output-dir", "--out"), "the place of the results is --output"),
    "--output-format": "the format of the results is --format",
    "--vad-filter": "windows of silence are left out by --silence-threshold-db",
    **dict.fromkeys(
        (
            f"--{name.replace('_', '-')}"
            for name in ("bad_words_ids", "suppress_tokens", "begin_suppress_tokens", "eos_token_id", "force_words_ids")
        ),
        """pass it in a file: --generation-config FILE, such as {"bad_words_ids": [[17], [4, 8]]}""",
    ),
}
"""Advice on options of other programs, and on settings of ``model.generate`` that have no option."""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def main() -> None:
    """Entry point. Input and results are UTF-8, whatever the locale."""
    command_line(app, "run-model", HINTS)


@app.command()
def run_model(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="Bundle folder made by export-model.")],
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE",
            help="Text files with one input a line, run in this order; - is standard input, the default. For Whisper: "
            "audio files, or text files with the name of an audio file in each line; for models that read images, "
            "image files likewise.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        str,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write the results to FILE, each as soon as it is there; - is standard output.",
        ),
    ] = STDOUT,
    resume: Annotated[
        str | None,
        typer.Option(
            metavar="OUTPUT",
            help="Go on with a run that was cut: keep the whole results in the file OUTPUT, and add those that are "
            "missing. The files and options are those of that run.",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the content of the --output file.")] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print errors only: no notes, no progress, no summary at the end.")
    ] = False,
    json_lines: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Write one JSON object for each input, in place of text; with several files it names the file.",
        ),
    ] = False,
    result_format: Annotated[
        str | None,
        typer.Option(
            "--format",
            help="Format of the results: text, json (as --json), or for Whisper srt and vtt, subtitles: one file, or "
            "with several recordings one for each in the folder --output.",
        ),
    ] = None,
    stream: Annotated[
        bool,
        typer.Option(
            "--stream",
            help="Write the subtitles of a recording as its windows are done; with --format srt or vtt.",
        ),
    ] = False,
    sound_input: Annotated[
        bool, typer.Option("--sound-input", help="Standard input is one recording, in place of names; Whisper only.")
    ] = False,
    ids: Annotated[
        bool, typer.Option("--ids", help="Read each line as a JSON list of token ids, in place of text.")
    ] = False,
    json_input: Annotated[
        str | None,
        typer.Option(
            metavar="FIELD",
            help="Read each line as a JSON object with the text in FIELD (with --ids the token ids, for recordings and "
            "images the name of a file). Its other fields are settings of this line by the names of model.generate, "
            "such as num_beams, or truncate.",
        ),
    ] = None,
    document: Annotated[
        bool, typer.Option("--document", help="Read each file as one input, in place of one input a line.")
    ] = False,
    truncate: Annotated[
        bool,
        typer.Option("--truncate", help="Cut texts that are longer than the model's positions, in place of an error."),
    ] = False,
    batch_size: Annotated[
        int | None,
        typer.Option(min=1, help="Inputs that run together, 8 by default; as one ends, the next joins."),
    ] = None,
    max_rows: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Rows (inputs x beams) that run together, in place of --batch-size, where lines have beams of their "
            "own.",
        ),
    ] = None,
    engine: Annotated[
        str,
        typer.Option(
            help="Runtime of the model: onnxruntime; tensorrt (the engine that fits the GPU); or tensorrt:NAME."
        ),
    ] = "onnxruntime",
    device: Annotated[str, typer.Option(help="Device of ONNX Runtime: cpu or cuda.")] = "cpu",
    threads: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Threads of one operator on the CPU; by default one for each core that this process may use. 1 is the "
            "least work for a model of a few million parameters, and for any model where all cores are busy.",
        ),
    ] = None,
    num_beams: Annotated[int | None, typer.Option(help="Beams of beam search; 1 is greedy search.")] = None,
    num_return_sequences: Annotated[
        int | None,
        typer.Option(
            help="Sequences returned for each input: with beams the best ones, with --do-sample as many draws."
        ),
    ] = None,
    num_beam_groups: Annotated[
        int | None, typer.Option(help="Groups of beams, each of which avoids the tokens that those before it choose.")
    ] = None,
    diversity_penalty: Annotated[
        float | None,
        typer.Option(help="Taken off a token's score for each beam of an earlier group that chose it in this step."),
    ] = None,
    do_sample: Annotated[
        bool | None,
        typer.Option(
            "--do-sample/--no-do-sample", help="Draw each token from the model's distribution, in place of the best."
        ),
    ] = None,
    temperature: Annotated[
        str | None,
        typer.Option(
            help="Scores are divided by it before tokens are drawn; below 1 favours likely tokens. For Whisper one "
            "for each attempt at a window, such as 0,0.2,0.4."
        ),
    ] = None,
    top_k: Annotated[
        int | None, typer.Option(help="Draw among this many most likely tokens; 0 is all, and 50 the usual default.")
    ] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Draw among the fewest most likely tokens with this probability together.")
    ] = None,
    min_p: Annotated[
        float | None, typer.Option(help="Draw among tokens of at least this share of the best one's probability.")
    ] = None,
    typical_p: Annotated[
        float | None,
        typer.Option(
            help="Draw among the most typical tokens with this probability together (locally typical sampling)."
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(help="Seed of the draws: the same input gives the same output whatever else runs."),
    ] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option(help="The most tokens generated, start token and prompt excluded.")
    ] = None,
    min_new_tokens: Annotated[
        int | None, typer.Option(help="The fewest tokens generated, start token and prompt excluded.")
    ] = None,
    max_length: Annotated[
        int | None, typer.Option(help="The most tokens of a sequence, start token or prompt included.")
    ] = None,
    min_length: Annotated[
        int | None, typer.Option(help="The fewest tokens of a sequence, start token or prompt included.")
    ] = None,
    length_penalty: Annotated[
        float | None,
        typer.Option(help="Beam scores are divided by the length to this power; above 0 favours longer sequences."),
    ] = None,
    language: Annotated[
        str | None, typer.Option(help="Language spoken in the audio, by its code (en); Whisper only.")
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="Task: transcribe, or translate (into English); Whisper only.")
    ] = None,
    source_language: Annotated[
        str | None, typer.Option(help="Language of the texts, as the tokenizer names it (deu_Latn, de_DE, de).")
    ] = None,
    target_language: Annotated[
        str | None, typer.Option(help="Language to translate into, as the tokenizer names it.")
    ] = None,
    return_timestamps: Annotated[
        bool | None,
        typer.Option(
            "--return-timestamps/--no-return-timestamps",
            help="Predict timestamps, and go through recordings by them: the default beyond one window; Whisper only.",
        ),
    ] = None,
    word_timestamps: Annotated[
        bool,
        typer.Option(
            "--word-timestamps",
            help="Give the words of each segment with their times and probabilities, with --json; with --format srt or "
            "vtt the times of subtitles are those of their words; Whisper only.",
        ),
    ] = False,
    max_words_per_line: Annotated[
        int | None, typer.Option(min=1, help="The most words of a subtitle; with --word-timestamps.")
    ] = None,
    condition_on_prev_tokens: Annotated[
        bool | None,
        typer.Option(
            "--condition-on-prev-tokens/--no-condition-on-prev-tokens",
            help="Give each window the tokens of those before it as context; Whisper only.",
        ),
    ] = None,
    prompt: Annotated[
        str | None,
        typer.Option(help="Text that the first window begins with, as if said before: names, spelling; Whisper only."),
    ] = None,
    prompt_condition_type: Annotated[
        str | None,
        typer.Option(
            help="Windows that begin with the prompt: first-segment, or all-segments, with --condition-on-prev-tokens; "
            "Whisper only."
        ),
    ] = None,
    decoder_input_text: Annotated[
        str | None,
        typer.Option(
            help="Text that each output begins with, such as the task prompt of a Donut, <s_cord-v2>; of models with "
            "an encoder."
        ),
    ] = None,
    compression_ratio_threshold: Annotated[
        float | None,
        typer.Option(
            help="Run a window again at the next --temperature if its tokens repeat more than this; Whisper only."
        ),
    ] = None,
    logprob_threshold: Annotated[
        float | None,
        typer.Option(help="Run a window again if the mean log-probability of its tokens is lower; Whisper only."),
    ] = None,
    no_speech_threshold: Annotated[
        float | None,
        typer.Option(
            help="Skip a window if its probability of no speech is higher and its tokens are unlikely; Whisper only."
        ),
    ] = None,
    silence_threshold_db: Annotated[
        float | None,
        typer.Option(help="Skip windows without sound above this level in dBFS, such as -45; Whisper only."),
    ] = None,
    min_speech_s: Annotated[
        float | None,
        typer.Option(help="Seconds above --silence-threshold-db that a window needs, 0.1 by default; Whisper only."),
    ] = None,
    early_stopping: Annotated[
        str | None,
        typer.Option(
            help="End of beam search once num_beams sequences are finished: true (at once), false (a heuristic) or "
            "never (when none can improve)."
        ),
    ] = None,
    no_repeat_ngram_size: Annotated[
        int | None, typer.Option(help="Forbid n-grams of this size to occur twice.")
    ] = None,
    repetition_penalty: Annotated[
        float | None, typer.Option(help="Penalty on tokens that occurred before; above 1 makes them less likely.")
    ] = None,
    forced_bos_token_id: Annotated[
        int | None, typer.Option(help="Id of the token forced first, such as the target language.")
    ] = None,
    forced_eos_token_id: Annotated[
        int | None, typer.Option(help="Id of the token forced last when the length limit is reached.")
    ] = None,
    trie: Annotated[
        Path | None,
        typer.Option(help="File of build-trie; only the outputs in it are generated."),
    ] = None,
    return_token_scores: Annotated[
        bool | None,
        typer.Option("--return-token-scores", help="Give the log-probability of each token; with --json."),
    ] = None,
    return_alternatives: Annotated[
        int | None,
        typer.Option(help="Give this many best tokens at each position, with their log-probabilities; with --json."),
    ] = None,
    generation_config: Annotated[
        Path | None,
        typer.Option(
            help="JSON file with settings of model.generate by name; options given on the command line override it."
        ),
    ] = None,
    ray: Annotated[
        bool,
        typer.Option(
            "--ray",
            help="Run on the Ray cluster at RAY_ADDRESS, else on one that is started here. FILE may then be a folder "
            "of .txt, .jsonl and .parquet files, and --output is a folder, where a second run does what is missing.",
        ),
    ] = False,
    text_field: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Field of JSON lines, or column of Parquet, with the text; text by default. With --ray.",
        ),
    ] = None,
    key_field: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Field or column that is copied to the results as key. With --ray."),
    ] = None,
    partition_rows: Annotated[
        int | None,
        typer.Option(min=1, help="Rows that one actor runs and writes at a time; 256 by default. With --ray."),
    ] = None,
    version: Version = False,
) -> None:
    """Generate from every line of the files with a bundle, and write one line for each.

    The defaults of the search options are the checkpoint's own. With --json, "tokens" are the ids from the start token
    on; those of a decoder-only model, like its text, begin after the prompt.

    A line that cannot be run is an error of its own, and gives an empty line. A file of which none of the first ten
    lines can be read, or which is binary, is one error, and nothing is run.

    Inputs, generated tokens, seconds and peak memory are on standard error at the end.
    """
    given = {
        "num_beams": num_beams,
        "num_return_sequences": num_return_sequences,
        "num_beam_groups": num_beam_groups,
        "diversity_penalty": diversity_penalty,
        "do_sample": do_sample,
        "temperature": _temperature(temperature),
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "typical_p": typical_p,
        "seed": seed,
        "max_new_tokens": max_new_tokens,
        "min_new_tokens": min_new_tokens,
        "max_length": max_length,
        "min_length": min_length,
        "length_penalty": length_penalty,
        "language": language,
        "task": task,
        "source_language": source_language,
        "target_language": target_language,
        "return_timestamps": return_timestamps,
        "return_token_timestamps": word_timestamps or None,
        "condition_on_prev_tokens": condition_on_prev_tokens,
        "prompt": prompt,
        "prompt_condition_type": prompt_condition_type,
        "decoder_input_text": decoder_input_text,
        "compression_ratio_threshold": compression_ratio_threshold,
        "logprob_threshold": logprob_threshold,
        "no_speech_threshold": no_speech_threshold,
        "silence_threshold_db": silence_threshold_db,
        "min_speech_s": min_speech_s,
        "early_stopping": early_stopping,
        "no_repeat_ngram_size": no_repeat_ngram_size,
        "repetition_penalty": repetition_penalty,
        "forced_bos_token_id": forced_bos_token_id,
        "forced_eos_token_id": forced_eos_token_id,
        "trie": None if trie is None else str(trie),
        "return_token_scores": return_token_scores or None,
        "return_alternatives": return_alternatives,
    }
    try:
        if ids and truncate:
            raise InputError("--truncate cuts texts, not --ids; leave one out, and shorten the ids yourself")
        if batch_size is not None and max_rows is not None:
            raise InputError("--batch-size and --max-rows bound the same; leave one out")
        if result_format not in (None, "text", "json", *FORMATS):
            raise InputError(f"--format {result_format} is unknown; pass text, json, srt or vtt")
        if json_lines and result_format not in (None, "json"):
            raise InputError(f"--json and --format {result_format} are two formats; leave one out")
        json_lines = json_lines or result_format == "json"
        if max_words_per_line is not None and not (word_timestamps and result_format in FORMATS):
            raise InputError("--max-words-per-line needs --word-timestamps and --format srt or vtt; pass both")
        if stream and result_format not in FORMATS:
            raise InputError("--stream writes subtitles as windows are done; pass --format srt or vtt, or leave it out")
        settings = _settings(given, generation_config)
        common: dict[str, Any] = {"bundle": bundle, "sources": tuple(sources or [STDIN])}
        common |= {"json_lines": json_lines, "quiet": quiet, "engine": engine, "device": device, "threads": threads}
        if ray:
            if result_format in FORMATS or sound_input:
                raise InputError("--format srt or vtt and --sound-input are not for --ray; leave them out")
            if resume is not None or force or document:
                raise InputError("--resume, --force and --document are not for --ray; leave them out")
            if json_input is not None and text_field is not None:
                raise InputError("--json-input and --text-field both name the field of the text; leave one out")
            code = run_on_ray(
                RayRun(
                    **common,
                    output=None if output == STDOUT else output,
                    rows=RowSettings(settings, ids, truncate, batch_size or 8, max_rows),
                    fields=FieldNames(json_input or text_field or "text", key_field, json_input is not None),
                    rows_each=partition_rows or 256,
                )
            )
        else:
            if (text_field, key_field, partition_rows) != (None, None, None):
                raise InputError(
                    "--text-field, --key-field and --partition-rows are for --ray; leave them out, or add --ray"
                )
            code = run_files(
                FileRun(
                    **common,
                    output=output,
                    resume=resume,
                    force=force,
                    lines_are=LineFormat(ids=ids, field=json_input, truncate=truncate),
                    document=document,
                    settings=settings,
                    batch_size=batch_size,
                    max_rows=max_rows,
                    subtitles=result_format if result_format in FORMATS else None,
                    sound_input=sound_input,
                    max_words=max_words_per_line,
                    stream=stream,
                )
            )
    except (BundleError, GenerationError, InputError) as error:
        message = message_for(FrontEnd("command line", given), error)
        say(f"error: {message}")
        code = 1
    except KeyboardInterrupt:
        say("error: interrupted; the results written so far are whole")
        code = 130
    except BrokenPipeError:  # the reader has closed the pipe
        drop_output()
        code = 1
    except OSError as error:
        drop_output()
        say(f"error: reading the input or writing the results failed ({error.strerror}); check both, and the disk")
        code = 1
    raise typer.Exit(code)


def _temperature(given: str | None) -> float | tuple[float, ...] | str | None:
    """One temperature, or several between commas; what is none is left for the check of the setting."""
    try:
        each = tuple(map(float, given.split(","))) if given is not None else ()
    except ValueError:
        return given
    return each if len(each) > 1 else each[0] if each else None


def _settings(given: dict[str, Any], file: Path | None) -> dict[str, Any]:
    """The settings of the command line, and those of the file below them."""
    settings = {name: value for name, value in given.items() if value is not None}
    words = {"true": True, "false": False}
    if "early_stopping" in settings:
        settings["early_stopping"] = words.get(settings["early_stopping"].lower(), settings["early_stopping"])
    if file is not None:
        settings[GENERATION_CONFIG] = file
    return with_source(settings, COMMAND_LINE)


if __name__ == "__main__":
    main()
