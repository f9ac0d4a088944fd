"""Sound and video files as samples, read by FFmpeg through PyAV, whole or in clips.

Files may be hostile. FFmpeg gets a file without a name, so that it opens no other; only the formats and codecs that are
listed here are read; and what a file may make it read, repeat and allocate is bounded.
"""

from __future__ import annotations

import ctypes
import io
import math
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import numpy as np
import numpy.typing as npt

from tightbeam.deploy.errors import InputError, first_line
from tightbeam.deploy.inputs.files.sound_comments import without_comments
from tightbeam.deploy.inputs.files.sound_source import SoundSource

if TYPE_CHECKING:
    from av import AudioFrame, AudioStream, Packet
    from av.container import InputContainer

__all__ = ["Channels", "Resampler", "SoundFile", "UnreadableError", "at_rate"]

Channels = npt.NDArray[np.float32]
"""Samples float32 [n, channels] in -1..1."""
Samples = npt.NDArray[np.float32]

INSTALL = "pip install 'tightbeam[audio]'"
FORMATS = (
    "3g2 3gp aac ac3 aiff amr amrnb amrwb ape asf au avi avr caf dsf dss dts dtshd eac3 flac flv gsm iff ilbc ircam "
    "loas m4a matroska mj2 mlp mov mp3 mp4 mpc mpc8 mpeg mpegts mxf nistsphere ogg oma paf pvf qcp rm sox tak "
    "truehd tta voc w64 wav webm wtv wv xwma"
)
"""Formats that are read, by FFmpeg's names. None of them is a playlist or refers to other files."""
CODECS = (
    "8svx_exp 8svx_fib aac aac_latm ac3 adpcm_ima_qt adpcm_ima_wav adpcm_ms adpcm_sbpro_2 adpcm_sbpro_3 "
    "adpcm_sbpro_4 adpcm_swf adpcm_yamaha alac amrnb amrwb ape atrac1 atrac3 atrac3plus cook dca dsd_lsbf "
    "dsd_lsbf_planar dsd_msbf dsd_msbf_planar dss_sp dvaudio eac3 evrc flac g722 g723_1 g726 g726le g729 gsm gsm_ms "
    "ilbc libopus mace3 mace6 mlp mp1 mp1float mp2 mp2float mp3 mp3float mpc7 mpc8 nellymoser opus pcm_alaw "
    "pcm_bluray pcm_dvd pcm_f32be pcm_f32le pcm_f64be pcm_f64le pcm_mulaw pcm_s16be pcm_s16be_planar pcm_s16le "
    "pcm_s16le_planar pcm_s24be pcm_s24le pcm_s24le_planar pcm_s32be pcm_s32le pcm_s32le_planar pcm_s64be pcm_s64le "
    "pcm_s8 pcm_s8_planar pcm_u16be pcm_u16le pcm_u24be pcm_u24le pcm_u32be pcm_u32le pcm_u8 qcelp qdm2 qdmc ralf "
    "real_144 real_288 sipr speex tak truehd truespeech tta vorbis wavpack wmalossless wmapro wmav1 wmav2 wmavoice"
)
"""Codecs that are read, by FFmpeg's names; none of them is for video."""
ESTIMATED = ("aac", "ac3", "amr", "amrnb", "amrwb", "dts", "eac3", "loas", "mpeg", "mpegts", "truehd")
"""Formats that state no length: FFmpeg estimates it by the bitrate."""
MOST_STREAMS, MOST_STREAMS_LIMITED = 1000, 16
"""Streams of a file, and of one whose length is limited."""
MOST_BYTES, MOST_BYTES_LIMITED = 512 << 20, 16 << 20
"""Bytes that FFmpeg may allocate at once, and for a file whose length is limited: a header of a few bytes may state an
index of any length."""
READ_TIMES, READ_MORE = 16, 64 << 20
"""Bytes read of a file, as times of its length and more: it is read once, but for its index and what is seen at places
that are passed over."""
MOST_IDLE_S = 1.0
"""Seconds of processor time until a file whose length is limited gives sound, and then further sound."""
IDLE_PACKETS, PACKET_SAMPLES = 5000, 8
"""Packets that give no sound, and the fewest samples that a packet gives otherwise."""
PACKET_BYTES = 1 << 14
"""Bytes of WAV samples that are read together; more, of which each read needs new memory, take twice the time."""
PROBE_PACKETS = 4
"""Packets that are searched for another codec than the one stated: FFmpeg takes every WAV file for possible DTS."""
BLOCK, BLOCK_CHANNELS = 1 << 16, 8
"""Samples of each channel that are yielded together from a file of up to ``BLOCK_CHANNELS`` channels."""
LEAST_MISSING_S = 0.25
"""Seconds by which a file must be shorter than it states: some encoders count their delay."""
HEAD_BYTES = 12
HEADERS = (b"RIFF", b"RF64", b"fLaC", b"OggS", b"ID3")
"""Beginnings of files that are not raw samples."""
OPEN_ENDED_BYTES = 0x7FFFF000
"""Programs write this size or a larger one into a WAV file, if they do not know the number of samples yet."""
SEEK_S, PREROLL_S = 10.0, 1.0
"""Seconds between clips from which on a seek is worth it, and those before a clip that are decoded then: packets of
many codecs need some before them."""
BLOCK_S = 0.5
"""Seconds of a stream that are waited for before they go on."""
OGG_PAGE_BYTES, LAST_PAGE = 65_307, 4
"""Bytes of the longest page of an OGG file, and the flag of the last one."""
FILTER = 64
"""Taps of the resampling filter at the lower rate: 0.03 dB are lost at 0.9 of the highest frequency that both rates
have, and 94 dB at 1.1 of it."""


