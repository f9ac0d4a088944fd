"""The feature extractor of a bundle of a speech model that takes whole recordings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tightbeam.deploy.audio.recordings import Recordings
from tightbeam.deploy.audio.waveform import Waveform
from tightbeam.deploy.bundle.reader import Bundle
from tightbeam.deploy.bundle.settings_file import read_settings

__all__ = ["extractor_of", "recordings_of"]


def recordings_of(bundle: Bundle) -> Recordings:
    """Read the feature extractor of a bundle. Raises BundleError where its settings cannot be read."""
    speech = bundle.manifest.speech
    assert speech is not None
    path = bundle.file(speech)
    return Recordings(extractor_of(read_settings(path), path), bundle.manifest)


def extractor_of(settings: Mapping[str, Any], path: Path) -> Waveform:
    """The feature extractor by its settings in the file ``path``. Raises BundleError for others than it can have."""
    return Waveform.of(settings, path)
