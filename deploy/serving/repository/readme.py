"""README.md of a served model: the commands of a server, and a request."""

from __future__ import annotations

from pathlib import Path

from tightbeam.deploy.bundle.manifest import Manifest
from tightbeam.deploy.serving.repository.config import ServingSettings
from tightbeam.deploy.serving.repository.shell_commands import local_server_command, request_command, server_command

__all__ = ["readme"]


def readme(manifest: Manifest, settings: ServingSettings, repository: Path) -> str:
    """Return the text of README.md.

    Parameters
    ----------
    manifest
        The bundle's manifest.
    settings
        The served model's settings.
    repository
        The model repository.
    """
    where = str(repository.absolute())
    return f"""# {settings.name}

{manifest.model} ({manifest.family}, variant {manifest.variant}), served by Triton's Python backend.

To try it, on loopback, with a server that `pip install 'tightbeam[server]'` brings (Linux on x86-64):

    {local_server_command(where, settings)}

To serve it with a Triton of your own, with the package `tightbeam` installed for the Python that it runs:

    {server_command(where, settings)}

For a container, see "In a container" in Tightbeam's docs/how-to/serve.md.

A request:

    {request_command(manifest, settings.name, settings.url, stream=settings.stream)}

{_inputs(manifest)}

The settings of `model.generate` are parameters of a request: `"num_beams": 4, "max_new_tokens": 60`. A list is passed
as JSON in a text: `"bad_words_ids": "[[17], [4, 8]]"`. At most {settings.rows(manifest)} rows (samples x beams) are run
together; a request with more beams is refused.

The numbered folders are the model's versions; the newest one is served. If the model's process is killed, a watchdog
asks the server at {settings.url} to reload it. Set TIGHTBEAM_TRITON_URL in the server's environment if its address is
another.
"""


def _inputs(manifest: Manifest) -> str:
    """A sentence on the inputs of a request."""
    if manifest.speech is not None:
        return (
            "`AUDIO_FILE` holds the bytes of a sound or video file, or their base64 in JSON; `AUDIO`, in "
            "its place,\nsamples of one channel in -1..1, at the model's rate."
        )
    if manifest.image is not None:
        return "`IMAGE` holds the bytes of an image file (PNG, JPEG, TIFF, WebP, BMP), or their base64 in JSON."
    if manifest.tokenizer is not None:
        return (
            "`TEXT` holds the text; `INPUT_IDS`, in its place, token ids; `MESSAGES`, in its place, the messages of a "
            "conversation\nas JSON in a text, if the model has a chat template."
        )
    return "`INPUT_IDS` holds token ids, since the model has no tokenizer."
