"""Sound files as programs leave them that write to a pipe, or that are stopped: lengths, ends and names."""

from __future__ import annotations

import io
import os
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.audio import RATE_HZ, Array, chirp
from tightbeam.deploy.errors import InputError
from tightbeam.deploy.inputs.audio_files import read_blocks
from tightbeam.deploy.inputs.containers import OpenEnded, _frame_bytes

soundfile = pytest.importorskip("soundfile")

SECONDS = 6
COUNT = SECONDS * RATE_HZ


def content(kind: str, rate_hz: int = RATE_HZ, channels: int = 1, **how: Any) -> bytes:
    """A file of six seconds, the second half of which is quiet: a variable bitrate falls there."""
    wave = chirp(SECONDS, rate_hz) * np.repeat(np.float32([1, 0.001]), SECONDS * rate_hz // 2)
    data = io.BytesIO()
    soundfile.write(data, np.stack([wave] * channels, axis=1), rate_hz, format=kind, **how)
    return data.getvalue()


def read(source: str | bytes, rate_hz: int = RATE_HZ) -> tuple[Array, list[str]]:
    """The samples of a file, and the notes on it."""
    notes: list[str] = []
    return np.concatenate(list(read_blocks(source, rate_hz, on_note=notes.append))), notes


def without_count(data: bytes) -> bytes:
    """An MP3 file without its first frame, which counts the others."""
    return data[_frame_bytes(data) :]


def with_sizes(data: bytes, riff: int, samples: int) -> bytes:
    """A WAV file with other sizes in its header."""
    place = data.index(b"data") + 4
    return data[:4] + struct.pack("<I", riff) + data[8:place] + struct.pack("<I", samples) + data[place + 4 :]


UNKNOWN = 0xFFFFFFFF


@pytest.mark.parametrize(
    ("riff", "samples"), [(UNKNOWN, UNKNOWN), (0, 0), (UNKNOWN, 0), (8, 0), (36, 0), (0x7FFFFFFF, 0x7FFFFFDB)]
)
def test_a_wav_file_that_was_streamed_is_read_to_its_end(tmp_path: Path, riff: int, samples: int) -> None:
    """By its content and by its name; with a chunk before the samples, as ffmpeg writes it."""
    data = with_sizes(content("WAV", subtype="FLOAT"), riff, samples)
    place = data.index(b"data")
    chunk = b"LIST" + struct.pack("<I", 26) + b"INFOISFT" + struct.pack("<I", 14) + b"Lavf58.29.100\0"
    (tmp_path / "a.wav").write_bytes(data)
    expected, _ = read(content("WAV", subtype="FLOAT"))
    sources = [data, str(tmp_path / "a.wav")]
    if riff not in (8, 36):  # the size of a header that has nothing else
        sources.append(data[:place] + chunk + data[place:])
    for source in sources:
        found, notes = read(source)
        np.testing.assert_array_equal(found, expected)
        assert notes == []


def test_an_empty_wav_file_stays_empty() -> None:
    data = io.BytesIO()
    soundfile.write(data, np.zeros(0, np.float32), RATE_HZ, format="WAV")
    with pytest.raises(InputError, match="is empty; expected at least one sample"):
        read(data.getvalue())


def test_a_flac_file_that_was_streamed_is_read_to_its_end() -> None:
    """Its header has no number of samples; the limit holds all the same."""
    data = content("FLAC")
    streamed = data[:21] + bytes([data[21] & 0xF0, 0, 0, 0, 0]) + data[26:]
    np.testing.assert_array_equal(read(streamed)[0], read(data)[0])
    for source in (data, streamed):
        with pytest.raises(InputError, match="longer than 5 seconds"):
            list(read_blocks(source, RATE_HZ, most_s=5))


@pytest.mark.parametrize(("rate_hz", "channels"), [(44_100, 2), (16_000, 1), (8_000, 2)])
def test_an_mp3_file_without_a_count_of_frames_is_read_to_its_end(rate_hz: int, channels: int) -> None:
    """Three versions of MPEG; by the bitrate of the first frame it would be shorter, or much longer."""
    whole, notes = read(content("MP3", rate_hz, channels, bitrate_mode="VARIABLE"), rate_hz)
    data = without_count(content("MP3", rate_hz, channels, bitrate_mode="VARIABLE"))
    title = b"ID3\x03\0\0" + bytes([0, 0, 4, 0]) + bytes(4 << 7)
    for source in (data, title + data, data + b"TAG" + bytes(125)):
        found, noted = read(source, rate_hz)
        assert 0 <= len(found) - len(whole) < 3 * 1152 and notes == noted == []
        assert not np.asarray(found[len(whole) :]).round(2).any()
    halves, notes = read(data[: len(data) // 2], rate_hz)
    assert len(halves) < len(whole) and notes == []
    found, noted = read(data + b"APETAGEX" + np.random.default_rng(0).bytes(5000), rate_hz)
    assert 0 <= len(found) - len(whole) < 3 * 1152
    assert len(noted) == 1 and "holds no sound that can be read behind 6." in noted[0]


@pytest.mark.parametrize(("kind", "subtype"), [("OGG", "VORBIS"), ("OGG", "OPUS"), ("MP3", None)])
def test_an_end_that_is_missing_is_noted(kind: str, subtype: str | None) -> None:
    data = content(kind, 48_000, subtype=subtype)
    whole, notes = read(data, 48_000)
    assert (len(whole), notes) == (SECONDS * 48_000, [])
    found, notes = read(data[: len(data) * 2 // 3], 48_000)
    assert 0 < len(found) < 0.9 * len(whole)
    assert len(notes) == 1 and notes[0].startswith("its end is missing: the file")
    assert f" {len(found) / 48_000:.1f} s" in notes[0]


@pytest.mark.parametrize("kind", ["WAV", "FLAC"])
def test_a_file_that_knows_better_is_refused(kind: str) -> None:
    data = content(kind)
    with pytest.raises(InputError, match=r"is cut short|cannot be read as audio \(.*lost sync"):
        read(data[: len(data) * 2 // 3])


def test_bytes_in_place_of_a_beginning() -> None:
    file = OpenEnded(io.BytesIO(b"0123456789"), b"abc", 5)
    assert (file.read(), file.tell(), file.read(2)) == (b"abc", 3, b"56")
    assert (file.seek(-1, os.SEEK_END), file.read(9)) == (7, b"9")
    buffer = bytearray(9)
    file.seek(1)
    assert (file.readinto(memoryview(buffer)), bytes(buffer)) == (7, b"bc56789\0\0")


@pytest.mark.skipif(sys.platform != "linux", reason="names of files are bytes on Linux")
def test_the_name_of_a_file_is_any_bytes(tmp_path: Path) -> None:
    name = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9\n.wav")
    Path(name).write_bytes(content("WAV"))
    assert len(read(name)[0]) == COUNT


@pytest.mark.parametrize(
    ("name", "hint"), [("a.pcm", "; run-model reads raw samples with --sample-rate HZ"), ("a.wav", "")]
)
def test_raw_samples_without_a_rate_name_the_option(tmp_path: Path, name: str, hint: str) -> None:
    path = tmp_path / name
    path.write_bytes(bytes(range(200)))
    with pytest.raises(InputError) as caught:
        list(read_blocks(str(path), 16_000))
    assert str(caught.value).partition("expected a WAV, FLAC, OGG or MP3 file")[2] == hint


@pytest.mark.parametrize("samples", [[[3e38, 3e38]], [[np.nan, 0]], [[np.inf, -np.inf]]])
def test_samples_beyond_float32_are_refused_without_a_warning(samples: list[list[float]]) -> None:
    data = io.BytesIO()
    soundfile.write(data, np.float32(samples * 9), RATE_HZ, format="WAV", subtype="FLOAT")
    with pytest.raises(InputError, match="holds NaN or infinity"):
        read(data.getvalue())
