"""A recording's features: computed block by block, stored on disk if they are large, and cut into windows anywhere.

Source: transformers 5.24 `WhisperFeatureExtractor` with ``truncation=False, padding="longest"``: powers are cut off
relative to the highest power of the whole recording. A recording shorter than a window is padded to a whole window with
silence, as is the default there.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from tightbeam.deploy.arrays import Array
from tightbeam.deploy.audio.features import LogMel

__all__ = ["StoredFeatures"]

Logs = npt.NDArray[np.float32]
IN_MEMORY_BYTES = 16 << 20
"""Features up to this size stay in memory: eight minutes at Whisper's 80 mels."""


class StoredFeatures:
    """Features of a whole recording, on disk if there are many.

    Parameters
    ----------
    log_mel : LogMel
        The feature extractor.
    blocks : iterable of float32 arrays [n]
        Consecutive samples.
    live : bool
        Read the samples on demand, by `reach`. Powers are then cut off relative to the highest power so far.

    Attributes
    ----------
    frames : int
        Columns of the features; at least one whole window.
    own_frames : int
        Frames of the recording itself, without padding.
    seconds : float
        Length of the recording.
    close : function
        Frees the features.
    """

    def __init__(self, log_mel: LogMel, blocks: Iterable[Array], *, live: bool = False) -> None:
        self._log_mel, self._logs = log_mel, _logs(log_mel, blocks)
        self._file = tempfile.SpooledTemporaryFile(IN_MEMORY_BYTES)  # noqa: SIM115  # closed with the recording
        self.close = weakref.finalize(self, self._file.close)
        self._highest, self.frames, self.own_frames, self.seconds = -np.inf, 0, 0, 0.0
        self._levels = np.zeros(0, np.float32)
        if not live:
            self.reach(None)

    def reach(self, frames: int | None) -> int:
        """Read samples until there are so many frames, or up to the end; returns the frames that there are.

        Raises
        ------
        InputError
            The samples cannot be read.
        """
        levels, samples = [self._levels], None
        if frames is None or self.frames < frames:
            self._file.seek(0, os.SEEK_END)
            for logs, own, count in self._logs:
                self._file.write(logs.tobytes())
                levels.append(own)
                self._highest = max(self._highest, float(logs.max()))
                self.frames += len(logs)
                samples = count
                if frames is not None and self.frames >= frames:
                    break
        if samples is not None:
            self._levels = np.concatenate(levels)
            self.own_frames = min(self.frames, -(-samples // self._log_mel.hop))
            self.seconds = samples / self._log_mel.sampling_rate_hz
        return self.frames

    def loud_frames(self, first: int, count: int, threshold_db: float) -> int:
        """Return how many of ``count`` frames are louder than a level in decibels of full scale."""
        return int((self._levels[first : first + count] > 10 ** (threshold_db / 10)).sum())

    def window(self, first: int, count: int) -> npt.NDArray[np.float32]:
        """Return the features float32 [mels, frames] of ``count`` frames, padded with zeros to a whole window."""
        mels = self._log_mel.mels
        self._file.seek(first * mels * 4)
        logs = np.frombuffer(self._file.read(count * mels * 4), np.float32).reshape(-1, mels)
        window = np.zeros((mels, self._log_mel.frames), np.float32)
        window[:, : len(logs)] = self._log_mel.scaled(logs, self._highest).T
        return window


def _logs(log_mel: LogMel, blocks: Iterable[Array]) -> Iterator[tuple[Logs, Logs, int]]:
    """Yield logarithms float32 [n, mels] of consecutive frames, their mean squares float32 [n], and the number of
    samples read so far.

    Frame i is centred on sample i hop, with half a window on both sides. The ends of the recording are mirrored. The
    last frame, which would be centred on the end, is left out.
    """
    hop, half = log_mel.hop, log_mel.window // 2
    whole, read = _from_one_window(log_mel, blocks), 0
    held: Array | None = None  # samples from frame `done` on, with half a window before it
    done = total = 0
    for block, own in whole:
        read += own
        total += len(block)
        held = np.concatenate([_mirror_start(block, half), block]) if held is None else np.concatenate([held, block])
        ready = max(0, (len(held) - 2 * half - 1) // hop)  # frames whose samples, and one more, have been read
        if ready:
            chunk = held[: (ready - 1) * hop + 2 * half + (log_mel.window & 1)]
            yield log_mel.logs(chunk, ready), _levels(log_mel, chunk, ready), read
            held, done = held[ready * hop :], done + ready
    last = total // hop - done
    if held is not None and last > 0:
        chunk = np.pad(held, (0, half), mode="reflect")[: (last - 1) * hop + 2 * half + (log_mel.window & 1)]
        yield log_mel.logs(chunk, last), _levels(log_mel, chunk, last), read


def _levels(log_mel: LogMel, samples: Array, count: int) -> Logs:
    """Return the mean squares float32 [count] of the samples in the middle of each frame."""
    width = min(log_mel.hop, log_mel.window)
    middle = samples[(log_mel.window - width) // 2 :]
    frames = np.lib.stride_tricks.sliding_window_view(middle, width)[:: log_mel.hop][:count]
    levels: Logs = np.square(frames, dtype=np.float32).mean(axis=1)
    return levels


def _from_one_window(log_mel: LogMel, blocks: Iterable[Array]) -> Iterator[tuple[Array, int]]:
    """Yield blocks with their numbers of samples. The first has at least a window; a shorter recording is padded."""
    begun: list[Array] = []
    length = 0
    for block in blocks:
        if length >= log_mel.samples:
            yield block, len(block)
            continue
        begun.append(block)
        length += len(block)
        if length >= log_mel.samples:
            yield np.concatenate(begun), length
    if length < log_mel.samples:
        padding = np.full(log_mel.samples - length, log_mel.padding, np.float32)
        yield np.concatenate([*begun, padding]), length


def _mirror_start(block: Array, half: int) -> Array:
    return block[1 : half + 1][::-1]
