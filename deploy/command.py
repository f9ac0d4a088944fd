"""The command ``run-model``, which is also ``python deploy/runner.py``."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tightbeam.deploy.audio.transcribe import named_files, transcribe_files
from tightbeam.deploy.console import Version, command_line, console, counted, drop_output, say
from tightbeam.deploy.errors import BundleError, GenerationError, InputError
from tightbeam.deploy.generation.given import GENERATION_CONFIG, read_generation_config
from tightbeam.deploy.generation.without_effect import remove_settings_without_effect
from tightbeam.deploy.input_files import AUDIO_NAMES, IDS, STDIN, TEXT, InputFiles, json_objects
from tightbeam.deploy.ray.partition import FieldNames
from tightbeam.deploy.ray.rows import RowSettings
from tightbeam.deploy.ray.run import RayRun, run_on_ray
from tightbeam.deploy.resume import WrittenResults, read_written
from tightbeam.deploy.run_summary import RunSummary
from tightbeam.deploy.runner import Runner
from tightbeam.deploy.text.text_input import InputResult, LineFormat, run_text_input

__all__ = ["main"]

STDOUT = "-"
NO_SAMPLING = "nothing is sampled: search is greedy or with beams (--num-beams)"
HINTS = dict.fromkeys(("--temperature", "--top-k", "--top-p", "--do-sample", "--sample", "--seed"), NO_SAMPLING)
"""Advice on options of other programs."""

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
            "audio files, or text files with the name of an audio file in each line.",
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
    ids: Annotated[
        bool, typer.Option("--ids", help="Read each line as a JSON list of token ids, in place of text.")
    ] = False,
    json_input: Annotated[
        str | None,
        typer.Option(
            metavar="FIELD",
            help="Read each line as a JSON object with the text (with --ids, the token ids) in FIELD. Its other fields "
            "are settings of this line by the names of model.generate, such as num_beams, or truncate.",
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
            help="Threads of one operator on the CPU; by default one for each core that this process may use. One is "
            "the least work for a model of a few million numbers, and for any model where all cores are busy.",
        ),
    ] = None,
    num_beams: Annotated[int | None, typer.Option(help="Beams of beam search; 1 is greedy search.")] = None,
    num_return_sequences: Annotated[
        int | None, typer.Option(help="Sequences returned for each input, the best ones; at most --num-beams.")
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
            metavar="NAME", help="Field of JSON lines, or column of Parquet, with the text: text; with --ray."
        ),
    ] = None,
    key_field: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Field or column that is copied to the results as key; with --ray."),
    ] = None,
    partition_rows: Annotated[
        int | None, typer.Option(min=1, help="Rows that one actor runs and writes at a time: 256; with --ray.")
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
        "max_new_tokens": max_new_tokens,
        "min_new_tokens": min_new_tokens,
        "max_length": max_length,
        "min_length": min_length,
        "length_penalty": length_penalty,
        "language": language,
        "task": task,
        "early_stopping": early_stopping,
        "no_repeat_ngram_size": no_repeat_ngram_size,
        "repetition_penalty": repetition_penalty,
        "forced_bos_token_id": forced_bos_token_id,
        "forced_eos_token_id": forced_eos_token_id,
    }
    names = sources or [STDIN]
    try:
        if ids and truncate:
            raise InputError("--truncate cuts texts, not --ids; leave one out, and shorten the ids yourself")
        if batch_size is not None and max_rows is not None:
            raise InputError("--batch-size and --max-rows bound the same; leave one out")
        settings = _settings(given, generation_config)
        if resume is not None:
            if output != STDOUT or force:
                raise InputError("--resume names the output, and replaces nothing; leave --output and --force out")
            if resume == STDOUT:
                raise InputError("--resume - is standard output, which keeps no results; name the file that has them")
            output = resume
        if ray:
            if resume is not None or force or document:
                raise InputError("--resume, --force and --document are not for --ray; leave them out")
            if json_input is not None and text_field is not None:
                raise InputError("--json-input and --text-field both name the field of the text; leave one out")
            if output == STDOUT:
                _check_output(output, force, names, option="--output")
            settings, notes = remove_settings_without_effect(settings, speech=False)
            for note in () if quiet else notes:
                say(f"note: {note}")
            run = RayRun(
                bundle=bundle,
                sources=sources or [STDIN],
                output=None if output == STDOUT else output,
                rows=RowSettings(settings, ids, truncate, batch_size or 8, max_rows),
                fields=FieldNames(json_input or text_field or "text", key_field, json_input is not None),
                rows_each=partition_rows or 256,
                json_lines=json_lines,
                quiet=quiet,
                engine=engine,
                device=device,
                threads=threads,
            )
            hidden = quiet or (output == STDOUT and sys.stdout.isatty())
            raise typer.Exit(run_on_ray(run, _progress(hidden)))
        if (text_field, key_field, partition_rows) != (None, None, None):
            raise InputError("--text-field, --key-field and --partition-rows are for --ray; leave them out, or add it")
        _check_output(output, force, names, option="--output" if resume is None else "--resume")
        waits = STDIN in names and sys.stdin is not None and sys.stdin.isatty() and not quiet
        if waits and document:  # it is read whole before the model is loaded
            say("note: reading one text from standard input; end with Ctrl-D")
        files = InputFiles(names, document=document)
        start = time.perf_counter()
        runner = Runner.load(bundle, engine=engine, device=device, threads=threads)
        load_seconds = time.perf_counter() - start
        if runner.is_speech and (ids or truncate or document or json_input is not None):
            raise InputError(
                "--ids, --truncate, --document and --json-input are for text, this is a speech model; leave them out"
            )
        if not runner.is_speech and files.audio is not None:
            raise InputError(f"{files.audio} is an audio file, and this is a text model; pass a text file")
        settings, notes = remove_settings_without_effect(settings, speech=runner.is_speech)
        options = runner.options(**settings)
        if max_rows is not None and max_rows < options.num_beams:
            raise InputError(
                f"--max-rows {max_rows} is less than the {options.num_beams} beams of one input; pass more"
            )
        if not runner.is_speech and not ids:
            runner.require_tokenizer()
        kind = AUDIO_NAMES if runner.is_speech else IDS if ids else TEXT
        if json_input is not None:
            kind = json_objects(json_input)
        files.check(kind)
        if waits and not document:
            notes.append(f"reading from standard input, {kind.short} in each line; end with Ctrl-D")
        for note in () if quiet else notes:
            say(f"note: {note}")
        unit = "file" if runner.is_speech else "document" if document else "line"
        written = WrittenResults()
        if resume is not None:
            if json_input is not None and not json_lines:
                raise InputError("--resume with --json-input needs --json: lines may have several texts each")
            written = read_written(resume, 1 if json_lines or runner.is_speech else options.num_return_sequences)
        lines, last = files.skip(written.count)
        if last is not None:
            file = last.file if len(names) > 1 else None
            written.check(output, json_lines=json_lines, number=last.number, file=file)
            if not quiet:
                say(f"note: {output} has the results of {counted(written.count, unit)}, which are kept")
        summary = RunSummary(unit, load_seconds)
        hidden = quiet or (output == STDOUT and sys.stdout.isatty())
        together = batch_size or (8 if max_rows is None else max_rows // options.num_beams)
        typed = STDIN in names and not document
        if runner.is_speech:
            done = transcribe_files(runner, named_files(lines), batch_size=together, typed=typed, **settings)
            results = (each.result for each in done)
        else:
            lines_are = LineFormat(ids=ids, field=json_input, truncate=truncate)
            how: dict[str, Any] = {"batch_size": together, "max_rows": max_rows}
            how |= {"typed": typed, "first": written.count + 1}
            results = run_text_input(runner, lines, lines_are, **how, **settings)
        # Results are closed at once where writing fails: Python must not end while a thread runs the model.
        opened = _opened(output, written if resume is not None else None)
        with opened as sink, _progress(hidden) as progress, closing(results):
            bar = progress.add_task("generating", total=files.count, completed=written.count, rates="")
            for result in results:
                place = files.next_place()
                result.number, result.file = place.number, place.file if len(names) > 1 else None
                line = result.as_json() if json_lines else result.as_text()
                sink.write(f"{line}\n")  # in one call, so that Ctrl-C leaves whole lines
                sink.flush()
                _report(result, place.prefix, quiet)
                summary.add(result)
                progress.update(bar, advance=1, rates=summary.rates())
    except (BundleError, GenerationError, InputError) as error:
        say(f"error: {error}")
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        say("error: interrupted; the results written so far are whole")
        raise typer.Exit(130) from None
    except BrokenPipeError:  # the reader has closed the pipe
        drop_output()
        raise typer.Exit(1) from None
    except OSError as error:
        drop_output()
        say(
            f"error: reading the input or writing the results failed ({error.strerror}); check both, and the disk",
        )
        raise typer.Exit(1) from None
    if not quiet:
        say(summary.text())
    if summary.failed:
        say(f"error: {summary.failed} of the {unit}s could not be run; each is named above")
        raise typer.Exit(1)


def _report(result: InputResult, place: str, quiet: bool) -> None:
    """Print the error of a result, or a note."""
    if result.error is not None:
        say(f"error: {place}{result.error}")
    for note in () if quiet else result.notes:
        say(f"note: {place}{note}")
    if result.error is None and result.cut and not quiet:
        whole = result.source_tokens + result.cut
        say(f"note: {place}cut from {whole:,} to {result.source_tokens:,} tokens, which the model has positions for")


def _check_output(output: str, force: bool, inputs: list[str], *, option: str) -> None:
    """Raise InputError for an output that cannot be written, or would be lost."""
    if output == STDOUT:
        if sys.stdout is None:
            raise InputError("standard output is closed, so the results would be lost; redirect it to a file")
        if force:
            raise InputError("--force replaces the --output file; leave it out, or name one")
        return
    path = Path(output)
    try:
        there = path.stat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise InputError(f"cannot write {output}: {(error.strerror or '').lower()}; pass another {option}") from None
    if path.is_dir():
        raise InputError(f"{output} is a folder; pass {option} the name of a file")
    if path.is_file() and any(os.path.samestat(there, used) for used in map(_status, inputs) if used is not None):
        raise InputError(f"{output} is one of the inputs too; pass another {option}")
    if path.is_file() and there.st_size and not force and option == "--output":
        raise InputError(f"{output} exists and is not empty; pass --force to replace it, or another --output")


def _status(source: str) -> os.stat_result | None:
    """The status of an input; None where there is none, as its own error says later."""
    try:
        return os.fstat(sys.stdin.fileno()) if source == STDIN else os.stat(source)
    except (AttributeError, OSError, ValueError):  # no standard input, none that is a file, no such file
        return None


@contextmanager
def _opened(output: str, written: WrittenResults | None) -> Iterator[TextIO]:
    """The stream that results are written to, behind those that are kept."""
    if output == STDOUT:
        yield sys.stdout
        return
    try:
        descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if written is None else 0), 0o666)
        if written is not None:
            os.ftruncate(descriptor, written.nbytes)
            os.lseek(descriptor, 0, os.SEEK_END)
    except OSError as error:
        option = "--output" if written is None else "--resume"
        raise InputError(f"cannot write {output}: {(error.strerror or '').lower()}; pass another {option}") from None
    with open(descriptor, "w", encoding="utf-8", errors="backslashreplace", newline="\n") as file:
        yield file


def _settings(given: dict[str, Any], file: Path | None) -> dict[str, Any]:
    """The settings of the command line, and those of the file below them."""
    settings = {name: value for name, value in given.items() if value is not None}
    words = {"true": True, "false": False}
    if "early_stopping" in settings:
        settings["early_stopping"] = words.get(settings["early_stopping"].lower(), settings["early_stopping"])
    if file is not None:
        settings[GENERATION_CONFIG] = read_generation_config(file)
    return settings


def _progress(hidden: bool) -> Progress:
    """A progress bar on standard error, where that is a terminal."""
    errors = console()
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rates]}"),
        TimeRemainingColumn(),
        console=errors,
        transient=True,
        disable=hidden or not errors.is_terminal,
        redirect_stdout=False,
        redirect_stderr=False,
    )


if __name__ == "__main__":
    main()
