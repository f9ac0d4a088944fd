"""Comments of sound files: many are refused before FFmpeg compares each with all others; few change no sample."""

from __future__ import annotations

import io
import struct
import time
from typing import Literal

import numpy as np
import pytest

from support.audio import RATE_HZ, Array, chirp, encoded
from tightbeam.deploy.errors import InputError
from tightbeam.deploy.inputs.files import sound_comments, sound_file
from tightbeam.deploy.inputs.files.audio import read_blocks

av = pytest.importorskip("av")

FILES = {
    "flac": ("flac", "flac"),
    "ogg": ("ogg", "libopus"),
    "webm": ("webm", "libopus"),
    "mp3": ("mp3", "libmp3lame"),
    "flv": ("flv", "aac"),
    "caf": ("caf", "pcm_s16le"),
    "tta": ("tta", "tta"),
}


def commented(name: str, count: int, length: int = 1) -> bytes:
    """A file of a second with that many comments, each of a name of its own."""
    kind, codec = FILES[name]
    rate_hz = 48_000 if codec == "libopus" else 44_100
    data = io.BytesIO()
    with av.open(data, "w", format=kind) as file:
        for number in range(count):
            file.metadata[f"k{number:06}"] = "v" * length
        stream = file.add_stream(codec, rate=rate_hz)
        stream.layout = "mono"
        frame = av.AudioFrame.from_ndarray(chirp(1.0, rate_hz)[None], "flt", "mono")
        frame.sample_rate, frame.pts = rate_hz, 0
        for packet in [*stream.encode(frame), *stream.encode(None)]:
            file.mux(packet)
    return data.getvalue()


def read(data: bytes) -> Array:
    return np.concatenate(list(read_blocks(data, RATE_HZ, most_s=60)))


@pytest.mark.parametrize("name", FILES)
def test_comments_change_no_sample(name: str) -> None:
    """Comments of an Ogg file fill several pages."""
    np.testing.assert_array_equal(read(commented(name, 100, 2000)), read(commented(name, 0)))


@pytest.mark.parametrize("name", ["flac", "ogg", "webm"])
def test_many_comments_are_refused_before_they_are_read(name: str) -> None:
    """20,000 took 5 to 7 s, and four times as many 16 times as long."""
    few, many = commented(name, sound_comments.MOST_COMMENTS - 10), commented(name, sound_comments.MOST_COMMENTS + 10)
    assert len(read(few)) == RATE_HZ
    for data in (many, b"ID3\3\0\0\0\0\0\5hello" * 2 + many):
        with pytest.raises(InputError, match=r"cannot be read as audio \(it has more than 4,096 comments\)"):
            read(data)


def test_blocks_of_flac_are_counted_in_matroska() -> None:
    block = struct.pack("<II", 0, 5000) + (struct.pack("<I", 3) + b"a=b") * 5000
    whole = b"fLaC" + b"\x84" + len(block).to_bytes(3, "big") + block
    for begin in (b"", b"\x1aE\xdf\xa3"):
        with pytest.raises(ValueError, match="more than 4,096 comments"):
            sound_comments.without_comments(begin + whole)


def test_comments_of_pages_that_do_not_count_are_not_counted() -> None:
    """FFmpeg passes over a page whose checksum is wrong, and joins those around it."""
    many = commented("ogg", sound_comments.MOST_COMMENTS + 10, 20)
    second = many.index(b"OggS", 1)
    third = many.index(b"OggS", second + 1)
    for inserted in (b"OggS", many[:second][:22] + bytes(4) + many[:second][26:], b"\0" * 100):
        with pytest.raises(ValueError, match="more than 4,096 comments"):
            sound_comments.without_comments(many[:third] + inserted + many[third:])
    spoilt = bytearray(many)
    spoilt[second + 100] ^= 1
    sound_comments.without_comments(bytes(spoilt))


def test_pages_of_ogg_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sound_comments, "MOST_PAGES", 2)
    with pytest.raises(InputError, match="it has more than 2 pages"):
        read(commented("ogg", 0))


def test_a_tag_before_the_sound_is_passed_over() -> None:
    """20,000 comments of an MP3 file took 8 s."""
    plain, begun = commented("mp3", 0), time.thread_time()
    frames = (b"TXXX" + struct.pack(">IH", 10, 0) + b"\0k%06d\0v" % number for number in range(60_000))
    tag = b"".join(frames)
    size = bytes(len(tag) >> shift & 127 for shift in (21, 14, 7, 0))
    np.testing.assert_array_equal(read(b"ID3\3\0\0" + size + tag + plain), read(plain))
    assert time.thread_time() - begun < 2


def tagged(head: bytes, kind: bytes, tag: bytes, sound: bytes) -> bytes:
    """A WAV or AIFF file with a chunk behind its head."""
    order: Literal["little", "big"] = "big" if head == b"FORM" else "little"
    chunk = kind + len(tag).to_bytes(4, order) + tag + bytes(len(tag) % 2)
    return head + (4 + len(chunk) + len(sound)).to_bytes(4, order) + sound[:4] + chunk + sound[4:]


COMMENTS = b"".join(b"TXXX" + struct.pack(">IH", 10, 0) + b"\0k%06d\0v" % number for number in range(20_000))
ID3 = b"ID3\3\0\0" + bytes(len(COMMENTS) >> shift & 127 for shift in (21, 14, 7, 0)) + COMMENTS
INFO = b"INFO" + b"".join(b"%04x" % number + struct.pack("<I", 2) + b"v\0" for number in range(60_000))


@pytest.mark.parametrize(
    ("kind", "chunk", "tag"), [("wav", b"id3 ", ID3), ("wav", b"LIST", INFO), ("aiff", b"ID3 ", ID3)]
)
def test_chunks_of_comments_are_passed_over(kind: str, chunk: bytes, tag: bytes) -> None:
    """20,000 comments took 3 to 4 s, and then the file was refused."""
    data = encoded(chirp(1.0, RATE_HZ), kind=kind, codec="pcm_s16le" if kind == "wav" else "pcm_s16be", rate_hz=RATE_HZ)
    whole, begun = tagged(data[:4], chunk, tag, data[8:]), time.thread_time()
    np.testing.assert_array_equal(read(whole), read(data))
    assert time.thread_time() - begun < 1


@pytest.mark.parametrize("name", ["flv", "caf", "tta"])
def test_a_search_for_sound_is_bounded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = commented(name, 1000)
    assert len(read(data)) >= RATE_HZ
    monkeypatch.setattr(sound_file, "MOST_IDLE_S", 0.0)
    with pytest.raises(InputError, match="it takes too long to find its sound"):
        read(data)
    assert len(np.concatenate(list(read_blocks(data, RATE_HZ)))) >= RATE_HZ  # a file of one's own
