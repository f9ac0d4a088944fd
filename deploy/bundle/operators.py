"""Version of the operators that the graphs of a bundle were written with."""

from __future__ import annotations

from tightbeam.deploy.bundle.protobuf import content, fields
from tightbeam.deploy.bundle.reader import Bundle
from tightbeam.plugins.schema import DOMAIN, VERSION

__all__ = ["operators_note", "operators_version"]

OPSET_IMPORT, OPSET_DOMAIN, OPSET_VERSION = 8, 1, 2
"""Fields of ONNX's ModelProto and OperatorSetIdProto."""


def operators_version(bundle: Bundle) -> int | None:
    """Return the version of the operators in a bundle's decoder; None if it has none, or cannot be read."""
    try:
        model = memoryview(bundle.file(bundle.manifest.decoder).read_bytes())
        for number, value in fields(model):
            if number == OPSET_IMPORT:
                one = dict(fields(value))
                if content(one.get(OPSET_DOMAIN, memoryview(b""))) == DOMAIN.encode():
                    return int(one[OPSET_VERSION])
    except (OSError, IndexError, KeyError, TypeError, ValueError):  # the runtime has an error for such a file
        return None
    return None


def operators_note(bundle: Bundle) -> str | None:
    """Return a note that a new export would be faster; None for a bundle with the present operators."""
    version = operators_version(bundle)
    if version is None or version >= VERSION:
        return None
    return (
        f"its operators are of version {version}, older than the kernels' {VERSION}: the functions in its graphs run "
        "in their place, slower; export the model again"
    )