class UnreadableError(ValueError):
    """The reason why a file has no sound that can be read, without the file's name."""


def _av() -> Any:
    """Import PyAV. Raises InputError without it."""
    try:
        import av
    except (ImportError, OSError):  # OSError: without its C libraries
        raise InputError(f"reading audio needs the package av, which is not installed; {INSTALL}") from None
    return av


class _Content:
    """A file object without a name, of which a bounded number of bytes is read.

    Parameters
    ----------
    file
        The file, or a stream of which ``begun`` was read already.
    is_stream
        It is read while it comes, without seeking.
    most_idle_s
        Seconds of processor time of the thread from `begin` to its last read.

    Attributes
    ----------
    head : bytes
        The beginning of the file.
    length : int
        Bytes of the file; of a stream those that were read.
    fault : Exception or None
        Why reading ended before the end.
    """

    def __init__(
        self, file: BinaryIO, begun: bytes = b"", *, is_stream: bool = False, most_idle_s: float = math.inf
    ) -> None:
        self._file, self._is_stream, self._most_idle_s = file, is_stream, most_idle_s
        self._read = getattr(file, "read1", file.read) if is_stream else file.read
        self._begun = self.head = begun + file.read(max(0, HEAD_BYTES - len(begun)))
        self.length, self._left, self.fault = 0, math.inf, cast(Exception | None, None)
        if not is_stream:
            self.length, self._begun = file.seek(0, os.SEEK_END), b""
            self._left = READ_TIMES * self.length + READ_MORE
            file.seek(0)
        self.begin()

    def begin(self) -> None:
        """Count processor time from now on."""
        self._begun_s = time.thread_time()

    def read(self, size: int) -> bytes:
        try:
            found, self._begun = self._begun or self._read(size), b""
        except (OSError, ValueError) as error:  # PyAV prints an error of its caller, if FFmpeg goes on after it
            self.fault, found = error, b""
        self._left -= len(found)
        if self._left < 0:
            self.fault, found = UnreadableError("its parts are to be read over and over"), b""
        elif time.thread_time() - self._begun_s > self._most_idle_s:
            self.fault, found = UnreadableError("it takes too long to find its sound"), b""
        if self._is_stream:
            self.length += len(found)
        return found

    def seekable(self) -> bool:
        return not self._is_stream

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def breaks_off(self, kind: str) -> bool:
        """True for a WAV file that is shorter than it states, or an OGG file without a last page: FFmpeg takes their
        length from what there is."""
        if kind == "wav":
            return self.length + 1 < 8 + int.from_bytes(self.head[4:8], "little") < OPEN_ENDED_BYTES
        if kind != "ogg" or self._is_stream:
            return False
        self._file.seek(max(0, self.length - OGG_PAGE_BYTES))
        tail = self._file.read()
        page = tail[max(0, tail.rfind(b"OggS")) :]
        return not (len(page) > 5 and page[5] & LAST_PAGE)


