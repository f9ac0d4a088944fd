"""Sound and video files: their samples, lengths, ends and names, and what a hostile file may not do."""

from __future__ import annotations

import io
import math
import os
import resource
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.audio import RATE_HZ, Array, chirp, encoded
from tightbeam.deploy.errors import InputError
from tightbeam.deploy.inputs.files import sound_file
from tightbeam.deploy.inputs.files.audio import read_blocks, read_clips

soundfile = pytest.importorskip("soundfile")
av = pytest.importorskip("av")

SECONDS = 6
COUNT = SECONDS * RATE_HZ
UNKNOWN = 0xFFFFFFFF


def content(kind: str, rate_hz: int = RATE_HZ, channels: int = 1, **how: Any) -> bytes:
    """A file of six seconds, the second half of which is quiet: a variable bitrate falls there."""
    wave = chirp(SECONDS, rate_hz) * np.repeat(np.float32([1, 0.001]), SECONDS * rate_hz // 2)
    data = io.BytesIO()
    soundfile.write(data, np.stack([wave * (own + 1) / 9 for own in range(channels)], 1), rate_hz, format=kind, **how)
    return data.getvalue()


def read(source: str | bytes, rate_hz: int = RATE_HZ, **how: Any) -> tuple[Array, list[str]]:
    """The samples of a file, and the notes on it."""
    notes: list[str] = []
    return np.concatenate(list(read_blocks(source, rate_hz, on_note=notes.append, **how))), notes


def with_sizes(data: bytes, riff: int, samples: int) -> bytes:
    """A WAV file with other sizes in its header."""
    place = data.index(b"data") + 4
    return data[:4] + struct.pack("<I", riff) + data[8:place] + struct.pack("<I", samples) + data[place + 4 :]


@pytest.mark.parametrize("channels", [1, 2, 3, 9])
@pytest.mark.parametrize(
    ("kind", "subtype"),
    [("WAV", own) for own in ("PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "ULAW")]
    + [("WAVEX", "PCM_16"), ("RF64", "PCM_16"), ("AIFF", "PCM_16"), ("FLAC", "PCM_16"), ("FLAC", "PCM_24")],
)
def test_samples_are_those_of_libsndfile(kind: str, subtype: str, channels: int) -> None:
    """Bit for bit, so that tokens are those of `generate` on the same samples."""
    if kind == "FLAC" and channels == 9:
        pytest.skip("FLAC has eight channels at most")
    data = content(kind, channels=channels, subtype=subtype)
    expected = soundfile.read(io.BytesIO(data), dtype="float32", always_2d=True)[0].mean(axis=1)
    found, notes = read(data)
    np.testing.assert_array_equal(found, expected)
    assert notes == []


@pytest.mark.parametrize(
    ("kind", "codec", "video", "delay"),
    [
        ("mp4", "aac", False, 0),
        ("mp4", "aac", True, 0),
        ("ipod", "alac", False, 0),
        ("mov", "pcm_s24be", True, 0),
        ("webm", "libopus", False, 0),
        ("matroska", "flac", True, 0),
        ("adts", "aac", False, 1024),
        ("asf", "wmav2", False, -2048),
        ("avi", "libmp3lame", True, 1105),
        ("mpegts", "mp2", True, 481),
        ("ac3", "ac3", False, 256),
        ("caf", "alac", False, 0),
        ("ogg", "libopus", False, 0),
        ("wv", "wavpack", False, 0),
        ("mp3", "libmp3lame", False, 0),
    ],
)
def test_the_sound_of_many_kinds_of_file(kind: str, codec: str, video: bool, delay: int) -> None:
    """Sound that FFmpeg encodes comes back, with the delay of an encoder where the file does not state it."""
    wave = chirp(2.0, 48_000, high_hz=3000)
    found, notes = read(encoded(wave, kind=kind, codec=codec, rate_hz=48_000, video=video), 48_000)
    assert abs(len(found) - len(wave)) < 2100 and abs(delay) < 2100
    middle = slice(30_000, 60_000)
    assert np.abs(found[middle.start + delay : middle.stop + delay] - wave[middle]).max() < 0.03
    assert notes == []


CLIPS = [(0.5, 1.25), (1.25, 1.5), (25.0, 26.5), (38.0, 60.0)]
"""Clips of a file of 40 seconds: two that touch, one behind a gap that is worth a seek, and one beyond the end."""


def clips_of(source: Any, clips: Any = CLIPS, rate_hz: int = 48_000) -> tuple[list[Array], list[str]]:
    """The samples of each clip of a recording, and the notes on it."""
    notes: list[str] = []
    return [np.concatenate(list(own)) for own in read_clips(source, rate_hz, clips, on_note=notes.append)], notes


@pytest.mark.parametrize(
    ("kind", "codec", "most"),
    [
        *[("wav", "pcm_s16le", 0), ("flac", "flac", 0), ("mp3", "libmp3lame", 0), ("mp4", "aac", 0.01)],
        *[("adts", "aac", 0.01), ("webm", "libopus", 0.02), ("ogg", "libopus", 0.01), ("mpegts", "mp2", 0)],
    ],
)
def test_a_clip_is_a_part_of_the_whole(kind: str, codec: str, most: float) -> None:
    """But for rounding where packets are decoded from those before them, and a millisecond where times are such."""
    data = encoded(chirp(40.0, 48_000, high_hz=900), kind=kind, codec=codec, rate_hz=48_000)
    whole, _ = read(data, 48_000)
    found, notes = clips_of(data)
    for own, (start_s, end_s) in zip(found, CLIPS, strict=True):
        expected = whole[round(start_s * 48_000) : round(end_s * 48_000)]
        assert abs(len(own) - len(expected)) < 49
        off = [0] if kind != "webm" else range(-48, 49)
        count = min(len(own), len(expected)) - 96
        assert min(np.abs(own[48 + each :][:count] - expected[48:][:count]).max() for each in off) <= most
    assert notes == [f"the clip from 38 to 60 s ends with the recording, at {len(whole) / 48_000:.2f} s"]


def test_a_clip_does_not_read_what_stands_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    data, read_of = encoded(chirp(60.0), kind="wav", codec="pcm_s16le"), list[int]()
    plain = sound_file._Content.read

    def counted(self: Any, size: int) -> bytes:
        found = plain(self, size)
        read_of.append(len(found))
        return found

    monkeypatch.setattr(sound_file._Content, "read", counted)
    clips_of(data, [(50.0, 51.0)], RATE_HZ)
    assert sum(read_of) < len(data) / 4


@pytest.mark.parametrize("fault", ["refused", "elsewhere", "no time"])
def test_a_clip_of_a_file_without_a_seek(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """The file is read from its beginning; a seek that ends behind the clip counts as none."""
    data = encoded(chirp(40.0), kind="wav", codec="pcm_s16le")
    whole, _ = read(data)
    opened: Any = type(av.open(io.BytesIO(data)))
    plain = sound_file.SoundFile._seek

    class Container:
        def __init__(self, file: Any) -> None:
            self._file = file

        def __getattr__(self, name: str) -> Any:
            return getattr(self._file, name)

        def seek(self, offset: int, **how: Any) -> None:
            if fault == "refused":
                raise av.PermissionError(1, "no seek")
            self._file.seek(offset + 10 * RATE_HZ, **how)

    def seek(self: Any, start_s: float) -> None:
        assert isinstance(self._container, opened)
        self._container = Container(self._container)
        if fault == "no time":
            self._origin_s = None
        plain(self, start_s)

    monkeypatch.setattr(sound_file.SoundFile, "_seek", seek)
    found, _ = clips_of(data, [(15.0, 16.0), (30.0, 31.0)], RATE_HZ)
    np.testing.assert_array_equal(found, [whole[15 * RATE_HZ : 16 * RATE_HZ], whole[30 * RATE_HZ : 31 * RATE_HZ]])


def test_clips_of_a_stream_and_of_samples() -> None:
    data = encoded(chirp(40.0), kind="wav", codec="pcm_s16le")
    whole, _ = read(data)
    stream = sound_file.SoundSource("pipe", stream=io.BytesIO(data))
    for source in (stream, whole):
        found, notes = clips_of(source, CLIPS, RATE_HZ)
        for own, (start_s, end_s) in zip(found, CLIPS, strict=True):
            np.testing.assert_array_equal(own, whole[round(start_s * RATE_HZ) : round(end_s * RATE_HZ)])
        assert notes == ["the clip from 38 to 60 s ends with the recording, at 40.00 s"]


@pytest.mark.parametrize(
    ("clips", "expected"),
    [
        ([(6.5, 7.0)], "ends at 6.00 s, before the clip from 6.5 to 7 s; pass clip_timestamps within it"),
        ([(1e308, math.inf)], "ends at 6.00 s, before the clip from 1e.308 s on; pass clip_timestamps within it"),
        (
            [(1.0, 2.0), (500.0, math.inf)],
            "ends at 6.00 s, before the clip from 500 s on; pass clip_timestamps within it",
        ),
        ([(2.0, 2.00001)], "the clip from 2 to 2.00001 s holds no sample of .*; pass a longer one"),
    ],
)
def test_a_clip_without_sound(tmp_path: Path, clips: Any, expected: str) -> None:
    (tmp_path / "a.wav").write_bytes(content("WAV"))
    for source in (str(tmp_path / "a.wav"), chirp(SECONDS)):
        with pytest.raises(InputError, match=expected):
            clips_of(source, clips, RATE_HZ)


def test_the_limit_of_seconds_counts_what_is_decoded_before_a_clip() -> None:
    """But not what a seek leaves out."""
    data = encoded(chirp(60.0, 8000), kind="wav", codec="pcm_s16le", rate_hz=8000)
    assert len(next(iter(clips_of(data, [(55.0, 57.0)], 8000)[0]))) == 16_000
    for _ in read_clips(data, 8000, [(55.0, 57.0)], most_s=30):
        pass
    stream = sound_file.SoundSource("pipe", stream=io.BytesIO(data))
    with pytest.raises(InputError, match="longer than 30 seconds"):
        for blocks in read_clips(stream, 8000, [(55.0, 57.0)], most_s=30):
            list(blocks)


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
    for source in (data, str(tmp_path / "a.wav"), data[:place] + chunk + data[place:]):
        found, notes = read(source)
        np.testing.assert_array_equal(found, expected)
        assert notes == []


@pytest.mark.parametrize("kind", ["WAV", "FLAC", "MP3"])
def test_a_file_without_sound(kind: str) -> None:
    data = encoded(np.zeros(0, np.float32), kind=kind.lower(), codec="pcm_s16le" if kind == "WAV" else kind.lower())
    with pytest.raises(InputError, match=r"is empty; expected at least one sample|is empty, it has no bytes"):
        read(data)


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
    """Three versions of MPEG. No note: nobody can know that its end is missing."""
    wave = np.stack([chirp(SECONDS, rate_hz)] * channels)
    data = encoded(wave, kind="mp3", codec="libmp3lame", rate_hz=rate_hz, write_xing="0", id3v2_version="0")
    title = b"ID3\x03\0\0" + bytes([0, 0, 4, 0]) + bytes(4 << 7)
    for source in (data, title + data, data + b"TAG" + bytes(125)):
        found, notes = read(source, rate_hz)
        assert 0 <= len(found) - len(wave[0]) < 3 * 1152 and notes == []
    halves, notes = read(data[: len(data) // 2], rate_hz)
    assert 0.4 < len(halves) / len(wave[0]) < 0.6 and notes == []


@pytest.mark.parametrize(
    ("kind", "codec"),
    [
        *[("wav", "pcm_s16le"), ("wav", "pcm_f32le"), ("aiff", "pcm_s16be"), ("flac", "flac"), ("ogg", "libopus")],
        *[("mp3", "libmp3lame"), ("webm", "libopus"), ("matroska", "aac"), ("caf", "pcm_s16le"), ("wv", "wavpack")],
    ],
)
def test_an_end_that_is_missing_is_noted(kind: str, codec: str) -> None:
    data = encoded(chirp(SECONDS, 48_000), kind=kind, codec=codec, rate_hz=48_000)
    whole, notes = read(data, 48_000)
    assert abs(len(whole) - SECONDS * 48_000) < 2048 and notes == []
    found, notes = read(data[: len(data) * 2 // 3], 48_000)
    assert 0.3 * len(whole) < len(found) < 0.9 * len(whole)
    assert len(notes) == 1 and " is missing: the file " in notes[0]
    assert f" {len(found) / 48_000:.1f} s" in notes[0]


def test_a_broken_place_is_left_out_and_noted() -> None:
    data = bytearray(content("FLAC", 48_000))
    data[len(data) // 4 : len(data) // 4 + 9000] = bytes(9000)
    found, notes = read(bytes(data), 48_000)
    assert 0.7 * 48_000 * SECONDS < len(found) < 0.95 * 48_000 * SECONDS
    assert notes == [f"sound is missing: the file has {len(found) / 48_000:.1f} s of 6.0 s"]
    data = bytearray(encoded(chirp(SECONDS), kind="adts", codec="aac"))
    data[len(data) // 4 : len(data) // 4 + 60] = bytes(60)
    assert "of its 9" in read(bytes(data))[1][0] and "cannot be decoded, and are left out" in read(bytes(data))[1][0]


def test_a_header_without_the_rest() -> None:
    data = encoded(chirp(1.0), kind="mp4", codec="aac")  # its index is at its end
    for broken in (data[: len(data) // 2], content("OGG")[:60]):
        with pytest.raises(
            InputError, match=r"^the recording cannot be read as audio \([^\n]+; expected a sound or video"
        ):
            read(broken)


def test_the_rate_may_change_in_the_middle() -> None:
    """Two files of AAC in one, the second at another rate and with two channels."""
    parts = [chirp(1.0, 22_050), np.stack([chirp(1.0, 44_100)] * 2)]
    made = [
        encoded(wave, kind="adts", codec="aac", rate_hz=rate)
        for wave, rate in zip(parts, (22_050, 44_100), strict=True)
    ]
    first, second = (read(own)[0] for own in made)
    found, notes = read(b"".join(made))
    assert abs(len(found) - len(first) - len(second)) < 1200 and notes == []
    np.testing.assert_allclose(found[: len(first) - 2000], first[:-2000], atol=1e-6)
    assert np.abs(found[-12_000:-2000]).max() > 0.3
    with pytest.raises(InputError, match="longer than 2 seconds of 2 channels at 44,100 Hz"):
        read(b"".join(made), most_s=1.6)


def test_of_several_streams_one_is_read_and_noted() -> None:
    first, second = chirp(1.0), chirp(2.0, high_hz=300)
    found, notes = read(encoded(first, second, kind="matroska", codec="flac", video=True))
    assert notes == ["it has 2 streams of sound; number 1 is read"]
    np.testing.assert_allclose(found, first, atol=1e-4)


def test_a_video_without_sound_is_refused() -> None:
    with pytest.raises(InputError, match=r"cannot be read as audio \(it has video and no sound\); expected a sound"):
        read(encoded(kind="mp4", codec="aac", video=True))


@pytest.mark.parametrize("count", [1, 3, 20, 100, 400])
@pytest.mark.parametrize("rate_hz", [8000, 44_100, 768_000])
def test_short_sound_is_resampled(count: int, rate_hz: int) -> None:
    """FFmpeg gives nothing of less sound than its filter is long."""
    found, _ = read(encoded(np.full(count, 0.5, np.float32), kind="wav", codec="pcm_f32le", rate_hz=rate_hz))
    assert len(found) == -(-count * RATE_HZ // rate_hz)
    assert found.max() > 0.2 or count < 100


@pytest.mark.parametrize("found_hz", [8_000, 22_254, 44_100, 44_101, 48_000, 192_000, 767_999])
def test_resampling(found_hz: int) -> None:
    """Tones stay below 0.9 of the highest frequency of both rates, and are gone above 1.1 of it, for any two rates; and
    the blocks do not matter."""

    def tone(hz: float) -> Array:
        return np.sin(2 * np.pi * hz * np.arange(found_hz // 2) / found_hz).astype(np.float32)

    def resampled(wave: Array, parts: int) -> Array:
        blocks = ((found_hz, part) for part in np.array_split(wave, parts))
        return np.concatenate(list(sound_file.at_rate(blocks, RATE_HZ)))

    highest_hz = min(found_hz, RATE_HZ) / 2
    within = tone(0.9 * highest_hz)
    found = resampled(within, 1)
    assert len(found) == -(-len(within) * RATE_HZ // found_hz)
    np.testing.assert_array_equal(resampled(within, 7), found)
    exact = np.sin(2 * np.pi * 0.9 * highest_hz * np.arange(len(found)) / RATE_HZ)
    assert np.abs(found - exact)[500:-500].max() < 0.01
    if found_hz > RATE_HZ * 1.2:
        assert np.abs(resampled(tone(1.1 * highest_hz), 1))[500:-500].max() < 1e-4


@pytest.mark.parametrize(
    "data",
    [
        b"#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\nfile://%s\n#EXT-X-ENDLIST\n",
        b"#EXTM3U\n#EXTINF:10,\nhttp://127.0.0.1:9/a.wav\n",
        b"ffconcat version 1.0\nfile '%s'\n",
        b"v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\nc=IN IP4 127.0.0.1\r\nm=audio 9 RTP/AVP 0\r\n",
        b'<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011"><Period/></MPD>',
        b"%s",
    ],
)
def test_a_file_that_names_others_is_refused(tmp_path: Path, data: bytes) -> None:
    """Playlists, lists of files and addresses; by content and by name."""
    other = tmp_path / "other.wav"
    other.write_bytes(content("WAV"))
    listed = data.replace(b"%s", os.fsencode(other))
    for name in ("list.m3u8", "list.wav"):
        (tmp_path / name).write_bytes(listed)
    for source in (listed, str(tmp_path / "list.m3u8"), str(tmp_path / "list.wav")):
        with pytest.raises(InputError, match=r"cannot be read as audio \(its format is not one that is read"):
            read(source)


def stating(samples: int, tracks: int = 1) -> bytes:
    """An MPEG-4 file of less than 1 kB a track whose index has that many samples."""
    silence = np.zeros(1600, np.float32)
    data = bytearray(encoded(*[silence] * tracks, kind="mp4", codec="aac"))
    place = 0
    for _ in range(tracks):
        for box, at, values in (("stts", 12, (samples,)), ("stsc", 16, (samples,)), ("stsz", 8, (1, samples))):
            found = data.index(box.encode(), place)
            data[found + at : found + at + 4 * len(values)] = struct.pack(f">{len(values)}I", *values)
        place = data.index(b"stsz", place) + 4
    return bytes(data)


def test_an_index_that_a_header_states_takes_little_memory() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for count, tracks in ((80_000_000, 1), (400_000, 15), (4_000_000_000, 1)):
        with pytest.raises(InputError, match=r"cannot be read as audio|is empty|longer than"):
            read(stating(count, tracks), most_s=3600)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 800 << (20 if sys.platform == "darwin" else 10)
    with pytest.raises(InputError, match="cannot be read as audio"):
        read(stating(1600, 17), most_s=3600)


def repeated(times: int) -> bytes:
    """An MPEG-4 file of 20 seconds whose edit list plays them that many times."""
    data = bytearray(encoded(chirp(20.0), kind="mp4", codec="aac"))
    place = data.index(b"elst") + 8
    assert struct.unpack_from(">I", data, place) == (1,)
    made = struct.pack(">I", times) + bytes(data[place + 4 : place + 16]) * times
    for box in (b"moov", b"trak", b"edts", b"elst"):  # each holds the next one
        at = data.index(box) - 4
        struct.pack_into(">I", data, at, struct.unpack_from(">I", data, at)[0] + len(made) - 16)
    data[place : place + 16] = made
    return bytes(data)


def test_an_edit_list_counts_as_the_sound_that_it_plays() -> None:
    once, notes = read(repeated(1))
    assert abs(len(read(repeated(2))[0]) - 2 * len(once)) < 2048 and notes == []
    with pytest.raises(InputError, match="is longer than 60 seconds; cut it into pieces"):
        read(repeated(10_000), most_s=60)


def test_sound_that_is_repeated_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file may state that its parts are played again: what is read of it is bounded."""
    monkeypatch.setattr(sound_file, "READ_TIMES", 0)
    monkeypatch.setattr(sound_file, "READ_MORE", 50_000)
    with pytest.raises(InputError, match=r"cannot be read as audio \(its parts are to be read over and over\)"):
        read(content("WAV"))


@pytest.mark.skipif(sys.platform != "linux", reason="names of files are bytes on Linux")
def test_the_name_of_a_file_is_any_bytes(tmp_path: Path) -> None:
    name = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9\n.wav")
    Path(name).write_bytes(content("WAV"))
    assert len(read(name)[0]) == COUNT


def test_a_title_is_any_bytes() -> None:
    data = content("WAV")
    title = b"LIST" + struct.pack("<I", 16) + b"INFOINAM" + struct.pack("<I", 4) + b"\xe9\xff\xfe\0"
    assert len(read(data[:12] + title + data[12:])[0]) == COUNT


@pytest.mark.parametrize(
    ("name", "hint"), [("a.pcm", "; run-model reads raw samples with --sample-rate HZ"), ("a.wav", "")]
)
def test_raw_samples_without_a_rate_name_the_option(tmp_path: Path, name: str, hint: str) -> None:
    path = tmp_path / name
    path.write_bytes(bytes(range(200)))
    with pytest.raises(InputError) as caught:
        list(read_blocks(str(path), 16_000))
    assert str(caught.value).partition("such as WAV, FLAC, MP3, OGG, M4A or WebM")[2] == hint


@pytest.mark.parametrize("samples", [[[3e38, 3e38]], [[np.nan, 0]], [[np.inf, -np.inf]]])
def test_samples_beyond_float32_are_refused_without_a_warning(samples: list[list[float]]) -> None:
    data = io.BytesIO()
    soundfile.write(data, np.float32(samples * 9), RATE_HZ, format="WAV", subtype="FLOAT")
    with pytest.raises(InputError, match="holds NaN or infinity"):
        read(data.getvalue())
