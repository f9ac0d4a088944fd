"""Raw samples without a header, and WAV files that are read from a pipe."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import numpy as np
import pytest

from support.audio import RATE_HZ, chirp
from tightbeam.deploy.errors import InputError
from tightbeam.deploy.inputs.audio_files import audio_blocks
from tightbeam.deploy.inputs.raw_sound import SAMPLE_FORMATS, RawFormat, RawSound, is_raw_sound, wav_beginning

soundfile = pytest.importorskip("soundfile")
SUBTYPES = {"u8": "PCM_U8", "s16le": "PCM_16", "s32le": "PCM_32", "f32le": "FLOAT"}


def read(source: RawSound, rate_hz: int = RATE_HZ) -> tuple[np.ndarray, list[str]]:
    """The samples of a source, and its notes."""
    notes: list[str] = []
    return np.concatenate(list(audio_blocks(source, rate_hz, on_note=notes.append))), notes


def written(wave: np.ndarray, subtype: str, **how: object) -> bytes:
    """A WAV file."""
    data = io.BytesIO()
    soundfile.write(data, wave, RATE_HZ, subtype=subtype, **{"format": "WAV", **how})
    return data.getvalue()


@pytest.mark.parametrize("kind", SAMPLE_FORMATS)
def test_samples_are_those_of_a_file_with_a_header(kind: str, tmp_path: Path) -> None:
    wave = np.stack([chirp(1.7), chirp(1.7, high_hz=300)], axis=1)
    content = written(wave, SUBTYPES[kind])
    raw = content[content.index(b"data") + 8 :]
    expected = np.concatenate(list(audio_blocks(content, RATE_HZ)))
    (tmp_path / "a.pcm").write_bytes(raw)
    sources = [RawSound(str(tmp_path / "a.pcm"), RawFormat(RATE_HZ, kind, 2))]
    sources.append(RawSound("pipe", RawFormat(RATE_HZ, kind, 2), io.BytesIO(raw + b"more"), len(raw)))
    for source in sources:
        np.testing.assert_array_equal(read(source)[0], expected)
    other = RawSound("pipe", RawFormat(8000, kind, 2), io.BytesIO(raw))
    assert len(read(other)[0]) == 2 * len(expected), "resampled to the model's rate"


@pytest.mark.parametrize("kind", SAMPLE_FORMATS)
def test_the_beginning_of_a_wav_stream(kind: str) -> None:
    content = written(np.stack([chirp(0.2), chirp(0.2)], axis=1), SUBTYPES[kind])
    size = len(content) - content.index(b"data") - 8
    listed = content[:12] + b"LIST" + struct.pack("<I", 5) + b"INFO\0\0" + content[12:]
    for given in (content, listed, written(chirp(0.2)[:, None].repeat(2, 1), SUBTYPES[kind], format="WAVEX")):
        stream = io.BytesIO(given)
        begun, found, nbytes = wav_beginning(stream)
        assert found == RawFormat(RATE_HZ, kind, 2) and nbytes == size
        assert begun + stream.read() == given and len(begun) == len(given) - size
    for length in (0, 0x7FFFFFFF, 0xFFFFFFFF):
        at = content.index(b"data") + 4
        assert wav_beginning(io.BytesIO(content[:at] + struct.pack("<I", length) + content[at + 4 :]))[2] is None


def test_other_streams_are_given_back_as_they_are() -> None:
    flac, wide = io.BytesIO(), written(chirp(0.1), "PCM_24")
    soundfile.write(flac, chirp(0.1), RATE_HZ, format="FLAC")
    strange = [b"", b"RIFF", b"RIFF\0\0\0\0WAVEfmt ", b"RIFF\0\0\0\0WAVEjunk\xff\xff\xff\xff" + bytes(99)]
    strange.append(b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0" + bytes(16) + b"data\4\0\0\0abcd")
    good = written(chirp(0.1), "PCM_16")
    strange += [good[:size] for size in (13, 20, 22, 35)]
    for at, kind, values in ((22, "<H", (0, 65535)), (24, "<I", (0, 1, 2**32 - 1))):  # channels, rate
        strange += [good[:at] + struct.pack(kind, value) + good[at + struct.calcsize(kind) :] for value in values]
    for given in (flac.getvalue(), wide, *strange):
        stream = io.BytesIO(given)
        begun, found, _ = wav_beginning(stream)
        assert found is None and begun + stream.read() == given


def test_samples_that_are_wrong_or_missing(tmp_path: Path) -> None:
    sound = RawFormat(RATE_HZ, "s16le", 2)
    samples, notes = read(RawSound("pipe", sound, io.BytesIO(bytes(4 * RATE_HZ + 3))))
    assert len(samples) == RATE_HZ and notes == ["its last 3 bytes are not a whole sample of 4 bytes"]
    nan = np.full(9, np.nan, "<f4").tobytes()
    for source, expected in (
        (RawSound("pipe", sound, io.BytesIO(b"")), "pipe is empty; expected at least one sample"),
        (RawSound("pipe", sound, io.BytesIO(bytes(40)), 80), "pipe is cut short, 40 bytes of its samples are missing"),
        (RawSound("pipe", RawFormat(RATE_HZ, "f32le"), io.BytesIO(nan)), "pipe holds NaN or infinity"),
        (RawSound("pipe", sound, io.BytesIO(written(chirp(0.1), "PCM_16"))), "has a header with its rate and format"),
        (RawSound(str(tmp_path / "no.pcm"), sound), "there is no file .*no.pcm; expected raw samples"),
        (RawSound(str(tmp_path), sound), "expected raw samples"),
        (RawSound("a\0b", sound), "expected raw samples"),
    ):
        with pytest.raises(InputError, match=expected):
            read(source)
    with pytest.raises(InputError, match="is longer than 1 seconds"):
        list(audio_blocks(RawSound("pipe", sound, io.BytesIO(bytes(4 * RATE_HZ + 4))), RATE_HZ, most_s=1))
    assert [name for name in ("a.pcm", "A.RAW", "a.wav", "pcm") if is_raw_sound(name)] == ["a.pcm", "A.RAW"]
