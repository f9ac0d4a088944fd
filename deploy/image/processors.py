"""The image processor of a bundle, by the name in its settings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tightbeam.deploy.bundle.settings_file import read_settings
from tightbeam.deploy.image.patches import PATCHES, PatchProcessor
from tightbeam.deploy.image.processor import ImageProcessor

__all__ = ["AnyProcessor", "processor_of", "read_processor"]

AnyProcessor = ImageProcessor | PatchProcessor


def read_processor(path: Path) -> AnyProcessor:
    """Read a preprocessor_config.json. Raises BundleError as ``processor_of``, and for a file that cannot be read."""
    return processor_of(read_settings(path), path)


def processor_of(settings: Mapping[str, Any], path: Path) -> AnyProcessor:
    """The image processor by its settings in the file ``path``. Raises BundleError for those that it cannot have."""
    name = settings.get("image_processor_type", settings.get("feature_extractor_type"))
    kind = PatchProcessor if isinstance(name, str) and name.startswith(PATCHES) else ImageProcessor
    return kind.of(settings, path)
