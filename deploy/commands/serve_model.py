"""The command ``serve-model``."""

from __future__ import annotations

import re
import signal
import socket
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Literal

import typer

from tightbeam.deploy.console import Version, command_line, say
from tightbeam.deploy.errors import BundleError, InputError
from tightbeam.deploy.inputs.files.document import terms_of
from tightbeam.deploy.serving.dispatch.worker_process import WorkerError, threads_per_worker
from tightbeam.deploy.serving.protocol.named_files import TRIES, NamedFiles, by_name

__all__ = ["main"]

INSTALL = "pip install 'tightbeam[http]'"
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./:-]{0,127}")
PAIR = re.compile(r"(?:(.+)=)?([A-Za-z_]{2,12})-([A-Za-z_]{2,12})")
ORIGIN = re.compile(r"\*|[A-Za-z][A-Za-z0-9+.-]*://[^/?#\s]+")
ANY_ORIGIN = "*"
LOOPBACK = ("127.0.0.1", "::1", "localhost")

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


def main(name: str = "serve-model") -> None:
    """Entry point."""
    command_line(app, name)


@app.command()
def serve_model(
    bundles: Annotated[
        list[str],
        typer.Argument(
            metavar="BUNDLE",
            help="Bundle folders made by export-model, each served under the folder's name, or NAME=BUNDLE.",
            show_default=False,
        ),
    ],
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for all of this machine's.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 for any free one.")] = 8080,
    api_key_file: Annotated[
        Path | None, typer.Option(help="File with the keys that clients may have, one a line. Without it all may ask.")
    ] = None,
    cors: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ORIGIN",
            help="Origin of web pages that may ask this server, such as https://example.org, or * for all; repeat the "
            "option for more.",
            show_default=False,
        ),
    ] = None,
    pair: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]SOURCE-TARGET",
            help="Languages of a translator whose checkpoint names none, such as en-de, for /translate; NAME is needed "
            "if there are several models.",
            show_default=False,
        ),
    ] = None,
    trie: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]FILE",
            help="File of build-trie that requests may name, without its ending, to allow only the outputs in it; "
            "NAME, a model's, is needed if there are several models. Repeat the option for more files.",
            show_default=False,
        ),
    ] = None,
    glossary: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=FILE",
            help="Glossary that requests may name: a term and its translation in each line, between "
            "them a tab or a comma. Repeat the option for more files.",
            show_default=False,
        ),
    ] = None,
    engine: Annotated[
        str, typer.Option(help="Runtime of the models: onnxruntime; tensorrt (the engine that fits the GPU).")
    ] = "onnxruntime",
    device: Annotated[Literal["cpu", "cuda"], typer.Option(help="Device that runs the models.")] = "cpu",
    threads: Annotated[
        int | None,
        typer.Option(min=1, help="Threads of each model on the CPU; by default the cores, divided by the models."),
    ] = None,
    max_batch_size: Annotated[
        int, typer.Option(min=1, max=1024, help="The most inputs of one request, and that wait in the worker.")
    ] = 16,
    max_rows: Annotated[
        int,
        typer.Option(
            min=0,
            help="The most rows (inputs x beams) that take steps together, which bounds the memory; by default "
            "--max-batch-size times the larger of 4 and the checkpoint's beams.",
            show_default=False,
        ),
    ] = 0,
    max_queue_size: Annotated[
        int, typer.Option(min=1, help="The most requests of a model that wait; further ones are refused with 429.")
    ] = 256,
    deadline_s: Annotated[
        float,
        typer.Option(
            min=1,
            help="Seconds after which a request without a result fails. A request may ask for less by deadline_s.",
        ),
    ] = 3600,
    max_body_mb: Annotated[
        int, typer.Option(min=1, max=256, help="Megabytes of a request with files. One of JSON has 8 at most.")
    ] = 128,
    grace_s: Annotated[
        int, typer.Option(min=0, help="Seconds that running requests have after SIGTERM or Ctrl-C; a second one ends.")
    ] = 30,
    log: Annotated[
        bool, typer.Option(help="Write a line of JSON for each request, without its texts, to standard output.")
    ] = True,
    version: Version = False,
) -> None:
    """Serve each BUNDLE over HTTP until Ctrl-C, with the endpoints of OpenAI and LibreTranslate, and a page at /.

    The server comes with the package's extra "http".
    """
    try:
        _check_installed()
        named = _named(bundles)
        pairs = _pairs(pair or [], named)
        tries = _tries(trie or [], named)
        glossaries = _glossaries(glossary or [])
        terms = {name: terms_of(file) for name, file in glossaries.items()}
        keys = _keys(api_key_file)
        origins = _origins(cors or [])
        listening = _listen(host, port)
    except (InputError, BundleError) as error:
        say(f"error: {error}")
        raise typer.Exit(1) from None
    from tightbeam.deploy.serving.http.app import PrometheusMetrics, make_app
    from tightbeam.deploy.serving.http.guards import Limits, log_line
    from tightbeam.deploy.serving.http.model import ModelOptions, ServedModel
    from tightbeam.deploy.serving.http.run import run_server

    options = ModelOptions(
        engine=engine,
        threads=threads or (threads_per_worker(len(named)) if device == "cpu" else None),
        device=0 if device == "cuda" else None,
        max_batch_size=max_batch_size,
        max_rows=max_rows,
        max_queue_size=max_queue_size,
        deadline_s=deadline_s,
    )
    metrics, models = PrometheusMetrics(), {}
    try:
        with ExitStack() as stack:
            stack.callback(listening.close)
            for name, path in named.items():
                files = NamedFiles(tries=tries.get(name, {}), glossaries=glossaries)
                models[name] = ServedModel(name, path, options, metrics.of, pairs.get(name), files)
                stack.callback(models[name].close)
            limits = Limits(body_bytes=max_body_mb << 20, keys=keys)
            served = make_app(
                models, metrics, limits=limits, origins=origins, log=log_line if log else None, glossaries=terms
            )
            if not keys and host not in LOOPBACK:
                say(f"note: whoever reaches {host} may use the models; pass --api-key-file to ask for a key")
            elif not keys and ANY_ORIGIN in origins:
                say(
                    "note: any web page in a browser here may use the models; pass --api-key-file, or origins to --cors"
                )
            stack.callback(_ignore_signals)
            run_server(served, listening, grace_s=grace_s, names=list(models))
    except (BundleError, InputError, WorkerError) as error:
        say(f"error: {error}")
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        say("stopped")


