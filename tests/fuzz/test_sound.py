"""Fuzzing of sound files of several containers and codecs, and of streams of them."""

from __future__ import annotations

import io

import numpy as np
import pytest

from support.audio import chirp, encoded
from support.fuzzing import bytes_like, corpus, fuzz
from tightbeam.deploy.inputs.files.audio import read_blocks
from tightbeam.deploy.inputs.files.sound_source import SoundSource

soundfile = pytest.importorskip("soundfile")
pytestmark = [pytest.mark.slow, pytest.mark.fuzz]
FORMATS = [
    *[("WAV", kind) for kind in ("PCM_U8", "PCM_16", "PCM_24", "FLOAT", "ULAW", "IMA_ADPCM", "MS_ADPCM", "GSM610")],
    *[("WAVEX", "PCM_16"), ("RF64", "PCM_16"), ("FLAC", "PCM_16"), ("FLAC", "PCM_24")],
    *[("OGG", "VORBIS"), ("OGG", "OPUS"), ("MP3", "MPEG_LAYER_III")],
]


def valid_files() -> list[bytes]:
    """A few milliseconds of sound in each format; the MP3 file also without the frame that counts the others."""
    found = []
    for kind, subtype in FORMATS:
        for channels in (1, 2):
            if (kind, subtype, channels) == ("WAV", "GSM610", 2):
                continue
            file = io.BytesIO()
            sound = np.stack([chirp(0.03)] * channels, axis=1)
            soundfile.write(file, sound, 16_000, format=kind, subtype=subtype)
            found.append(file.getvalue())
    counting = found[-1].find(b"Xing")
    for kind, codec in (("mp4", "aac"), ("matroska", "flac"), ("webm", "libopus"), ("adts", "aac"), ("asf", "wmav2")):
        found.insert(0, encoded(chirp(0.03), kind=kind, codec=codec))
    return [*found, found[-1][counting + 200 :]]


def test_sound_files() -> None:
    def run(data: bytes) -> None:
        for _ in read_blocks(data, 16_000, most_s=20):
            pass

    known = [*valid_files(), *corpus("sound")]
    fuzz("sound", bytes_like(known), run, first=known)


def test_streams() -> None:
    def run(data: bytes) -> None:
        for _ in read_blocks(SoundSource("standard input", stream=io.BytesIO(data)), 16_000, most_s=20):
            pass

    valid = valid_files()
    fuzz("streams", bytes_like(valid), run, first=valid)