class SoundFile:
    """A sound or video file whose sound is read in order of time; leaving the context closes it.

    Parameters
    ----------
    source : str, bytes or SoundSource
        Name or content of the file, raw samples, or a stream.
    is_limited : bool
        The length of the sound is limited: the file may be a stranger's.

    Attributes
    ----------
    rate_hz, channels : int
        Samples a second, and channels, as the header states them.
    stated_s : float
        Seconds of sound that the header states; 0 if it states no length, or may be wrong.
    decoded_s : float
        Seconds of sound that were decoded so far, those between clips among them.
    end_s : float or None
        The end of the sound in seconds, once it is reached.
    notes : list of str
        What a user should know of the file, once it is read.

    Raises
    ------
    InputError
        The package is missing.
    OSError, UnreadableError
        The file cannot be opened, or has no sound that can be read.
    """

    def __init__(self, source: str | bytes | SoundSource, *, is_limited: bool = False) -> None:
        self._av = av = _av()
        self._most_bytes, self._is_limited = MOST_BYTES_LIMITED if is_limited else MOST_BYTES, is_limited
        with suppress(AttributeError):  # a system on which it is not found among the libraries that PyAV has loaded
            ctypes.CDLL(av._core.__file__).av_max_alloc(ctypes.c_size_t(self._most_bytes))
        options = {"format_whitelist": FORMATS.replace(" ", ","), "codec_whitelist": CODECS.replace(" ", ",")}
        options |= {"protocol_whitelist": "none", "max_probe_packets": str(PROBE_PACKETS)}
        options["max_streams"] = str(MOST_STREAMS_LIMITED if is_limited else MOST_STREAMS)
        self._options, self._bytes = options, source if isinstance(source, bytes) else None
        given = source if isinstance(source, SoundSource) else SoundSource("" if isinstance(source, bytes) else source)
        self._given = given
        self._is_stream, self._raw = given.stream is not None, given.format
        if self._raw is not None:
            options["format_whitelist"] = self._raw.kind
            options |= {"sample_rate": str(self._raw.rate_hz), "ch_layout": f"{self._raw.channels}c"}
        if not self._is_stream:
            options["max_size"] = str(PACKET_BYTES)
        self._files, self._seeks, self.decoded_s = ExitStack(), not self._is_stream, 0.0
        if is_limited and self._bytes is not None:
            try:
                self._bytes = without_comments(self._bytes)
            except ValueError as error:
                raise UnreadableError(str(error)) from None
        self._open()

    def _open(self) -> None:
        """Open the file, or open it again to read it from its beginning. The errors are those of the class."""
        self._files.close()
        self.notes: list[str] = []
        given, av = self._given, self._av
        with ExitStack() as files:
            file = given.stream if self._bytes is None else io.BytesIO(self._bytes)
            file = file or files.enter_context(open(given.name, "rb"))
            most_idle_s = MOST_IDLE_S if self._is_limited and not self._is_stream else math.inf
            self._content = _Content(file, given.begun, is_stream=self._is_stream, most_idle_s=most_idle_s)
            if self._raw is not None and self._content.head.startswith(HEADERS):
                raise InputError(f"{given.name} has a header with its rate and format; leave --sample-rate out")
            try:
                kind = None if self._raw is None else self._raw.kind
                opened = av.open(self._content, "r", kind, container_options=self._options, metadata_errors="replace")
            except av.FFmpegError as error:
                raise self._fault(error) from None
            self._container: InputContainer = files.enter_context(opened)
            self._stream = self._choose()
            self._files = files.pop_all()
        context = self._stream.codec_context
        context.thread_count, context.thread_type = 1, "NONE"
        self.rate_hz, self.channels = int(context.sample_rate), int(context.channels)
        self.stated_s = self._stated_s()
        self.end_s: float | None = None
        self._origin_s: float | None = None  # of the first frame, as the file counts
        self._begin_s = 0.0  # of the frames that are read, in seconds from the first one
        self._blocks = self._blocks_of(self._frames(), 0.0)
        self._block: _Block | None = None

    def __enter__(self) -> SoundFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close()

    def clip(self, start_s: float = 0.0, end_s: float = math.inf) -> Iterator[tuple[int, Channels]]:
        """Yield the sound between two times, in seconds from the beginning of the file.

        What cannot be decoded is left out, and noted.

        Parameters
        ----------
        start_s, end_s
            The times. No clip begins before the end of the one before it. The sound before a clip is passed over: by a
            seek if there is much of it and the format has one, else it is decoded.

        Yields
        ------
        int
            Samples a second, which may change.
        float32 [n, channels]
            Samples; none for sound that was decoded to be passed over.

        Raises
        ------
        UnreadableError
            The file cannot be read.
        """
        block = self._next()
        if self._seeks and block is not None and start_s > block.start_s + SEEK_S:
            self._seek(start_s)
        while (block := self._next()) is not None:
            first, end = block.index(start_s), block.index(end_s)
            yield block.rate_hz, block.samples[first : max(first, end)]
            if end < len(block.samples):  # the rest may be of the next clip
                return
            self._block = None

    def _next(self) -> _Block | None:
        """Return the next block, of which a part may have been read; None at the end of the file."""
        if self._block is None:
            self._block = next(self._blocks, None)
            self.decoded_s += 0 if self._block is None else len(self._block.samples) / self._block.rate_hz
        return self._block

    def _seek(self, start_s: float) -> None:
        """Go on shortly before a time. If the format has no seek that leads there, read from the beginning."""
        origin_s, time_base, frames = self._origin_s, self._stream.time_base, self._frames()
        if origin_s is None or not time_base:
            self._seeks = False
            return
        with suppress(self._av.FFmpegError, OverflowError, UnreadableError):
            self._container.seek(int((start_s - PREROLL_S + origin_s) / time_base), stream=self._stream)
            first = next(frames, None)
            if first is not None and first.time is not None and first.time - origin_s <= start_s:
                self._begin_s = first.time - origin_s
                self._blocks, self._block = self._blocks_of(chain([first], frames), self._begin_s), None
                return
        self._seeks = False
        self._open()

    def _blocks_of(self, frames: Iterable[AudioFrame], start_s: float) -> Iterator[_Block]:
        """Join frames, the first of which is at ``start_s``, to blocks. Raises UnreadableError."""
        for rate_hz, samples in self._converted(frames):
            yield _Block(start_s, rate_hz, samples)
            start_s += len(samples) / rate_hz

    def _converted(self, frames: Iterable[AudioFrame]) -> Iterator[tuple[int, Channels]]:
        """Convert frames to samples. Raises UnreadableError."""
        graph, format_of_graph, rate_hz = None, None, 0
        try:
            for frame in frames:
                found = int(frame.sample_rate), frame.format.name, frame.layout.name
                if found != format_of_graph:
                    if graph is not None:
                        yield from ((rate_hz, block) for block in graph.run(None))
                    channels = frame.layout.nb_channels
                    block = max(1, BLOCK * BLOCK_CHANNELS // max(BLOCK_CHANNELS, channels))
                    graph = _Graph(*found, block=max(1, int(BLOCK_S * found[0])) if self._is_stream else block)
                    format_of_graph, rate_hz = found, found[0]
                assert graph is not None
                yield from ((rate_hz, block) for block in graph.run(frame))
            if graph is not None:
                yield from ((rate_hz, block) for block in graph.run(None))
        except self._av.FFmpegError as error:  # of a format that is not converted
            raise self._fault(error) from None

    def _frames(self) -> Iterator[AudioFrame]:
        """Yield the frames of the sound, and set the notes. Raises UnreadableError."""
        packets = samples = broken = 0
        kind, is_cut, done_s = self._container.format.name, False, 0.0
        for packet in self._packets():
            packets += 1
            is_cut |= packet is None or (packet.is_corrupt and kind != "wav" and self._raw is None)
            try:
                frames = [] if packet is None else packet.decode()
            except self._av.FFmpegError as error:
                if isinstance(error, MemoryError):
                    raise self._fault(error) from None
                broken += 1
                continue
            for frame in frames:
                if self._origin_s is None:
                    self._origin_s = frame.time
                samples += frame.samples
                done_s += frame.samples / frame.sample_rate
                yield frame
                self._content.begin()
            if packets > IDLE_PACKETS + samples // PACKET_SAMPLES:
                raise UnreadableError(f"it has {packets:,} packets with {samples:,} samples")
        if self._content.fault is not None:
            raise self._fault(self._content.fault)
        if not samples and broken:
            raise UnreadableError("it has no sound that can be decoded")
        self.end_s = done_s = self._begin_s + done_s
        if done_s < self.stated_s - LEAST_MISSING_S:
            self.notes.append(f"sound is missing: the file has {done_s:.1f} s of {self.stated_s:.1f} s")
        elif is_cut or self._content.breaks_off(kind):
            self.notes.append(f"its end is missing: the file breaks off after {done_s:.1f} s")
        elif self._raw is not None and (left := self._content.length % self._raw.width):
            self.notes.append(f"its last {left} bytes are not a whole sample of {self._raw.width} bytes")
        elif broken:
            self.notes.append(f"{broken} of its {packets} packets cannot be decoded, and are left out")

    def _packets(self) -> Iterator[Packet[AudioStream] | None]:
        """Yield the packets of the sound; None behind them if FFmpeg cannot read what follows."""
        try:
            yield from self._container.demux(self._stream)
        except self._av.FFmpegError as error:
            if isinstance(error, MemoryError):
                raise self._fault(error) from None
            yield None

    def _choose(self) -> AudioStream:
        """Return the stream of sound that is read, and pass over the others. Raises UnreadableError."""
        streams = self._container.streams
        best = streams.best("audio")
        chosen = next((stream for stream in streams.audio if stream is best), None)
        if chosen is None:
            raise UnreadableError("it has video and no sound" if streams.video else "it has no sound")
        codec = chosen.codec_context
        if codec is None or codec.name not in CODECS.split():
            raise UnreadableError(f"its sound has the codec {'of no known name' if codec is None else codec.name}")
        for stream in streams:
            if stream is not chosen:
                stream.discard = self._av.stream.Discard.all
        if (count := len(streams.audio)) > 1:
            self.notes.append(f"it has {count} streams of sound; number {streams.audio.index(chosen) + 1} is read")
        return chosen

    def _stated_s(self) -> float:
        """Return the seconds of sound that the header states; 0 if FFmpeg has estimated them by the bitrate."""
        name, stream = self._container.format.name, self._stream
        stated_s = float(stream.duration * (stream.time_base or 0)) if stream.duration else 0.0
        if not stated_s and len(self._container.streams) == 1:
            stated_s = (self._container.duration or 0) / 1e6
        bit_rate = stream.codec_context.bit_rate or 0
        is_estimated = 0 < stated_s * bit_rate <= 8 * self._content.length and name in ("mp3", "matroska,webm")
        return 0.0 if is_estimated or name in ESTIMATED else stated_s

    def _fault(self, error: Exception) -> UnreadableError:
        """Return the reason why a file cannot be read."""
        error = self._content.fault or error
        if isinstance(error, MemoryError):
            return UnreadableError(f"FFmpeg needs more than {self._most_bytes >> 20} MiB at once for it")
        if isinstance(error, self._av.InvalidDataError | self._av.ArgumentError):
            return UnreadableError("its format is not one that is read, or its header or index is broken or missing")
        if isinstance(error, EOFError):
            return UnreadableError("it breaks off before its sound")
        return UnreadableError(getattr(error, "strerror", None) or first_line(error))


@dataclass(frozen=True)
class _Block:
    """Consecutive samples float32 [n, channels], and the time of the first one in seconds."""

    start_s: float
    rate_hz: int
    samples: Channels

    def index(self, time_s: float) -> int:
        """Return the index of the sample at a time; that of the nearest end for a time outside."""
        count = len(self.samples)
        place = (time_s - self.start_s) * self.rate_hz
        return count if place >= count else max(0, round(place))


class _Graph:
    """FFmpeg's conversion of frames of one format to blocks float32 [n, channels].

    Parameters
    ----------
    rate_hz, kind, layout
        Samples a second, format of a sample and layout of the channels, by FFmpeg's names.
    to_hz : int, optional
        Samples a second of the blocks.
    block : int
        Samples of each channel in a block, but for the last; 0 for as many as there are.
    """

    def __init__(self, rate_hz: int, kind: str, layout: str, *, to_hz: int | None = None, block: int = 0) -> None:
        self._av = _av()
        self._graph = graph = self._av.filter.Graph()
        graph.threads = 1
        nodes = [graph.add_abuffer(sample_rate=rate_hz, format=kind, layout=layout)]
        if to_hz is not None:
            nodes.append(graph.add("aresample", f"{to_hz}:filter_size={FILTER}"))
        nodes += [graph.add("aformat", "sample_fmts=flt"), graph.add("abuffersink")]
        graph.link_nodes(*nodes)
        graph.configure()
        if block:
            graph.set_audio_frame_size(block)

    def run(self, frame: AudioFrame | None) -> Iterator[Channels]:
        """Yield the blocks that are whole with a frame; with None the rest."""
        self._graph.push(frame)
        with suppress(self._av.BlockingIOError, self._av.EOFError):
            while True:
                found = self._graph.pull()
                yield found.to_ndarray().reshape(found.samples, -1)


class Resampler:
    """Conversion of one channel's samples to another rate, whose blocks together are the whole, resampled."""

    def __init__(self, found_hz: int, rate_hz: int) -> None:
        self._av, self.found_hz, self._rate_hz = _av(), found_hz, rate_hz
        self._graph = _Graph(found_hz, "flt", "mono", to_hz=rate_hz)
        self._due = self._done = 0  # samples before, and after it

    def run(self, samples: Samples) -> Iterator[Samples]:
        """Yield what is whole with these samples."""
        self._due += len(samples)
        for found in self._run(samples):
            self._done += len(found)
            yield found

    def end(self) -> Iterator[Samples]:
        """Yield the rest. Silence behind it fills the filter, which gives nothing of less sound than it is long."""
        left = -(-self._due * self._rate_hz // self.found_hz) - self._done
        silence = np.zeros(2 * FILTER * (1 + self.found_hz // self._rate_hz), np.float32)
        for found in (*self._run(silence), *self._graph.run(None)):
            if left > 0:
                yield found.ravel()[:left]
            left -= len(found)

    def _run(self, samples: Samples) -> Iterator[Samples]:
        frame = self._av.AudioFrame.from_ndarray(np.ascontiguousarray(samples[None]), "flt", "mono")
        frame.sample_rate = self.found_hz
        for found in self._graph.run(frame):
            yield found.ravel()


def at_rate(blocks: Iterable[tuple[int, Samples]], rate_hz: int) -> Iterator[Samples]:
    """Resample blocks of one channel that are at another rate; each has its samples a second, which may change."""
    resampler: Resampler | None = None
    for found_hz, samples in blocks:
        if resampler is not None and resampler.found_hz != found_hz:
            yield from resampler.end()
            resampler = None
        if found_hz == rate_hz:
            yield samples
            continue
        resampler = resampler or Resampler(found_hz, rate_hz)
        yield from resampler.run(samples)
    if resampler is not None:
        yield from resampler.end()
