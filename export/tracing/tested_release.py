"""The release of transformers whose models are traced, and the advice if a trace fails with another release."""

from __future__ import annotations

from importlib.metadata import version

from packaging.version import Version

__all__ = ["TESTED", "advice_for_another_release"]

TESTED = "5.24"
"""The release of ``constraints.txt``, and the oldest that ``pyproject.toml`` takes."""


def advice_for_another_release() -> str:
    """The advice beside a failed trace, to install the tested release of transformers; empty if it is installed."""
    installed = Version(version("transformers"))
    if installed.release[:2] == Version(TESTED).release:
        return ""
    return (
        f"transformers {installed} is installed, and this version of Tightbeam was tested with {TESTED}: "
        f"pip install 'transformers=={TESTED}.*', or a newer Tightbeam"
    )
