"""The origin of a bundle: its checkpoint, the time, and the versions of the packages that made it."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from importlib.metadata import version

from tightbeam.deploy.bundle.manifest import Provenance
from tightbeam.export.checkpoint.load import Checkpoint
from tightbeam.export.errors import ExportError

__all__ = ["provenance_of"]

PACKAGES = ("tightbeam", "torch", "transformers", "onnx", "onnxruntime")
TIME = "SOURCE_DATE_EPOCH"
"""Environment variable with the time to write, in seconds since 1970, for builds that are equal byte for byte."""


def provenance_of(checkpoint: Checkpoint) -> Provenance:
    """The origin of a bundle that is made now. Raises ExportError where ``SOURCE_DATE_EPOCH`` is no time."""
    seconds = os.environ.get(TIME)
    try:
        now = datetime.now(UTC) if seconds is None else datetime.fromtimestamp(int(seconds), UTC)
    except (ValueError, OverflowError, OSError):
        raise ExportError(f"{TIME}={seconds!r} is no time; expected seconds since 1970, or unset it") from None
    return Provenance(
        source=checkpoint.source,
        revision=checkpoint.revision,
        created=f"{now:%Y-%m-%dT%H:%M:%SZ}",
        versions={package: version(package) for package in PACKAGES},
    )
