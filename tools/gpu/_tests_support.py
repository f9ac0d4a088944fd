"""The modules of tests/support that rehearsals without a GPU run on."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

__all__ = ["tests_support"]

TESTS = str(Path(__file__).resolve().parents[2] / "tests")


def tests_support(name: str) -> Any:
    """Import ``support.<name>`` of the tests."""
    if TESTS not in sys.path:
        sys.path.append(TESTS)
    return importlib.import_module(f"support.{name}")
