"""What an export needs of its machine: packages that write samples, the native library, room on the disk."""

from __future__ import annotations

import importlib
import shutil
from pathlib import Path

from tightbeam.export.checkpoint.files import CheckpointFiles
from tightbeam.export.errors import ExportError
from tightbeam.export.options import ExportOptions
from tightbeam.graph_passes.precision.int4 import BYTES
from tightbeam.graph_passes.precision.lower_precision import INTEGERS, itemsize
from tightbeam.plugins.library import cpu_library

__all__ = ["check_machine", "disk_bytes", "weight_itemsize"]

FLOAT32 = 4


def weight_itemsize(precision: str) -> float:
    """Bytes of a number in products and embeddings; with integers, scales, biases and norms need more."""
    return {"int8": 1, "int4": BYTES}.get(precision) or itemsize(precision)


def check_machine(files: CheckpointFiles, options: ExportOptions, target: Path, *, measures: bool) -> None:
    """Check what the export needs of this machine.

    Parameters
    ----------
    files
        The checkpoint.
    options
        The options of the export.
    target
        The bundle's folder.
    measures
        Errors are measured on samples.

    Raises
    ------
    ExportError
        A package or the native library is missing, or the disk has too little room.
    """
    if options.check and files.family.is_speech:
        _check_package(
            "av",
            "comparing a speech model",
            "av; pip install 'tightbeam[audio]', or export with --no-check",
        )
    if (options.check or measures) and files.family.reads_images:
        _check_package("PIL", "drawing pages to measure with", "pillow; pip install 'tightbeam[image]'")
    try:
        cpu_library()
    except FileNotFoundError as error:
        raise ExportError(str(error)) from None
    _check_disk(files, options, target)


def _check_package(module: str, purpose: str, package_and_fix: str) -> None:
    try:
        importlib.import_module(module)
    except (ImportError, OSError):  # the second without the C library that a package loads
        raise ExportError(f"{purpose} needs the package {package_and_fix}") from None


def disk_bytes(numbers: int, options: ExportOptions) -> int:
    """Compute the bytes that an export of a model of ``numbers`` weights has on the disk at a time, at least.

    The error of a precision is measured with two more copies of the weights, and the products of integers with one.
    """
    whole, own = FLOAT32 * numbers, weight_itemsize(options.precision) * numbers
    if not options.check or (options.precision == "fp32" and not options.int8_caches):
        return round(max(own, whole) if options.precision in INTEGERS else own)
    return round(own + whole + (own if options.precision in INTEGERS else whole))


def _check_disk(files: CheckpointFiles, options: ExportOptions, target: Path) -> None:
    parent = next(folder for folder in target.absolute().parents if folder.exists())
    needed = disk_bytes(files.family.weights(files.declared).total, options)
    try:
        free = shutil.disk_usage(parent).free
    except OSError:  # a file system that does not say
        return
    if free < needed:
        raise ExportError(
            f"the disk of {parent} has {free:,} bytes free, and the export needs {needed:,}, with the copies that it "
            "measures; make room, or choose another --output"
        )
