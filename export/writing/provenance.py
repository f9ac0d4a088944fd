"""The origin of a bundle: its checkpoint, the time, and the versions of the packages that made it."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version

from tightbeam.deploy.bundle.manifest import Provenance
from tightbeam.export.checkpoint.load import Checkpoint
from tightbeam.export.writing.creation_time import creation_time

__all__ = ["provenance_of"]

PACKAGES = ("tightbeam", "torch", "transformers", "onnx", "onnxruntime")


def provenance_of(checkpoint: Checkpoint) -> Provenance:
    """The origin of a bundle that is made now. Raises ExportError if ``SOURCE_DATE_EPOCH`` is not a time."""
    return Provenance(
        source=checkpoint.source,
        revision=checkpoint.revision,
        created=creation_time(),
        versions={package: _version(package) for package in PACKAGES},
    )


def _version(package: str) -> str:
    """The version of a package; of the module, if a distribution of another name (onnxruntime-gpu) installs it."""
    try:
        return version(package)
    except PackageNotFoundError:
        return str(getattr(import_module(package), "__version__", "unknown"))
