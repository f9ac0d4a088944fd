"""The command ``run-model``, which is ``python deploy/runner.py`` as well."""

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
from tightbeam.deploy.bundle.reader import BundleError
from tightbeam.deploy.console import command_line, console, say
from tightbeam.deploy.errors import InputError
from tightbeam.deploy.generation.fields import GenerationError
from tightbeam.deploy.runner import Runner
from tightbeam.deploy.text.text_input import InputResult, run_text_input

__all__ = ["main"]

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def main() -> None:
    """Entry point. Texts and results are UTF-8, whatever the locale."""
    command_line(app, "run-model")


@app.command()
def run_model(
    bundle: Annotated[Path, typer.Argument(help="Bundle folder made by export-model.")],
    source: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="Input, one text a line; - is standard input. For Whisper a sound file, or a list of them.",
        ),
    ] = "-",
    json_lines: Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")] = False,
    ids: Annotated[bool, typer.Option("--ids", help="Each line is a JSON list of token ids.")] = False,
    document: Annotated[bool, typer.Option("--document", help="The whole input is one text.")] = False,
    truncate: Annotated[bool, typer.Option("--truncate", help="Cut texts longer than the model's positions.")] = False,
    batch_size: Annotated[int, typer.Option(min=1, help="Lines run together.")] = 8,
    engine: Annotated[
        str, typer.Option(help="onnxruntime; tensorrt, the engine that fits the GPU; or tensorrt:NAME.")
    ] = "onnxruntime",
    device: Annotated[str, typer.Option(help="Where ONNX Runtime runs: cpu or cuda.")] = "cpu",
    threads: Annotated[int | None, typer.Option(min=1, help="Threads on the CPU; all cores by default.")] = None,
    num_beams: Annotated[int | None, typer.Option(help="Beams; 1 is greedy search.")] = None,
    num_return_sequences: Annotated[int | None, typer.Option(help="Sequences returned for each input.")] = None,
    max_new_tokens: Annotated[int | None, typer.Option(help="Most new tokens.")] = None,
    min_new_tokens: Annotated[int | None, typer.Option(help="Fewest new tokens.")] = None,
    max_length: Annotated[int | None, typer.Option(help="Most tokens, start token or prompt included.")] = None,
    min_length: Annotated[int | None, typer.Option(help="Fewest tokens, start token or prompt included.")] = None,
    length_penalty: Annotated[float | None, typer.Option(help="Above 0 favours longer sequences.")] = None,
    language: Annotated[str | None, typer.Option(help="Whisper: the language spoken, by its code (en).")] = None,
    task: Annotated[str | None, typer.Option(help="Whisper: transcribe, or translate into English.")] = None,
    early_stopping: Annotated[str | None, typer.Option(help="true, false or never.")] = None,
    no_repeat_ngram_size: Annotated[int | None, typer.Option(help="No n-gram of this size occurs twice.")] = None,
    repetition_penalty: Annotated[float | None, typer.Option(help="Above 1 disfavours tokens seen before.")] = None,
    forced_bos_token_id: Annotated[int | None, typer.Option(help="First token, e.g. the target language.")] = None,
    forced_eos_token_id: Annotated[int | None, typer.Option(help="Last token when the length runs out.")] = None,
    generation_config: Annotated[
        Path | None, typer.Option(help="JSON file with more settings of model.generate, by name.")
    ] = None,
) -> None:
    """Generate for every line of FILE with a bundle, and print one line for each.

    Settings that are not given are the checkpoint's own. With --json, "tokens" are the generated ids from the start
    token on; a decoder-only model's begin after the prompt, and so does the text.
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
        lines, count = ([os.fsencode(source)], 1) if is_audio(source) else _lines(source, document)
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
    except BrokenPipeError:  # the reader has what it wanted
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
    """What standard output could not take would else be written again at the exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _report(result: InputResult, source: str, json_lines: bool) -> bool:
    """Print one result; True where it is an error."""
    print(result.as_json() if json_lines else result.as_text(), flush=True)
    name = "standard input" if source == "-" else source
    if result.error is not None:
        say(f"error: {name}, line {result.number}: {result.error}")
    elif result.truncated:
        say(f"note: {name}, line {result.number}: cut to the model's positions")
    return result.error is not None


def _lines(source: str, document: bool) -> tuple[Iterable[bytes], int | None]:
    """The input's lines as bytes, or the whole input as one; and how many there are, where that is known."""
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
    """Options of the command line over those of the file."""
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
    """A bar where the results go elsewhere than to the terminal; there, they show how far it is."""
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
