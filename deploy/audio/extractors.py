"""Choice of the feature extractor of a speech model that takes whole recordings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tightbeam.deploy.audio import filter_bank, normalized_mel, waveform
from tightbeam.deploy.audio.recordings import Extractor, Recordings
from tightbeam.deploy.bundle.reader import Bundle
from tightbeam.deploy.bundle.settings_file import read_settings
from tightbeam.deploy.errors import BundleError

__all__ = ["extractor_of", "recordings_of"]


def recordings_of(bundle: Bundle) -> Recordings:
    """Read the feature extractor of a bundle. Raises BundleError if its settings cannot be read."""
    speech = bundle.manifest.speech
    assert speech is not None
    path = bundle.file(speech)
    return Recordings(extractor_of(read_settings(path), path), bundle.manifest)


def extractor_of(settings: Mapping[str, Any], path: Path) -> Extractor:
    """Make the feature extractor that the settings in the file ``path`` name.

    Raises BundleError for another extractor's settings, and for impossible values.
    """
    default = filter_bank.EXTRACTOR if "num_mel_bins" in settings else waveform.EXTRACTOR  # old files have no name
    kind = settings.get("feature_extractor_type", default)
    if kind == waveform.EXTRACTOR:
        return waveform.Waveform.of(settings, path)
    if kind == filter_bank.EXTRACTOR:
        return filter_bank.FilterBank.of(settings, path)
    if kind in (normalized_mel.EXTRACTOR, normalized_mel.PLAIN):
        return normalized_mel.NormalizedMel.of(settings, path)
    mel = f"{normalized_mel.EXTRACTOR} or {normalized_mel.PLAIN}"
    known = f"{waveform.EXTRACTOR}, {filter_bank.EXTRACTOR}, {mel}"
    raise BundleError(f"{path}: feature_extractor_type is {kind!r}, expected {known}; restore the file")
