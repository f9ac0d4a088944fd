"""Shell commands that triton-repo, serve-local and a model's README print: one for a server, one for a request."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from urllib.parse import urlsplit

from tightbeam.deploy.bundle.manifest import Manifest
from tightbeam.deploy.serving.protocol.tensors import AUDIO, AUDIO_FILE, IMAGE, INPUT_IDS, MESSAGES, TEXT
from tightbeam.deploy.serving.repository.config import ServingSettings

__all__ = ["SAMPLE_TEXT", "local_server_command", "request_command", "server_command", "unreadable_path"]

SAMPLE_TEXT = "Your text."
SAMPLE_AUDIO = [0.0, 0.1, 0.0, -0.1]
SAMPLE_IMAGE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGP4DwABAQEAsTj2FAAAAABJRU5ErkJggg=="
"""A PNG file of one white pixel."""
SAMPLE_IDS = [5, 6, 7, 2]
USUAL_PORT = 8000
SHELL = re.compile(r"""[\s"'`$&|;<>()*?#~!\\]""")
"""Characters that Triton's Python backend passes to a shell as they are."""


def unreadable_path(repository: Path) -> str:
    """Return why Triton's Python backend cannot read the path of a repository, and the fix; "" if it can."""
    found = SHELL.search(str(repository))
    if not found:
        return ""
    where = f"a path with {found[0]!r}, as {repository} has"
    return f"Triton's Python backend cannot read {where}; move the repository, or make a link to it"


def server_command(repository: str, settings: ServingSettings) -> str:
    """Return the command of a Triton server, in explicit mode, in which a running server can reload a model."""
    options = [
        f"--model-repository={shlex.quote(repository)}",
        f"--model-control-mode=explicit --load-model={settings.name} --exit-timeout-secs=30",
        *_http_port(settings),
    ]
    return " ".join(["tritonserver", *options])


def local_server_command(repository: str, settings: ServingSettings) -> str:
    """Return the command of a server on loopback, for trying."""
    return " ".join(["serve-local", shlex.quote(repository), *_http_port(settings)])


def _http_port(settings: ServingSettings) -> list[str]:
    """Return the option for the server's port, at which the model's watchdog expects it."""
    port = urlsplit(settings.url).port
    return [] if port in (None, USUAL_PORT) else [f"--http-port={port}"]


def request_command(
    manifest: Manifest,
    name: str,
    url: str,
    *,
    stream: bool,
    text: str = SAMPLE_TEXT,
    audio: Path | None = None,
) -> str:
    """Return a request as a shell command.

    Parameters
    ----------
    manifest
        The bundle's manifest, which decides what a request holds.
    name
        The model's name.
    url
        The server's HTTP address.
    stream
        The model streams. The request then asks for greedy search, of which each token is a response at once.
    text
        Text of the request, if the model takes text.
    audio
        Audio file of the request, if the model takes audio; by default the request has four samples.
    """
    page = shlex.quote(f"{url}/v2/models/{name}/generate{'_stream' if stream else ''}")
    curl = f"curl -N {page}" if stream else f"curl {page}"
    if manifest.speech is not None and audio is not None:
        end = '", "num_beams": 1}' if stream else '"}'
        body_parts = f"""printf '{{"{AUDIO_FILE}": "'; base64 < {shlex.quote(str(audio))}; printf '{end}'"""
        # With curl's own content type, Triton 24.10 crashes on a body of more than about 4 MB. curl removes line ends.
        return f"({body_parts}) | {curl} -H Content-Type:application/json -d @-"
    body: dict[str, object]
    if manifest.speech is not None:
        body = {AUDIO: SAMPLE_AUDIO}
    elif manifest.image is not None:
        body = {IMAGE: SAMPLE_IMAGE}
    elif manifest.tokenizer is not None and manifest.tokenizer.has_chat_template:
        body = {MESSAGES: json.dumps([{"role": "user", "content": text}], ensure_ascii=False)}
    elif manifest.tokenizer is not None:
        body = {TEXT: text}
    else:
        body = {INPUT_IDS: SAMPLE_IDS}
    if stream:
        body["num_beams"] = 1
    if manifest.sizes.decoder_only:
        body["max_new_tokens"] = 20  # the limit of many checkpoints counts the prompt too
    return f"{curl} -d {shlex.quote(json.dumps(body, ensure_ascii=False))}"
