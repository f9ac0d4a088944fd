"""The command ``triton-repo``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from tightbeam.deploy.bundle.reader import Bundle
from tightbeam.deploy.console import Version, command_line, say
from tightbeam.deploy.errors import BundleError
from tightbeam.deploy.serving.repository.config import RepositoryError, ServingSettings, model_name_of
from tightbeam.deploy.serving.repository.models import settings_there, write_model
from tightbeam.deploy.serving.repository.shell_commands import (
    local_server_command,
    request_command,
    server_command,
    unreadable_path,
)

__all__ = ["main"]

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


def main(name: str = "triton-repo") -> None:
    """Entry point."""
    command_line(app, name)


@app.command()
def triton_repo(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="Bundle folder made by export-model.")],
    repository: Annotated[
        Path,
        typer.Argument(metavar="REPOSITORY", help="Folder of models for Triton; made if it does not exist."),
    ],
    name: Annotated[
        str | None, typer.Option(help="The model's name for clients; by default the name of the bundle's folder.")
    ] = None,
    max_batch_size: Annotated[
        int | None,
        typer.Option(help="The most inputs of one request, and the most that wait in the worker; 16 by default."),
    ] = None,
    max_request_rows: Annotated[
        int | None,
        typer.Option(
            help="The most inputs of one request that the worker takes, so that a request leaves places to others; by "
            "default --max-batch-size, which it cannot exceed."
        ),
    ] = None,
    max_rows: Annotated[
        int | None,
        typer.Option(
            help="The most rows (inputs x beams) that take steps together, which bounds the memory; by default "
            "--max-batch-size times the larger of 4 and the checkpoint's beams."
        ),
    ] = None,
    instances: Annotated[
        int | None,
        typer.Option(
            help="Number of processes, each with the whole model: on each GPU, or in total on the CPU; 1 by default."
        ),
    ] = None,
    device: Annotated[
        Literal["cpu", "cuda", "gpu"] | None,
        typer.Option(help="Device that runs the model: cpu, or cuda (also gpu), which needs --engine tensorrt."),
    ] = None,
    batching_delay_us: Annotated[
        int | None,
        typer.Option(
            help="Microseconds that a request waits in Triton for other requests, to run in one batch with them; only "
            "for bundles of the variant baseline, since others let requests join a running batch; 0 by default."
        ),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            help="Runtime of the model: onnxruntime; tensorrt (the engine that fits the GPU); or tensorrt:NAME."
        ),
    ] = None,
    stream: Annotated[
        bool,
        typer.Option(
            "--stream",
            help="Send responses while a request runs: each token as soon as no step can change it, each segment of a "
            "recording, and the result of each input as soon as it is finished.",
        ),
    ] = False,
    max_queue_size: Annotated[
        int | None,
        typer.Option(
            help="The most requests that wait; the server refuses further ones. 0, the default, sets no limit. A limit "
            "adds up to half a second to some requests; see docs/how-to/serve.md."
        ),
    ] = None,
    deadline_s: Annotated[
        int | None,
        typer.Option(
            help="Seconds after which a request without its last response fails; 3600 by default. A request may ask "
            "for less by a parameter of this name, deadline_s."
        ),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(
            help="HTTP address of the server, which the model asks for a reload if Triton's own process of the model "
            "was killed; http://127.0.0.1:8000 by default."
        ),
    ] = None,
    trie: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="File of build-trie that requests may name, without its ending, to allow only the outputs in it; "
            "repeat the option for more files.",
            show_default=False,
        ),
    ] = None,
    glossary: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Glossary that requests may name, without its ending: a term and its translation in each line, "
            "between them a tab or a comma; repeat the option for more files.",
            show_default=False,
        ),
    ] = None,
    next_version: Annotated[
        bool,
        typer.Option(
            "--next-version",
            help="Add a version to the model of this name, which keeps the options that are not given.",
        ),
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a model of the same name.")] = False,
    version: Version = False,
) -> None:
    """Write a model repository from which Triton Inference Server serves BUNDLE.

    The model's README.md holds the commands of a server and a request. With --next-version, options that are not given
    keep their values.
    """
    given: dict[str, Any] = {
        "max_batch_size": max_batch_size,
        "max_request_rows": max_request_rows,
        "max_rows": max_rows,
        "instances": instances,
        "device": "cuda" if device == "gpu" or (not device and (engine or "").startswith("tensorrt")) else device,
        "batching_delay_us": batching_delay_us,
        "engine": engine,
        "stream": stream or None,
        "max_queue_size": max_queue_size,
        "deadline_s": deadline_s,
        "url": url,
    }
    try:
        chosen = model_name_of(bundle.resolve().name) if name is None else name
        settings = settings_there(repository, chosen, force=force) if next_version else ServingSettings(chosen)
        if max_batch_size is not None:
            settings = replace(settings, max_rows=0, max_request_rows=0)  # the defaults follow the batch size
        settings = replace(settings, **{option: value for option, value in given.items() if value is not None})
        settings.check()
        loaded = Bundle.load(bundle)
        written = write_model(
            loaded,
            repository,
            settings,
            force=force,
            next_version=next_version,
            tries=trie or (),
            glossaries=glossary or (),
        )
    except (BundleError, RepositoryError) as error:
        say(f"error: {error}")
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        say("error: interrupted; nothing was left behind")
        raise typer.Exit(130) from None
    if fault := unreadable_path(repository):
        say(f"note: {fault}")
    print(f"wrote {written}; to try it here, with a request for each model:\n")
    print(f"    {local_server_command(str(repository), settings)}\n\nTo serve it with a Triton of your own:\n")
    print(f"    {server_command(str(repository), settings)}\n\nA request:\n")
    request = request_command(loaded.manifest, settings.name, settings.url, stream=settings.stream)
    print(f"    {request}\n\nSee also {written.parent / 'README.md'}")


if __name__ == "__main__":
    main()
