"""Checkpoint -> bundle, on the build machine. torch and transformers are imported at the first use.

    from tightbeam.export import export_model
    export_model("path/or/id", "out")

Errors, each a ValueError with a one-line message: ExportError (a checkpoint or an option), PassError of
``tightbeam.graph_passes`` (a graph that cannot be rewritten), BundleError of ``tightbeam.deploy`` (the output).
"""

from typing import TYPE_CHECKING, Any

from tightbeam.export.errors import ExportError

if TYPE_CHECKING:
    from tightbeam.export.api import export_model

__all__ = ["ExportError", "export_model"]


def __getattr__(name: str) -> Any:
    if name == "export_model":
        from tightbeam.export.api import export_model

        return export_model
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
