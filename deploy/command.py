"""The command ``run-model``, which is also ``python deploy/runner.py``."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tightbeam.deploy.audio.files import is_audio
from tightbeam.deploy.audio.transcribe import transcribe_files
from tightbeam.deploy.console import Version, command_line, console, say
from tightbeam.deploy.errors import BundleError, GenerationError, InputError
from tightbeam.deploy.runner import Runner
from tightbeam.deploy.text.text_input import InputResult, run_text_input

__all__ = ["main"]

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def main() -> None:
    """Entry point. Input and results are UTF-8, whatever the locale."""
    command_line(app, "run-model")


@app.command()
def run_model(
    bundle: Annotated[Path, typer.Argument(help="Bundle folder made by export-model.")],
    source: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="Text file with one input a line; - is standard input. For Whisper: an audio file, or a text file "
            "with the name of an audio file in each line.",
        ),
    ] = "-",
    json_lines: Annotated[
        bool, typer.Option("--json", help="Print one JSON object for each input, in place of text.")
    ] = False,
    ids: Annotated[
        bool, typer.Option("--ids", help="Read each line as a JSON list of token ids, in place of text.")
    ] = False,
    document: Annotated[
        bool, typer.Option("--document", help="Read the whole file as one input, in place of one input a line.")
    ] = False,
    truncate: Annotated[
        bool,
        typer.Option("--truncate", help="Cut texts that are longer than the model's positions, in place of an error."),
    ] = False,
    batch_size: Annotated[int, typer.Option(min=1, help="Inputs run together in one batch.")] = 8,
    engine: Annotated[
        str,
        typer.Option(
            help="Runtime of the model: onnxruntime; tensorrt (the engine that fits the GPU); or tensorrt:NAME."
        ),
    ] = "onnxruntime",
    device: Annotated[str, typer.Option(help="Device of ONNX Runtime: cpu or cuda.")] = "cpu",
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads of one operator on the CPU; by default one for each core.")
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
    version: Version = False,
) -> None:
    """Generate from every line of FILE with a bundle, and print one line for each.

    The defaults of the search options are the checkpoint's own. With --json, "tokens" are the ids from the start token
    on; those of a decoder-only model, like its text, begin after the prompt.
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
    try:
        if ids and truncate:
            raise InputError("--truncate cuts texts, not --ids; leave one out, and shorten the ids yourself")
        settings = _settings(given, generation_config)
        lines, count = ([os.fsencode(source)], 1) if is_audio(source) else _read_input(source, document)
        runner = Runner.load(bundle, engine=engine, device=device, threads=threads)
        if runner.log_mel is None and is_audio(source):
            raise InputError(f"{source} is an audio file, and this is a text model; pass a text file")
        if runner.log_mel is not None and (ids or truncate or document):
            raise InputError("--ids, --truncate and --document are for text, this is a speech model; leave them out")
        runner.options(**settings)
        bad = 0
        with _progress() as progress:
            bar = progress.add_task("generating", total=count)
            if runner.log_mel is None:
                results = run_text_input(runner, lines, ids=ids, truncate=truncate, batch_size=batch_size, **settings)
            else:
                results = transcribe_files(runner, lines, batch_size=batch_size, **settings)
            for result in results:
                bad += _report(result, source, json_lines)
                progress.advance(bar)
    except (BundleError, GenerationError, InputError) as error:
        say(f"error: {error}")
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        say("error: interrupted; the results printed so far are whole")
        raise typer.Exit(130) from None
    except BrokenPipeError:  # the reader has closed the pipe
        _drop_output()
        raise typer.Exit(1) from None
    except OSError as error:
        _drop_output()
        say(
            f"error: reading the input or writing the results failed ({error.strerror}); check both, and the disk",
        )
        raise typer.Exit(1) from None
    if bad:
        say(f"error: {bad} of the lines could not be run; each is named above")
        raise typer.Exit(1)


def _drop_output() -> None:
    """Discard what is still buffered for standard output, which Python would write again at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


def _report(result: InputResult, source: str, json_lines: bool) -> bool:
    """Print one result; return True for an error."""
    print(result.as_json() if json_lines else result.as_text(), flush=True)
    name = "standard input" if source == "-" else source
    if result.error is not None:
        say(f"error: {name}, line {result.number}: {result.error}")
    elif result.truncated:
        say(f"note: {name}, line {result.number}: cut to the model's positions")
    return result.error is not None


def _read_input(source: str, document: bool) -> tuple[Iterable[bytes], int | None]:
    """The inputs as lines of bytes, and their number if known; with ``document`` the whole file is one line."""
    if source == "-" and sys.stdin is None:
        raise InputError("standard input is closed; pass a text file")
    if sys.stdout is None:
        raise InputError("standard output is closed, so the results would be lost; redirect it to a file")
    if source == "-" and not document:
        return sys.stdin.buffer, None
    try:
        data = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
    except OSError as error:
        reason = error.strerror or error
        raise InputError(f"cannot read {source}: {reason}; pass a text file, or - for standard input") from None
    lines = [b" ".join(data.splitlines())] if document else list(io.BytesIO(data))
    return lines, len(lines)


def _settings(given: dict[str, Any], file: Path | None) -> dict[str, Any]:
    """Merge the settings of the command line over those of the file."""
    settings: dict[str, Any] = {}
    if file is not None:
        try:
            settings = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise GenerationError(
                f'cannot read {file} as JSON ({reason}); pass --generation-config a file such as {{"num_beams": 4}}'
            ) from None
        if not isinstance(settings, dict):
            raise GenerationError(f'{file} holds no JSON object; expected settings such as {{"num_beams": 4}}')
    settings.update({name: value for name, value in given.items() if value is not None})
    words = {"true": True, "false": False}
    if isinstance(settings.get("early_stopping"), str):
        settings["early_stopping"] = words.get(settings["early_stopping"].lower(), settings["early_stopping"])
    return settings


def _progress() -> Progress:
    """A progress bar; disabled when the results themselves go to the terminal."""
    errors = console()
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=errors,
        transient=True,
        disable=not errors.is_terminal or sys.stdout.isatty(),
        redirect_stdout=False,
        redirect_stderr=False,
    )


if __name__ == "__main__":
    main()