def _ignore_signals() -> None:
    """Let no further signal interrupt the end of the workers, which takes seconds at most."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def _check_installed() -> None:
    try:
        import fastapi  # noqa: F401
        import langcodes  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise InputError(f"serve-model needs the package {error.name}, which is not installed; {INSTALL}") from None


def _named(bundles: Sequence[str]) -> dict[str, Path]:
    """Return the folders of bundles by the names of their models."""
    named: dict[str, Path] = {}
    for given in bundles:
        name, equals, path = given.partition("=")
        folder = Path(path if equals else given)
        name = name if equals else folder.resolve().name
        if not NAME.fullmatch(name):
            raise InputError(f"{name!r} cannot be a model's name; pass NAME={folder}, of letters, digits and ._:/-")
        if name in named:
            raise InputError(f"two models are named {name}; pass another NAME={folder}")
        named[name] = folder
    return named


def _pairs(given: Sequence[str], named: Mapping[str, Path]) -> dict[str, tuple[str, str]]:
    pairs = {}
    for each in given:
        match = PAIR.fullmatch(each)
        if match is None:
            raise InputError(f"--pair {each} is not a pair of languages; pass SOURCE-TARGET, such as en-de")
        name = match[1] or next(iter(named))
        if name not in named or (match[1] is None and len(named) > 1):
            raise InputError(
                f"--pair {each} names no model; pass NAME={match[2]}-{match[3]}, NAME being one of {', '.join(named)}"
            )
        pairs[name] = (match[2], match[3])
    return pairs


def _tries(given: Sequence[str], named: Mapping[str, Path]) -> dict[str, dict[str, str]]:
    """Return the files of tries by their names, for each model. Raises InputError."""
    found: dict[str, list[Path]] = {}
    for each in given:
        name, equals, path = each.partition("=")
        if not equals and len(named) == 1:
            name, path = next(iter(named)), each
        if name not in named or not path:
            raise InputError(f"--trie {each} names no model; pass NAME=FILE, NAME being one of {', '.join(named)}")
        found.setdefault(name, []).append(Path(path))
    return {name: by_name(files, TRIES) for name, files in found.items()}


def _glossaries(given: Sequence[str]) -> dict[str, str]:
    """Return files by the names that requests call them. Raises InputError."""
    found: dict[str, str] = {}
    for each in given:
        name, equals, path = each.partition("=")
        if not equals or not path or not NAME.fullmatch(name):
            raise InputError(f"--glossary {each} has no name; pass NAME=FILE, the name of letters, digits and ._:/-")
        if name in found:
            raise InputError(f"two glossaries are named {name}; pass another NAME={path}")
        found[name] = path
    return found


def _keys(path: Path | None) -> list[str]:
    if path is None:
        return []
    try:
        keys = path.read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the keys cannot be read ({error}); pass a file with one key a line") from None
    if not keys:
        raise InputError(f"{path} has no key; write one a line, such as the output of: openssl rand -hex 24")
    return keys


def _origins(given: Sequence[str]) -> list[str]:
    """Return the origins in the form in which browsers send them."""
    for each in given:
        if not ORIGIN.fullmatch(each):
            raise InputError(
                f"--cors {each} is not an origin; pass a scheme and a host, such as https://example.org, or *"
            )
    return [each.lower() for each in given]


def _listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens, so that a port in use is an error before a model is loaded."""
    listening = None
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
    except OSError as error:
        if listening is not None:
            listening.close()
        raise InputError(
            f"{host}:{port} cannot be listened on ({error.strerror or error}); pass another --host or --port"
        ) from None
    return listening


if __name__ == "__main__":
    main()
