"""Speech models of a loaded bundle: recordings, and features of them, turned into text and segments."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tightbeam.deploy.arrays import Array
from tightbeam.deploy.audio.alignment import check_frames, with_times
from tightbeam.deploy.audio.files import as_samples
from tightbeam.deploy.batches import Batches, check_batch_size, check_texts_alone
from tightbeam.deploy.errors import InputError
from tightbeam.deploy.generation.fields import TIMES
from tightbeam.deploy.scheduling.events import NullEvents
from tightbeam.deploy.search import SearchCallback, SearchResult
from tightbeam.deploy.text.input_result import InputResult
from tightbeam.deploy.text.output import TextSegment
from tightbeam.deploy.text.token_ids import as_array, finite_float32

__all__ = ["SpeechRunner"]


class SpeechRunner(Batches):
    """The part of `Runner` that takes audio.

    Parameters
    ----------
    bundle, runtime, codec
        Those of `ModelSettings`.
    """

    def generate_from_features(
        self,
        input_features: Array,
        attention_mask: Array | None = None,
        *,
        callback: SearchCallback | None = None,
        **settings: Any,
    ) -> SearchResult:
        """Generate from a speech model's features, like ``model.generate(input_features, **settings)``.

        Parameters
        ----------
        input_features : float32 [B, mels, frames] or [B, X, ...]
            Log-mel features of whole windows, as `LogMel.features` makes them; or those of whole recordings, of
            `Recordings.features`, padded on the right.
        attention_mask : integers [B, X], optional
            1 at the samples or frames of recordings, which come first, 0 at padding; by default all count. Of windows
            it is read with ``return_token_timestamps`` alone. As in transformers, padding changes what the encoder
            makes of a shorter whole recording; `transcribe` runs each without.
        callback : SearchCallback, optional
            Receiver of results while the search runs, the ``callback`` of ``generate``.
        **settings
            Arguments of ``model.generate``, by the same names.

        Returns
        -------
        SearchResult
            Sequences from the start token on, the prompt of language and task included. ``token_timestamps`` float32
            [B, T] with ``return_token_timestamps``: those of each sample alone.

        Raises
        ------
        GenerationError
            A setting is unknown, not supported, or impossible for this model.
        InputError
            The features have a wrong shape, type or value, or this is a text model.
        BundleError
            The runtime failed.
        """
        settings = self._without_effect(settings)
        if self.recordings is not None:
            options = self.options(**settings).without_source_tokens("a recording")
            return self._run(*self.recordings.checked(input_features, attention_mask), options, callback)
        options = self._for_one_window(self.options(**settings))
        if not self.log_mel:
            raise InputError("this is a text model; pass text or token ids instead of audio")
        if attention_mask is not None and not options.aligned:
            raise InputError(f"attention_mask of windows is read with {TIMES}=True alone; leave it out")
        features = as_array("input_features", input_features)
        mels, frames = self.log_mel.mels, self.log_mel.frames
        if features.ndim != 3 or features.shape[1:] != (mels, frames) or not len(features):
            raise InputError(
                f"input_features is {list(features.shape)}, expected [B, {mels}, {frames}]; "
                "make them with Runner.log_mel.features"
            )
        features = finite_float32("input_features", features)
        own_frames = check_frames(attention_mask, *features.shape[::2])
        mask = np.ones((len(features), self.manifest.sizes.max_source), dtype=np.int64)
        found = self._run(features, mask, options, callback)
        about = self.manifest.alignment
        return found if about is None else with_times(found, options.beginning, own_frames, about.median_filter_width)

    def transcribe(
        self, recordings: Sequence[str | os.PathLike[str] | bytes | Array], *, batch_size: int = 8, **settings: Any
    ) -> list[str]:
        """Transcribe recordings. One of more than a window is gone through by timestamps.

        Parameters
        ----------
        recordings : sequence of str, path, bytes or float array [n]
            Names of WAV, FLAC, OGG or MP3 files, the content of one, or samples in -1..1 at the model's rate.
        batch_size : int
            Windows that run together, at most.
        **settings
            Arguments of ``model.generate``, by the same names; those of Whisper too.

        Returns
        -------
        list of str
            One text for each recording; empty where the bundle has no tokenizer.

        Raises
        ------
        GenerationError
            A setting is unknown, not supported, or impossible for this model.
        InputError
            A recording cannot be read as audio; the message names its file.
        BundleError
            The runtime failed.
        """
        settings = self._without_effect(settings)
        check_texts_alone(self.options(**settings))
        found = self._transcribed(recordings, batch_size, settings)
        return [each.texts[0] if each.texts else "" for each in found]

    def transcribe_segments(
        self, recordings: Sequence[str | os.PathLike[str] | bytes | Array], *, batch_size: int = 8, **settings: Any
    ) -> list[list[TextSegment]]:
        """Transcribe recordings by timestamps.

        Parameters
        ----------
        recordings : sequence of str, path, bytes or float array [n]
            Names of WAV, FLAC, OGG or MP3 files, the content of one, or samples in -1..1 at the model's rate,
            ``log_mel.sampling_rate_hz``.
        batch_size : int
            Windows that run together, at most.
        **settings
            Arguments of ``model.generate``, by the same names; those of Whisper too.

        Returns
        -------
        list of list of TextSegment
            The segments of each recording, in order. Their tokens are together those of ``model.generate``. With
            ``return_token_timestamps`` they have words, each with its times and its probability.

        Raises
        ------
        GenerationError
            A setting is unknown, not supported, or impossible for this model.
        InputError
            A recording cannot be read as audio; the message names its file.
        BundleError
            The runtime failed.
        """
        found = self._transcribed(recordings, batch_size, self._with_timestamps(self._without_effect(settings)))
        return [each.segments or [] for each in found]

    def stream_segments(
        self, recording: str | os.PathLike[str] | bytes | Array, *, batch_size: int = 8, **settings: Any
    ) -> Iterator[TextSegment]:
        """Transcribe one recording by timestamps, and yield its segments as they are found.

        Parameters
        ----------
        recording : str, path, bytes or float array [n]
            One of those of `transcribe_segments`. It is read whole before this returns.
        batch_size, **settings
            Arguments of `transcribe_segments`.

        Yields
        ------
        TextSegment
            Those of `transcribe_segments`, each as soon as its window is done. A caller that stops early closes the
            iterator, or drops it; the other windows are not run then.

        Raises
        ------
        GenerationError, InputError, BundleError
            Those of `transcribe_segments`. Settings and the recording are checked before this returns.
        """
        from tightbeam.deploy.audio.transcribe import RecordingReader, stream_segments

        settings = self._with_timestamps(self._without_effect(settings))
        check_batch_size(batch_size, "windows")
        reader = RecordingReader(self, settings)
        opened = reader.read(1, _source("the recording", recording))
        if opened.failure is not None:
            raise opened.failure
        return stream_segments(self, opened, self.group_scheduler(batch_size * reader.options.num_beams, NullEvents()))

    def _with_timestamps(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        settings = {**settings, "return_timestamps": True}
        if not (options := self.options(**settings)).aligned:
            check_texts_alone(options)
        return settings

    def _transcribed(self, recordings: Any, batch_size: int, settings: Mapping[str, Any]) -> list[InputResult]:
        from tightbeam.deploy.audio.recordings import run_recordings
        from tightbeam.deploy.audio.transcribe import transcribe_files

        if isinstance(recordings, str | bytes) or not hasattr(recordings, "__iter__"):
            kind = "one string" if isinstance(recordings, str) else type(recordings).__name__
            raise InputError(f"recordings is {kind}, expected a list of file names; pass [path]")
        if isinstance(recordings, np.ndarray) and recordings.ndim == 1 and recordings.dtype.kind == "f":
            raise InputError("recordings is one array of samples, expected a list of recordings; pass [samples]")
        check_batch_size(batch_size, "windows")
        sources = [_source(f"recording {index}", each) for index, each in enumerate(recordings)]
        results = []
        whole = run_recordings if self.recordings is not None else transcribe_files
        for index, done in enumerate(whole(self, sources, batch_size=batch_size, **settings)):
            if isinstance(done.failure, InputError) and not isinstance(sources[index], str):
                raise InputError(f"recording {index}: {done.failure}")
            if done.failure is not None:
                raise done.failure
            results.append(done.result)
        return results


def _source(name: str, recording: Any) -> str | bytes | Array:
    """A recording as it is read. Raises InputError, which calls it ``name``, for what is none."""
    if isinstance(recording, str | os.PathLike | bytes):
        return os.fspath(recording)
    return as_samples(name, recording)
