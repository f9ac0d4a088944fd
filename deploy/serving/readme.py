"""README.md of a served model: the server's command, and a request."""

from __future__ import annotations

import shlex
from pathlib import Path
from urllib.parse import urlsplit

from tightbeam.deploy.bundle.manifest import Manifest
from tightbeam.deploy.serving.config import ServingSettings

__all__ = ["readme", "request_line", "server_command"]


IMAGE = "nvcr.io/nvidia/tritonserver:YY.MM-py3"
PORTS = "-p 8000:8000 -p 8001:8001 -p 8002:8002"
INSTALL = "pip install --break-system-packages"
USUAL_PORT = 8000


def server_command(repository: str, settings: ServingSettings) -> str:
    """The command that starts the server, in explicit mode, in which a model can be reloaded while the server runs."""
    port = urlsplit(settings.url).port
    options = [
        f"--model-repository={shlex.quote(repository)}",
        f"--model-control-mode=explicit --load-model={settings.name} --exit-timeout-secs=30",
        *([] if port in (None, USUAL_PORT) else [f"--http-port={port}"]),
    ]
    return " ".join(["tritonserver", *options])


def request_line(manifest: Manifest, settings: ServingSettings) -> str:
    """A request as a shell command."""
    action = "generate_stream" if settings.stream else "generate"
    if manifest.speech is not None:
        body = '{"AUDIO": [0.0, 0.1, 0.0, -0.1]}'
    elif manifest.tokenizer is not None:
        body = '{"TEXT": "Your text.", "max_new_tokens": 20}'
    else:
        body = '{"INPUT_IDS": [5, 6, 7, 2], "max_new_tokens": 20}'
    return f"curl {settings.url}/v2/models/{settings.name}/{action} -d '{body}'"


def readme(manifest: Manifest, settings: ServingSettings, repository: Path) -> str:
    """The text of README.md.

    Parameters
    ----------
    manifest
        The bundle's manifest.
    settings
        The served model's settings.
    repository
        The model repository.
    """
    where = repository.absolute()
    gpu = " --gpus all" if settings.device == "gpu" else ""
    extra = "[tensorrt]" if settings.device == "gpu" else ""
    return f"""# {settings.name}

{manifest.model} ({manifest.family}, variant {manifest.variant}), served by Triton's Python backend.

If `tritonserver` is installed, and the package `tightbeam` for the Python that it runs:

    {server_command(str(where), settings)}

In an image of Triton whose Python is 3.11 or newer, with a clone of Tightbeam at PATH/TO/tightbeam:

    docker run --rm{gpu} --shm-size=1g {PORTS} -v {shlex.quote(str(where))}:/models -v PATH/TO/tightbeam:/src {IMAGE} \\
      sh -c "{INSTALL} '/src{extra}' && {server_command("/models", settings)}"

A request:

    {request_line(manifest, settings)}

The settings of `model.generate` are parameters of a request: `"num_beams": 4, "max_new_tokens": 60`. A list is passed
as JSON in a text: `"bad_words_ids": "[[17], [4, 8]]"`. At most {settings.rows(manifest)} rows (samples x beams) are run
together; a request with more beams is refused.

The numbered folders are the model's versions; the newest one is served. If the model's process is killed, a watchdog
asks the server at {settings.url} to reload it. Set TIGHTBEAM_TRITON_URL in the server's environment if its address is
another.
"""
