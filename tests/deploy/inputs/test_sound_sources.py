"""Raw samples without a header, and files that are read from a pipe while they come."""

from __future__ import annotations

import io
import os
import struct
import threading
from pathlib import Path

import numpy as np
import pytest

from support.audio import RATE_HZ, chirp, encoded
from tightbeam.deploy.errors import InputError
from tightbeam.deploy.inputs.files.audio import read_blocks
from tightbeam.deploy.inputs.files.sound_source import SAMPLE_FORMATS, RawFormat, SoundSource, is_raw_sound

soundfile = pytest.importorskip("soundfile")
SUBTYPES = {"u8": "PCM_U8", "s16le": "PCM_16", "s32le": "PCM_32", "f32le": "FLOAT"}


def read(source: SoundSource, rate_hz: int = RATE_HZ) -> tuple[np.ndarray, list[str]]:
    """The samples of a source, and its notes."""
    notes: list[str] = []
    return np.concatenate(list(read_blocks(source, rate_hz, on_note=notes.append))), notes


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
    expected = np.concatenate(list(read_blocks(content, RATE_HZ)))
    (tmp_path / "a.pcm").write_bytes(raw)
    sources = [SoundSource(str(tmp_path / "a.pcm"), RawFormat(RATE_HZ, kind, 2))]
    sources.append(SoundSource("pipe", RawFormat(RATE_HZ, kind, 2), io.BytesIO(raw)))
    for source in sources:
        np.testing.assert_array_equal(read(source)[0], expected)
    other = SoundSource("pipe", RawFormat(8000, kind, 2), io.BytesIO(raw))
    assert len(read(other)[0]) == 2 * len(expected), "resampled to the model's rate"


@pytest.mark.parametrize(
    ("kind", "codec"),
    [("wav", "pcm_s16le"), ("flac", "flac"), ("ogg", "libopus"), ("mp3", "libmp3lame"), ("webm", "libopus")],
)
def test_a_stream_is_read_while_it_comes(kind: str, codec: str) -> None:
    """The sound of its first half is there before the second half is written; together they are that of the file."""
    content = encoded(chirp(20.0), kind=kind, codec=codec)
    expected = np.concatenate(list(read_blocks(content, RATE_HZ)))
    reader, writer = os.pipe()
    half, arrived = len(content) // 2, threading.Event()

    def write() -> None:
        with open(writer, "wb") as pipe:
            pipe.write(content[:half])
            pipe.flush()
            assert arrived.wait(60), "no sound came"
            pipe.write(content[half:])

    thread = threading.Thread(target=write)
    thread.start()
    found = []
    with open(reader, "rb") as pipe:
        for block in read_blocks(SoundSource("pipe", stream=pipe, begun=pipe.read(8)), RATE_HZ):
            found.append(block)
            arrived.set()
    thread.join()
    streamed = np.concatenate(found)
    assert 0 <= len(streamed) - len(expected) < 1200  # of MP3 the silence at the end, which its encoder adds
    np.testing.assert_allclose(streamed[: len(expected)], expected, atol=1e-6)


def test_a_wav_stream_states_its_length_or_not() -> None:
    content = written(chirp(0.2), "PCM_16")
    at = content.index(b"data") + 4
    for riff, size in ((0, 0), (0x7FFFFFFF, 0x7FFFFFDB), (0xFFFFFFFF, 0xFFFFFFFF)):
        streamed = content[:4] + struct.pack("<I", riff) + content[8:at] + struct.pack("<I", size) + content[at + 4 :]
        samples, notes = read(SoundSource("pipe", stream=io.BytesIO(streamed)))
        assert len(samples) == len(chirp(0.2)) and notes == []
    samples, notes = read(SoundSource("pipe", stream=io.BytesIO(content[:-1000])))
    assert len(samples) == len(chirp(0.2)) - 500 and notes == ["its end is missing: the file breaks off after 0.2 s"]


def test_samples_that_are_wrong_or_missing(tmp_path: Path) -> None:
    sound = RawFormat(RATE_HZ, "s16le", 2)
    samples, notes = read(SoundSource("pipe", sound, io.BytesIO(bytes(4 * RATE_HZ + 3))))
    assert len(samples) == RATE_HZ and notes == ["its last 3 bytes are not a whole sample of 4 bytes"]
    nan = np.full(9, np.nan, "<f4").tobytes()
    for source, expected in (
        (SoundSource("pipe", sound, io.BytesIO(b"")), "pipe is empty; expected at least one sample"),
        (SoundSource("pipe", RawFormat(RATE_HZ, "f32le"), io.BytesIO(nan)), "pipe holds NaN or infinity"),
        (
            SoundSource("pipe", sound, io.BytesIO(written(chirp(0.1), "PCM_16"))),
            "has a header with its rate and format",
        ),
        (SoundSource(str(tmp_path / "no.pcm"), sound), "there is no file .*no.pcm; expected raw samples"),
        (SoundSource(str(tmp_path), sound), "expected raw samples"),
        (SoundSource("a\0b", sound), "expected raw samples"),
    ):
        with pytest.raises(InputError, match=expected):
            read(source)
    with pytest.raises(InputError, match="is longer than 1 seconds"):
        list(read_blocks(SoundSource("pipe", sound, io.BytesIO(bytes(4 * RATE_HZ + 4))), RATE_HZ, most_s=1))
    assert [name for name in ("a.pcm", "A.RAW", "a.wav", "pcm") if is_raw_sound(name)] == ["a.pcm", "A.RAW"]
