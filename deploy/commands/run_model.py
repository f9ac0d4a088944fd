"""The command ``run-model``, which is also ``python deploy/runner.py``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from tightbeam.deploy.commands._truncate import TruncateCommand, truncation_of
from tightbeam.deploy.console import Version, command_line, drop_output, say
from tightbeam.deploy.errors import BundleError, FrontEnd, GenerationError, InputError, message_for
from tightbeam.deploy.generation.fields import FIELDS
from tightbeam.deploy.generation.layers import COMMAND_LINE, GENERATION_CONFIG, with_source
from tightbeam.deploy.inputs.files.sound_source import MAX_CHANNELS, MAX_HZ, MIN_HZ, SAMPLE_FORMATS, RawFormat
from tightbeam.deploy.inputs.lines import LineFormat
from tightbeam.deploy.inputs.sources import MOST_TOGETHER
from tightbeam.deploy.run_model.chat import ChatRun, run_chat
from tightbeam.deploy.run_model.file_run import FileRun
from tightbeam.deploy.run_model.input_files import STDIN
from tightbeam.deploy.run_model.live import LiveCommand, run_live
from tightbeam.deploy.run_model.output_file import STDOUT
from tightbeam.deploy.run_model.run import run_files
from tightbeam.deploy.run_model.subtitles import FORMATS

__all__ = ["main"]

HINTS = {
    **dict.fromkeys(("--sample", "--sampling"), "sampling is --do-sample"),
    **dict.fromkeys(("--beams", "--beam-size"), "beams are --num-beams"),
    **dict.fromkeys(
        ("--max-tokens", "--max-decoding-length", "--n-predict", "--num-predict", "-n"), "the limit is --max-new-tokens"
    ),
    **dict.fromkeys(
        ("--interactive", "--interactive-first", "--conversation", "-cnv", "-i"), "a conversation is --chat"
    ),
    **dict.fromkeys(("--system-prompt", "-sys"), "the system message is --system, with --chat"),
    **dict.fromkeys(("--chat-template", "--chat-template-file"), "it is an option of export-model"),
    **dict.fromkeys(("--ctx-size", "--num-ctx", "-c"), "a bundle has the positions of its model; leave it out"),
    "--temp": "the temperature is --temperature, with --do-sample",
    "--repeat-penalty": "the penalty is --repetition-penalty",
    **dict.fromkeys(("--n", "--num-hypotheses"), "several results for each input are --num-return-sequences"),
    **dict.fromkeys(
        ("--stop", "--stop-strings", "--stop-sequence", "--reverse-prompt", "-r"), "stop strings are --stop-string"
    ),
    **dict.fromkeys(("--random-seed", "--sampling-seed"), "the seed is --seed"),
    **dict.fromkeys(
        ("--precision", "--dtype", "--compute-type", "--quantization", "--fp16", "--int8"),
        "the bundle has one precision, which export-model --precision sets",
    ),
    **dict.fromkeys(("--model", "--bundle", "-m"), "the bundle is the first argument: run-model BUNDLE FILE"),
    **dict.fromkeys(
        ("--input", "--src", "--text", "-p"),
        "inputs are files, or - for standard input: run-model BUNDLE FILE; --prompt TEXT for one text",
    ),
    **dict.fromkeys(("--output-dir", "--out"), "results are written to --output"),
    **dict.fromkeys(("--n-gpu-layers", "--num-gpu", "-ngl"), "a GPU is --device cuda"),
    "-t": "threads are --threads",
    **dict.fromkeys(
        ("--logprobs", "--n-probs"), "scores of tokens are --return-token-scores and --return-alternatives"
    ),
    "--ignore-eos": "the end token is put off by --min-new-tokens",
    **dict.fromkeys(("--srt", "--vtt", "--subtitles"), "subtitles are --format srt or vtt"),
    **dict.fromkeys(
        ("--file", "-f"), "the whole content of a file is one input with --prompt-file FILE, or with --document"
    ),
    **dict.fromkeys(("--microphone", "--mic"), "a microphone is --live behind ffmpeg or arecord in a pipe"),
    "--output-format": "the format of the results is --format",
    "--vad": "voice activity is --vad-filter",
    "--condition-on-previous-text": "the context of earlier windows is --condition-on-prev-tokens",
    "--without-timestamps": "timestamps are left out by --no-return-timestamps",
    **dict.fromkeys(
        (
            f"--{name.replace('_', '-')}"
            for name in ("bad_words_ids", "suppress_tokens", "begin_suppress_tokens", "eos_token_id", "force_words_ids")
        ),
        """pass it in a file: --generation-config FILE, such as {"bad_words_ids": [[17], [4, 8]]}""",
    ),
}
"""Advice on options of other programs, and on settings of ``model.generate`` that have no option."""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


def main(name: str = "run-model") -> None:
    """Entry point. Input and results are UTF-8, whatever the locale."""
    command_line(app, name, HINTS)


@app.command(cls=TruncateCommand)
def run_model(
    context: typer.Context,
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="Bundle folder made by export-model.")],
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE",
            help="Text files with one input a line, run in this order; - is standard input, the default. A speech "
            "model takes audio files, folders of them, or text files with the name of an audio file in each line; a "
            "model that reads images takes image files likewise. A quoted pattern ('talks/*.wav') is expanded.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        str,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write the results to FILE, each as soon as it is made; - is standard output. FOLDER/ gets one file "
            "for each recording or image, with its name; it is made if it is missing.",
        ),
    ] = STDOUT,
    resume: Annotated[
        str | None,
        typer.Option(
            metavar="OUTPUT",
            help="Continue a run that was interrupted: keep the complete results in the file OUTPUT, and add the "
            "missing ones. Pass the same files and options as for that run.",
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
            help="Write one JSON object for each input, in place of text. With several files each object names "
            "its file.",
        ),
    ] = False,
    result_format: Annotated[
        str | None,
        typer.Option(
            "--format",
            help="Format of the results: txt, json (the same as --json), or segments made by Whisper or "
            "--vad-filter: srt, vtt or tsv. "
            "The segments of several recordings are one file each, in the folder --output.",
        ),
    ] = None,
    stream: Annotated[
        bool,
        typer.Option(
            "--stream",
            help="Write the text of each input in pieces, as soon as no later token can change them; with --json an "
            "object for each piece, before that of the result. With --format srt or vtt, write the subtitles of a "
            "recording as its windows are done.",
        ),
    ] = False,
    sound_input: Annotated[
        bool,
        typer.Option(
            "--sound-input",
            help="Read standard input as one recording, in place of names of files; for speech models. With --stream "
            "it is transcribed while it comes through a pipe, unless it is an MP4 file: its index may be at its end.",
        ),
    ] = False,
    sample_rate: Annotated[
        int | None,
        typer.Option(
            min=MIN_HZ,
            max=MAX_HZ,
            metavar="HZ",
            help="Recordings are raw samples (PCM) at this rate, without a header. With - as the file they are "
            "transcribed while they come through a pipe, such as from a microphone.",
        ),
    ] = None,
    sample_format: Annotated[
        str | None,
        typer.Option(
            help="Format of raw samples: u8, s16le (or S16_LE; the default), s32le or f32le; with --sample-rate."
        ),
    ] = None,
    sample_channels: Annotated[
        int | None,
        typer.Option(min=1, max=MAX_CHANNELS, help="Channels of raw samples, 1 by default; with --sample-rate."),
    ] = None,
    live: Annotated[
        bool,
        typer.Option(
            "--live",
            help="Transcribe standard input word by word while it comes, such as from a microphone: raw 16-bit samples "
            "of one channel at the model's rate, unless --sample-rate or --sound-input says otherwise. Ctrl-C ends "
            "the sound. Whisper only.",
        ),
    ] = False,
    ids: Annotated[
        bool, typer.Option("--ids", help="Read each line as a JSON list of token ids, in place of text.")
    ] = False,
    json_input: Annotated[
        str | None,
        typer.Option(
            metavar="FIELD",
            help="Read each line as a JSON object with the text in FIELD (with --ids the token ids, for recordings and "
            "images the name of a file). Its other fields are settings of this line: truncate, and arguments of "
            "model.generate such as num_beams.",
        ),
    ] = None,
    chat: Annotated[
        bool,
        typer.Option(
            "--chat",
            help="Chat: each line of standard input is a message of the user, and its answer is written "
            "as it is made. /reset begins anew, /exit or Ctrl-D ends, Ctrl-C stops an answer.",
        ),
    ] = False,
    system: Annotated[
        str | None, typer.Option(metavar="TEXT", help="System message of the conversation; with --chat.")
    ] = None,
    document: Annotated[
        bool,
        typer.Option(
            "--document",
            help="Read each file as one input, in place of one input a line. A translator translates its sentences, "
            "and the document keeps its structure. A decoder-only model gets its line breaks as they are, to the last; "
            "for other models the lines are joined by spaces.",
        ),
    ] = False,
    document_format: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Format of the documents of --document, for translators: text, markdown, html, subtitles, po or "
            "docx; by default that of the ending of each file's name.",
        ),
    ] = None,
    glossary: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Terms whose translation is forced in documents: a term and its translation in each line, with a tab "
            "or a comma between them and | between forms; with --document and a translator.",
        ),
    ] = None,
    prompt_file: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Read FILE as the one input, exactly as it is; - is standard input."),
    ] = None,
    escapes: Annotated[
        bool,
        typer.Option(
            "--escapes",
            help=r"Read \n, \t and \r in lines and in --prompt as line breaks and tabs, and \\ as a backslash.",
        ),
    ] = False,
    truncate: Annotated[
        str | None,
        typer.Option(
            "--truncate",
            metavar="SIDE",
            help="Cut texts that are longer than the model's positions, in place of an error: at their beginning "
            "(left), the default for a decoder-only model, or at their end (right), the default for others.",
        ),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(
            min=1, max=MOST_TOGETHER, help="Inputs that run together, 8 by default; when one ends, the next joins."
        ),
    ] = None,
    max_rows: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MOST_TOGETHER,
            help="The most rows (inputs x beams) that run together, in place of --batch-size; for lines that set their "
            "own number of beams.",
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
            help="Threads of one operator on the CPU; by default one for each core that this process may use. 1 costs "
            "the least processor time for a model of a few million parameters, and whenever all cores are busy.",
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
        int | None,
        typer.Option(
            help="Number of groups of the beams, in diverse beam search; each group avoids the tokens that earlier "
            "groups choose."
        ),
    ] = None,
    diversity_penalty: Annotated[
        float | None,
        typer.Option(
            help="Penalty on a token for each beam of an earlier group that chose it in this step; with "
            "--num-beam-groups."
        ),
    ] = None,
    do_sample: Annotated[
        bool | None,
        typer.Option(
            "--do-sample/--no-do-sample",
            help="Draw each token from the model's distribution, in place of taking the best one.",
        ),
    ] = None,
    temperature: Annotated[
        str | None,
        typer.Option(
            help="With --do-sample: divisor of the scores before a token is drawn; below 1 favours likely tokens. For "
            "Whisper: one value for each attempt at a window, such as 0,0.2,0.4."
        ),
    ] = None,
    top_k: Annotated[
        int | None, typer.Option(help="Draw among this many most likely tokens; 0 means all. The usual default is 50.")
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(help="Draw among the smallest set of most likely tokens that together have this probability."),
    ] = None,
    min_p: Annotated[
        float | None, typer.Option(help="Draw among tokens with at least this share of the best token's probability.")
    ] = None,
    typical_p: Annotated[
        float | None,
        typer.Option(
            help="Draw among the most typical tokens that together have this probability (locally typical sampling)."
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(help="Seed of the draws: the same input gives the same output whatever else runs."),
    ] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option(help="The most tokens to generate, start token and prompt excluded.")
    ] = None,
    min_new_tokens: Annotated[
        int | None, typer.Option(help="The fewest tokens to generate, start token and prompt excluded.")
    ] = None,
    max_length: Annotated[
        int | None, typer.Option(help="The most tokens of a sequence, start token or prompt included.")
    ] = None,
    min_length: Annotated[
        int | None, typer.Option(help="The fewest tokens of a sequence, start token or prompt included.")
    ] = None,
    stop_strings: Annotated[
        list[str] | None,
        typer.Option(
            "--stop-string",
            metavar="TEXT",
            help="End a sequence with the token that completes TEXT. Pass it again for further texts.",
            show_default=False,
        ),
    ] = None,
    length_penalty: Annotated[
        float | None,
        typer.Option(help="Beam scores are divided by the length to this power; above 0 favours longer sequences."),
    ] = None,
    language: Annotated[
        str | None,
        typer.Option(
            help="Language spoken in the audio, by its code (en) or name (english); by default Whisper finds it. "
            "show-bundle lists the languages that a model knows. Whisper, Canary and Cohere ASR only."
        ),
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="Task: transcribe, or translate (into English); Whisper only.")
    ] = None,
    source_language: Annotated[
        str | None,
        typer.Option(help="Language of the texts, as the tokenizer names it (deu_Latn, de_DE, de), or auto."),
    ] = None,
    target_language: Annotated[
        str | None,
        typer.Option(
            help="Language to translate into, as the tokenizer names it; Canary's text is in it rather than in that "
            "of --language."
        ),
    ] = None,
    punctuation: Annotated[
        bool | None,
        typer.Option(
            "--punctuation/--no-punctuation",
            help="Text with punctuation and capitals, the default beside --language, or without; Canary and Cohere "
            "ASR only.",
        ),
    ] = None,
    return_timestamps: Annotated[
        bool | None,
        typer.Option(
            "--return-timestamps/--no-return-timestamps",
            help="Predict timestamps, and begin each window where the last segment ended; the default for recordings "
            "longer than a window. Whisper only.",
        ),
    ] = None,
    return_token_timestamps: Annotated[
        bool | None,
        typer.Option(
            "--word-timestamps",
            help="With --json, give the words of each segment with their times and probabilities. With --format srt or "
            "vtt, time subtitles by their words. Whisper only.",
        ),
    ] = None,
    max_words_per_line: Annotated[
        int | None, typer.Option(min=1, help="The most words of a subtitle; with --word-timestamps.")
    ] = None,
    condition_on_prev_tokens: Annotated[
        bool | None,
        typer.Option(
            "--condition-on-prev-tokens/--no-condition-on-prev-tokens",
            help="Give each window the tokens of earlier windows as context; Whisper only.",
        ),
    ] = None,
    prompt: Annotated[
        str | None,
        typer.Option(
            "--prompt",
            "--initial-prompt",
            help="The one input of a text model, in place of files. For Whisper: text that precedes each window, such "
            "as names in their spelling; with --condition-on-prev-tokens the first one.",
        ),
    ] = None,
    hotwords: Annotated[
        str | None,
        typer.Option(
            help="Names and words in their spelling, which precede each window, with --condition-on-prev-tokens too. "
            "Whisper only."
        ),
    ] = None,
    prompt_condition_type: Annotated[
        str | None,
        typer.Option(
            help="With --condition-on-prev-tokens, the windows that --prompt precedes: first-segment, the first "
            "window; or all-segments, all windows. Whisper only."
        ),
    ] = None,
    decoder_input_text: Annotated[
        str | None,
        typer.Option(
            help="Text that each output begins with, such as the task prompt of a Donut, <s_cord-v2>; for models with "
            "an encoder."
        ),
    ] = None,
    compression_ratio_threshold: Annotated[
        float | None,
        typer.Option(
            help="Run a window again at the next --temperature if its tokens can be compressed by more than this "
            "factor, which shows that they repeat. Whisper only."
        ),
    ] = None,
    logprob_threshold: Annotated[
        float | None,
        typer.Option(
            help="Run a window again at the next --temperature if the mean log-probability of its tokens is below "
            "this. Whisper only."
        ),
    ] = None,
    no_speech_threshold: Annotated[
        float | None,
        typer.Option(
            help="Skip a window if its probability of no speech is above this, and the mean log-probability of its "
            "tokens is below --logprob-threshold. Whisper only."
        ),
    ] = None,
    clip_timestamps: Annotated[
        str | None,
        typer.Option(
            metavar="START,END,...",
            help="Transcribe this part of each recording alone, or these parts: starts and ends in seconds, such as "
            "60,90.5; without the last END up to the end. What is before a part is skipped. Whisper only.",
        ),
    ] = None,
    vad_filter: Annotated[
        bool | None,
        typer.Option(
            "--vad-filter/--no-vad-filter",
            help="Transcribe only the speech in a recording, which Silero's model of voice activity finds (VAD). Times "
            "count from the beginning of the recording. A model without windows transcribes each part by itself.",
        ),
    ] = None,
    vad_parameters: Annotated[
        str | None,
        typer.Option(
            metavar="JSON",
            help="Settings of --vad-filter as in faster-whisper, in JSON: threshold, min_speech_duration_ms, "
            "max_speech_duration_s, min_silence_duration_ms, speech_pad_ms.",
        ),
    ] = None,
    batched_windows: Annotated[
        bool | None,
        typer.Option(
            "--batched-windows/--no-batched-windows",
            help="Fill each window with whole parts of the speech that --vad-filter finds, and run the windows of a "
            "recording side by side; Whisper only.",
        ),
    ] = None,
    silence_threshold_db: Annotated[
        float | None,
        typer.Option(help="Skip windows that are never louder than this level in dBFS, such as -45; Whisper only."),
    ] = None,
    min_speech_s: Annotated[
        float | None,
        typer.Option(help="Seconds above --silence-threshold-db that a window needs, 0.1 by default; Whisper only."),
    ] = None,
    early_stopping: Annotated[
        str | None,
        typer.Option(
            help="When beam search ends after num_beams sequences are finished: true (at once), false (by a heuristic) "
            "or never (when no sequence can improve the result)."
        ),
    ] = None,
    no_repeat_ngram_size: Annotated[
        int | None, typer.Option(help="Forbid any n-gram of this size to occur twice; 0 is off.")
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
    return_attention: Annotated[
        bool | None,
        typer.Option("--return-attention", help="Give the attention of each token to the source's; with --json."),
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
            "of .txt, .jsonl and .parquet files, or of recordings. --output is a folder, and a second run adds the "
            "missing results.",
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
        typer.Option(metavar="NAME", help="Field or column that is copied to the results as 'key'. With --ray."),
    ] = None,
    partition_rows: Annotated[
        int | None,
        typer.Option(min=1, help="Rows that one actor runs and writes at a time; 256 by default. With --ray."),
    ] = None,
    version: Version = False,
) -> None:
    """Generate from every line of the files with a bundle, and write one line for each.

    The defaults of the search options are the checkpoint's own. With --json, "tokens" are the ids from the start token
    on. The tokens and the text of a decoder-only model begin after the prompt.

    A line that cannot be run is an error of its own, and gives an empty line. Nothing is run if a file is binary, or
    if none of its first ten lines can be read.

    A summary on standard error ends the run: inputs, generated tokens, seconds and peak memory.
    """
    # A parameter with the name of a generation setting is the option of that setting.
    settings = {field.name: context.params[field.name] for field in FIELDS if field.name in context.params}
    front_end = FrontEnd("command line", settings)
    with _errors_in_one_line(front_end, whole=not stream or result_format in FORMATS):
        cut = truncation_of(truncate)
        if chat:
            _check_alone(context, "--chat, which reads messages from standard input", CHAT_OPTIONS, stream=ANSWERS)
            given = _with_config(settings, generation_config)
            loading: dict[str, Any] = {"bundle": bundle, "engine": engine, "device": device, "threads": threads}
            how: dict[str, Any] = {"quiet": quiet, "system": system, "truncate": cut, "settings": given}
            raise typer.Exit(run_chat(ChatRun(**loading, **how, front_end=front_end)))
        if live:
            _check_alone(context, "--live, which writes the text of standard input", LIVE_OPTIONS)
            raw = _raw_format(sample_rate, sample_format, sample_channels)
            if raw is not None and sound_input:
                raise InputError("--sample-rate does not go with --sound-input; leave one out")
            heard: dict[str, Any] = {"bundle": bundle, "engine": engine, "device": device, "threads": threads}
            heard |= {"sources": tuple(sources or ()), "sound_input": sound_input, "raw": raw}
            given = _with_config(settings, generation_config)
            raise typer.Exit(run_live(LiveCommand(**heard, quiet=quiet, json_lines=json_lines, settings=given)))
        if system is not None:
            raise InputError("--system is the system message of --chat; pass both")
        if ids and cut:
            raise InputError("--truncate cuts texts, not --ids; leave one out, and shorten the ids yourself")
        if batch_size is not None and max_rows is not None:
            raise InputError("--batch-size and --max-rows bound the same; leave one out")
        if escapes and (ids or json_input is not None or prompt_file is not None or document):
            raise InputError(
                "--escapes is for lines of text and --prompt; leave it out: JSON has escapes, a file newlines"
            )
        if prompt_file is not None and (sources or prompt is not None or ids or json_input is not None):
            raise InputError(
                "--prompt-file is the one input, a text; leave other files, --prompt, --ids and --json-input out"
            )
        result_format = _checked_format(result_format, json_lines=json_lines, output=None if document else output)
        subtitles = result_format if result_format in FORMATS else None
        if max_words_per_line is not None and not (return_token_timestamps and subtitles):
            raise InputError("--max-words-per-line needs --word-timestamps and --format srt or vtt; pass both")
        raw = _raw_format(sample_rate, sample_format, sample_channels)
        if raw is not None and (sound_input or json_input is not None):
            raise InputError("--sample-rate does not go with --sound-input or --json-input; leave one out, and pass -")
        given = _with_config({**settings, "prompt": None}, generation_config)
        common: dict[str, Any] = {
            "bundle": bundle,
            "sources": tuple(sources or [STDIN if prompt_file is None else prompt_file]),
            "quiet": quiet,
        }
        common |= {"json_lines": result_format == "json", "engine": engine, "device": device, "threads": threads}
        if ray:
            from tightbeam.deploy.ray.partition import FieldNames
            from tightbeam.deploy.ray.rows import RowSettings
            from tightbeam.deploy.ray.run import RayRun, run_on_ray

            _check_for_ray(context.params, subtitles)
            code = run_on_ray(
                RayRun(
                    **common,
                    output=None if output == STDOUT else output,
                    rows=RowSettings(given, ids, cut, batch_size or 8, max_rows),
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
                    line_format=LineFormat(
                        ids=ids, field=json_input, truncate=cut, escapes=escapes, exact=prompt_file is not None
                    ),
                    document=document or prompt_file is not None,
                    prompt=prompt,
                    document_format=document_format,
                    glossary=glossary,
                    settings=given,
                    batch_size=batch_size,
                    max_rows=max_rows,
                    subtitles=subtitles,
                    sound_input=sound_input,
                    raw=raw,
                    max_words=max_words_per_line,
                    stream=stream,
                )
            )
    raise typer.Exit(code)


@contextmanager
def _errors_in_one_line(front_end: FrontEnd, *, whole: bool) -> Iterator[None]:
    """Print the error of a run in one line, and exit with its code. An interrupted run has ``whole`` results."""
    try:
        yield
    except (BundleError, GenerationError, InputError) as error:
        say(f"error: {message_for(front_end, error)}")
        raise typer.Exit(1) from error
    except KeyboardInterrupt:
        say(f"error: interrupted{'; the results written so far are whole' if whole else ''}")
        raise typer.Exit(130) from None
    except BrokenPipeError:  # the reader has closed the pipe
        drop_output()
        raise typer.Exit(1) from None
    except OSError as error:
        drop_output()
        say(f"error: reading the input or writing the results failed ({error.strerror}); check both, and the disk")
        raise typer.Exit(1) from error


def _raw_format(rate_hz: int | None, kind: str | None, channels: int | None) -> RawFormat | None:
    """Return the format of raw samples, if recordings are raw samples. Raises InputError."""
    if rate_hz is None:
        if (kind, channels) != (None, None):
            raise InputError("--sample-format and --sample-channels are for raw samples; pass --sample-rate, too")
        return None
    name = (kind or "s16le").lower().replace("_", "")  # arecord writes S16_LE
    if name not in SAMPLE_FORMATS:
        raise InputError(f"--sample-format {kind} is unknown; pass one of {', '.join(SAMPLE_FORMATS)}")
    return RawFormat(rate_hz, name, channels or 1)


def _checked_format(given: str | None, *, json_lines: bool, output: str | None) -> str:
    """Return the format of the results. ``output`` is None for documents, whose files may be of subtitles.

    Raises InputError if it is unknown, differs from --json, or is not the format of a file of subtitles.
    """
    ending = Path(output or "").suffix.lower().removeprefix(".")
    if ending in ("srt", "vtt") and given is None and not json_lines:
        raise InputError(f"--output {output} is for subtitles; pass --format {ending}, or another --output")
    given = "text" if given == "txt" else given
    if given not in (None, "text", "json", *FORMATS):
        raise InputError(f"--format {given} is unknown; pass txt, json, srt, vtt or tsv")
    if json_lines and given not in (None, "json"):
        raise InputError(f"--json and --format {given} are two formats; leave one out")
    return "json" if json_lines else given or "text"


COMMON_OPTIONS = {"bundle", "quiet", "engine", "device", "threads", "generation_config"}
CHAT_OPTIONS = COMMON_OPTIONS | {"chat", "system", "truncate"} | ({field.name for field in FIELDS} - {"prompt"})
LIVE_OPTIONS = COMMON_OPTIONS | {"live", "sources", "json_lines", "sound_input", "sample_rate", "sample_format"}
LIVE_OPTIONS |= {"sample_channels"} | ({field.name for field in FIELDS} - {"clip_timestamps"})
"""The parameters that a conversation and live sound have."""
ANSWERS = "--chat, whose answers come as they are made"


def _check_alone(context: typer.Context, asked: str, allowed: set[str], *, stream: str = "") -> None:
    """Raise InputError for options and arguments that are not ``allowed`` beside what is asked for.

    ``stream`` is what the error says for --stream.
    """
    for parameter in context.command.params:
        name = str(parameter.name)
        source = context.get_parameter_source(name)
        if name not in allowed and source is not None and source.name == "COMMANDLINE" and context.params[name]:
            shown = parameter.opts[0] if name != "sources" else "FILE"
            reason = stream if name == "stream" and stream else asked
            raise InputError(f"{shown} is not for {reason}; leave it out")


def _check_for_ray(options: Mapping[str, Any], subtitles: str | None) -> None:
    """Raise InputError for options that a run on Ray does not have."""
    if subtitles or options["sound_input"] or options["sample_rate"]:
        raise InputError("--format srt, vtt or tsv, --sound-input and --sample-rate are not for --ray; leave them out")
    if options["stream"]:
        raise InputError("--stream is not for --ray, which writes whole results; leave one out")
    if options["resume"] is not None or options["force"] or options["document"]:
        raise InputError("--resume, --force and --document are not for --ray; leave them out")
    if (options["document_format"], options["glossary"]) != (None, None):
        raise InputError("--document-format and --glossary are for --document, which is not for --ray; leave them out")
    if options["escapes"] or options["prompt"] is not None or options["prompt_file"] is not None:
        raise InputError("--escapes, --prompt and --prompt-file are not for --ray; leave them out, and pass files")
    if options["json_input"] is not None and options["text_field"] is not None:
        raise InputError("--json-input and --text-field both name the field of the text; leave one out")


def _with_config(settings: Mapping[str, Any], config: Path | None) -> dict[str, Any]:
    """Return the settings that were given, as arguments of ``model.generate``, above those in the file ``config``."""
    given: dict[str, Any] = {GENERATION_CONFIG: config}
    for name, value in settings.items():
        if value is not None and value not in ([], ()):  # of an option that was not passed
            given[name] = CONVERTED[name](value) if name in CONVERTED else value
    return with_source(given, COMMAND_LINE)


def _temperature(given: str) -> float | tuple[float, ...] | str:
    """Read one temperature, or several between commas. Text that is not numbers is left for the setting's own check."""
    try:
        each = tuple(map(float, given.split(",")))
    except ValueError:
        return given
    return each if len(each) > 1 else each[0]


def _early_stopping(given: str) -> bool | str:
    return {"true": True, "false": False}.get(given.lower(), given)


CONVERTED: dict[str, Callable[[Any], Any]] = {
    "temperature": _temperature,
    "early_stopping": _early_stopping,
    "trie": str,
}
"""Settings whose option gives text or a path, and the function that makes the setting's value of it."""


if __name__ == "__main__":
    main()
