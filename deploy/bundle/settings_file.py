"""JSON files of settings that an export copies from the checkpoint into the bundle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tightbeam.deploy.errors import BundleError

__all__ = ["read_settings"]


def read_settings(path: Path) -> dict[str, Any]:
    """Read the JSON object of a file; return {} for any other value. Raises BundleError if the file cannot be read."""
    try:
        settings = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise BundleError(f"{path} cannot be read as JSON ({error}); export the model again") from error
    return settings if isinstance(settings, dict) else {}
