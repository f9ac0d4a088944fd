"""The runner: a loaded bundle that turns token ids, text or audio into generated sequences. Also a command.

python deploy/runner.py BUNDLE article.txt --num-beams 4
"""

from __future__ import annotations

if __name__ == "__main__":
    # Python puts the script's folder first on sys.path, where `text`, `search`, ... would hide other packages.
    import os
    import sys

    folder = os.path.dirname(os.path.realpath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry) != folder]

    import runpy

    runpy.run_module("tightbeam.deploy.command", run_name="__main__")

import os
import threading
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tightbeam.deploy.arrays import Array
from tightbeam.deploy.audio.features import LogMel
from tightbeam.deploy.bundle.manifest import Manifest
from tightbeam.deploy.bundle.reader import Bundle
from tightbeam.deploy.errors import GenerationError, InputError, NoEffectWarning
from tightbeam.deploy.generation.options import GenerationOptions
from tightbeam.deploy.generation.prompt import Prompt, first_length
from tightbeam.deploy.generation.recording import WindowStart
from tightbeam.deploy.generation.resolve import options_for
from tightbeam.deploy.generation.translation import check_without_text, from_language
from tightbeam.deploy.generation.without_effect import remove_settings_without_effect
from tightbeam.deploy.padding import left_pad, mask_of_padding, right_pad
from tightbeam.deploy.runtimes.base import Runtime
from tightbeam.deploy.runtimes.onnxruntime_cpu import OnnxRuntimeCpu
from tightbeam.deploy.runtimes.step_inputs import BeamStepper
from tightbeam.deploy.scheduling.events import SchedulerEvents
from tightbeam.deploy.scheduling.groups import GroupScheduler
from tightbeam.deploy.scheduling.sample import Sample
from tightbeam.deploy.scheduling.scheduler import Scheduler
from tightbeam.deploy.search import SearchCallback, SearchResult, search
from tightbeam.deploy.text.input_result import InputResult
from tightbeam.deploy.text.output import Output, TextSegment, output_of
from tightbeam.deploy.text.ragged import batch_key, join_results, ragged_rows
from tightbeam.deploy.text.token_ids import as_array, check_batch, check_ids, longest_source
from tightbeam.deploy.text.tokenizer import TextCodec, load_codec

__all__ = ["Runner"]

TENSORRT = "tensorrt"
ENGINE_KINDS = ("onnxruntime", TENSORRT)
CUDA = "cuda"
DEVICES = ("cpu", CUDA)
MAX_THREADS = 1024
"""Upper bound on threads: ONNX Runtime starts as many as it is asked for, and hangs on a hundred thousand."""


class Runner:
    """A loaded bundle, ready to generate. Calls from several threads run one after the other.

    Use `Runner.load` to make one from a bundle folder.

    Parameters
    ----------
    bundle : Bundle
        The bundle, read and checked.
    runtime : Runtime
        Runs the bundle's graphs.
    codec : TextCodec or None
        The tokenizer; None for a bundle without one, which takes and returns token ids only.

    Attributes
    ----------
    bundle : Bundle
        The bundle that was loaded.
    log_mel : LogMel or None
        The feature extractor of a speech model; None for a text model.
    cache_bytes : (int, int)
        Bytes of the source cache and of the generated cache in the last batch.

    Examples
    --------
    >>> runner = Runner.load("demo-dedup")
    >>> runner.generate_text(["The festival in Lindenton has invited 259 singers. It opens in March."], num_beams=4)
    ['Lindenton festival opens in March with 259 singers']
    """

    def __init__(self, bundle: Bundle, runtime: Runtime, codec: TextCodec | None) -> None:
        self.bundle = bundle
        self._runtime = runtime
        self._codec = codec
        speech = bundle.manifest.speech
        self.log_mel = LogMel.read(bundle.file(speech)) if speech else None
        self._lock = threading.Lock()
        self.cache_bytes = (0, 0)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        engine: str = "onnxruntime",
        threads: int | None = None,
        device: str = "cpu",
        verify: bool = True,
    ) -> Runner:
        """Load a bundle.

        Parameters
        ----------
        path : str or path
            The bundle folder.
        engine : str
            "onnxruntime"; "tensorrt", the TensorRT engine of this bundle that fits the GPU; or "tensorrt:NAME", the
            engine of that name.
        threads : int, optional
            Threads of one operator in ONNX Runtime on the CPU, 1 to 1024; by default one for each core that the process
            may use by affinity and by its container's quota.
        device : str
            Where ONNX Runtime runs: "cpu" or "cuda".
        verify : bool
            Compare every file with its SHA-256 first.

        Returns
        -------
        Runner

        Raises
        ------
        BundleError
            The bundle, or a TensorRT engine in it, cannot be read, or cannot run on this machine.
        InputError
            ``engine``, ``device`` or ``threads`` is unknown or out of range.
        """
        kind, _, name = engine.partition(":") if isinstance(engine, str) else ("", "", "")
        if kind not in ENGINE_KINDS or (kind != TENSORRT and engine != kind) or engine == f"{TENSORRT}:":
            raise InputError(f"engine={engine!r} is not known; pass onnxruntime, tensorrt, or tensorrt:NAME")
        if device not in DEVICES:
            raise InputError(f"device={device!r} is not supported; pass one of {', '.join(DEVICES)}")
        if threads is not None and (kind == TENSORRT or device == CUDA):
            what = f"engine={engine!r}" if kind == TENSORRT else f"device={device!r}"
            raise InputError(f"threads={threads!r} does nothing with {what}; leave threads out")
        if threads is not None and not (_is_integer(threads) and 1 <= threads <= MAX_THREADS):
            raise InputError(
                f"threads={threads!r} is not a number of threads; pass 1 to {MAX_THREADS}, or None for all cores"
            )
        bundle = Bundle.load(path, verify=verify)
        if kind == TENSORRT:
            from tightbeam.deploy.runtimes.tensorrt import load_tensorrt_runtime

            return cls(bundle, load_tensorrt_runtime(bundle, name or None, verify=verify), load_codec(bundle))
        if device == CUDA:
            from tightbeam.deploy.runtimes.onnxruntime_cuda import load_onnxruntime_cuda

            return cls(bundle, load_onnxruntime_cuda(bundle), load_codec(bundle))
        return cls(bundle, OnnxRuntimeCpu(bundle, threads), load_codec(bundle))

    def __repr__(self) -> str:
        about = self.manifest
        return (
            f"Runner({str(self.bundle.path)!r}, model={about.model!r}, family={about.family!r}, "
            f"variant={about.variant!r}, precision={about.precision!r}, runtime={type(self._runtime).__name__})"
        )

    @property
    def manifest(self) -> Manifest:
        """The content of ``bundle.json``."""
        return self.bundle.manifest

    @property
    def decoder_only(self) -> bool:
        """True for a decoder-only model, whose sequences begin with the prompt rather than with a start token."""
        return self.manifest.sizes.decoder_only

    @property
    def is_speech(self) -> bool:
        """True for a speech model, which takes audio in place of token ids."""
        return self.log_mel is not None

    @property
    def has_tokenizer(self) -> bool:
        """True for a bundle with a tokenizer."""
        return self._codec is not None

    def options(self, **settings: Any) -> GenerationOptions:
        """Resolve generation settings: the bundle's defaults, overridden by ``settings``.

        Parameters
        ----------
        **settings
            Arguments of transformers' ``model.generate``, by the same names (``num_beams``, ``max_new_tokens``, ...).
            ``generation_config`` is a transformers `GenerationConfig`, a dict, or the name of a JSON file; the other
            settings override it, and what it leaves None is the checkpoint's.

        Returns
        -------
        GenerationOptions
            Lengths are those for a prompt of one token if the model is decoder-only.

        Raises
        ------
        GenerationError
            A setting is unknown, not supported, or impossible for this model.
        """
        return self.options_for(1, settings)

    def options_for(self, prompt_length: int, settings: Mapping[str, Any]) -> GenerationOptions:
        """Resolve settings as ``options`` does, for prompts of ``prompt_length`` tokens, padding included.

        Parameters
        ----------
        prompt_length : int
            Tokens of the prompts of a decoder-only model; the length of an encoder's input does not matter.
        settings : mapping
            Arguments of ``model.generate``.

        Returns
        -------
        GenerationOptions

        Raises
        ------
        GenerationError
            A setting is unknown, not supported, or impossible for this model.
        """
        return self._checked(
            options_for(
                self.manifest.generation,
                settings,
                self.manifest.sizes,
                speech=self.is_speech,
                prompt_length=prompt_length,
            )
        )

    def window_options(self, settings: Mapping[str, Any], window: WindowStart) -> GenerationOptions:
        """Resolve settings for one window of a recording.

        Parameters
        ----------
        settings : mapping
            Arguments of ``model.generate``.
        window : WindowStart
            What the window begins with.

        Returns
        -------
        GenerationOptions

        Raises
        ------
        GenerationError
            A setting is unknown, not supported, or impossible for this model or window.
        """
        about = self.manifest
        return self._checked(options_for(about.generation, settings, about.sizes, speech=True, window=window))

    def _checked(self, options: GenerationOptions) -> GenerationOptions:
        """Options that this runtime can follow. Raises GenerationError."""
        if options.trie is not None and self._runtime.trie_obstacle:
            raise GenerationError(f"trie={options.trie!r} cannot be used: {self._runtime.trie_obstacle}")
        if options.num_beam_groups > 1 and (obstacle := self._runtime.groups_obstacle):
            raise GenerationError(f"num_beam_groups={options.num_beam_groups} cannot be used: {obstacle}")
        if options.needs_logits and (obstacle := self._runtime.logits_obstacle):
            raise GenerationError(
                f"{options.needs_logits} needs all scores of a step, which {obstacle} {options.without_logits}"
            )
        return options

    def _without_effect(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Warn the caller of a public method of the settings that have no effect, and return the others."""
        settings, notes = remove_settings_without_effect(
            given, speech=self.is_speech, defaults=self.manifest.generation
        )
        for note in notes:
            warnings.warn(f"{note}; leave it out", NoEffectWarning, stacklevel=3)
        return settings

    def generate(
        self,
        input_ids: Array | Sequence[Sequence[int]],
        attention_mask: Array | None = None,
        *,
        decoder_input_ids: Array | Sequence[Sequence[int]] | None = None,
        callback: SearchCallback | None = None,
        **settings: Any,
    ) -> SearchResult:
        """Generate from token ids, like ``model.generate(input_ids, attention_mask=..., **settings)``.

        Parameters
        ----------
        input_ids : integers [B, N], or sequence of B sequences of int
            Sources of an encoder-decoder model, or prompts of a decoder-only model, padded on either side. Rows of
            different lengths are padded and masked here, and the tokens are those of each row alone.
        attention_mask : integers [B, N], optional
            0 at padding, 1 elsewhere. By default every position counts; of a decoder-only model, every token but the
            pad token, as in transformers.
        decoder_input_ids : integers [B, P], or sequence of B sequences of int, optional
            The tokens that the output of each sample begins with, with or without the start token before them; of an
            encoder-decoder model. They may have different lengths, and a sample's tokens are those that it gets alone.
        callback : SearchCallback, optional
            Receives tokens and each finished sample while the search runs, and may cancel samples.
        **settings
            Arguments of ``model.generate``, by the same names, ``generation_config`` among them. Lengths count the
            whole row, padding included.

        Returns
        -------
        SearchResult
            ``sequences`` int64 [B * num_return_sequences, T], each from the start token on, or from the prompt on,
            padded on the left, if the model is decoder-only. ``scores`` float32 [B * num_return_sequences] of beam
            search; None of greedy search. ``token_scores`` and ``alternatives`` where they are asked for.

        Raises
        ------
        GenerationError
            A setting is unknown, not supported, or impossible for this model.
        InputError
            The ids or the mask have a wrong shape, type or value.
        BundleError
            The runtime failed; see ``deploy/errors.py``.

        Examples
        --------
        >>> rows = [runner.encode(report)[0] for report in reports]
        >>> result = runner.generate(rows, num_beams=4, max_new_tokens=8)
        >>> result.sequences
        array([[   2,    0,  601,  370,  464,  589,  262,  657,    2],
               [   2,    0,  559,  307, 1009,   23,  908,  560,    2]])
        >>> result.scores
        array([-0.11889504, -0.0877986 ], dtype=float32)
        """
        if self.log_mel:
            raise InputError("this is a speech model; pass audio instead of token ids (Runner.transcribe)")
        settings = self._without_effect(settings)
        options = self.options(**settings)
        check_without_text(settings)
        rows = ragged_rows(input_ids)
        if decoder_input_ids is not None:
            if rows is not None and attention_mask is None:
                input_ids, attention_mask = self.pad(rows, options)
            ids, mask = check_batch(input_ids, attention_mask, options, self.manifest.sizes)
            return self._run(ids, mask, self._beginning_with(decoder_input_ids, len(ids), settings), callback)
        if rows is None:
            ids, mask = check_batch(input_ids, attention_mask, options, self.manifest.sizes)
            return self._generate(ids, mask, options, settings, callback)
        if attention_mask is not None:
            raise InputError("attention_mask is for rows of one length; leave it out, rows are padded and masked here")
        return self._generate_ragged(rows, options, settings, callback)

    def _beginning_with(self, given: Any, count: int, settings: Mapping[str, Any]) -> list[GenerationOptions]:
        """The options of each of ``count`` samples, whose outputs begin with given tokens."""
        rows = given.tolist() if hasattr(given, "tolist") else given
        if isinstance(rows, list | tuple):
            rows = [row.tolist() if hasattr(row, "tolist") else row for row in rows]
        if (
            not isinstance(rows, list | tuple)
            or len(rows) != count
            or not all(isinstance(r, list | tuple) for r in rows)
        ):
            raise InputError(
                f"decoder_input_ids does not have {count} rows of token ids; pass one row for each row of input_ids"
            )
        return [self.options_for(1, {**settings, "decoder_input_ids": list(row)}) for row in rows]

    def _generate(
        self,
        ids: Array,
        mask: Array,
        options: GenerationOptions,
        settings: Mapping[str, Any],
        callback: SearchCallback | None,
    ) -> SearchResult:
        """Generate from checked ids and mask [B, N]."""
        if not self.decoder_only:
            return self._run(ids, mask, options, callback)
        options, prompt = self.options_for(ids.shape[1], settings), Prompt.of(ids, mask)
        return self._run(prompt.source_ids, prompt.source_mask, options, callback, prompt)

    def _generate_ragged(
        self,
        rows: list[list[int]],
        options: GenerationOptions,
        settings: Mapping[str, Any],
        callback: SearchCallback | None,
    ) -> SearchResult:
        """Generate from rows of different lengths; those that padding would change are run in batches of their own."""
        for index, row in enumerate(rows):
            try:
                self.check_ids(row)
            except InputError as error:
                raise InputError(f"row {index} of input_ids: {error}") from None
        batches: dict[tuple[int, ...], list[int]] = {}  # indices of rows
        for index, row in enumerate(rows):
            key = batch_key(self.options_for(len(row), settings), len(row)) if self.decoder_only else ()
            batches.setdefault(key, []).append(index)
        if callback is not None and len(batches) > 1:
            raise InputError(
                "callback needs prompts that share a batch, which lengths that count the padding forbid; pass rows of "
                "one length, or max_new_tokens in place of max_length"
            )
        results = []
        for samples in batches.values():
            ids, mask = self.pad([rows[sample] for sample in samples], options)
            if self.decoder_only:  # pad tokens within a row do not count, as in a row alone
                mask &= mask_of_padding(ids, options.pad_token_id, options.eos_token_ids)
            ids, mask = check_batch(ids, mask, options, self.manifest.sizes)
            found = self._generate(ids, mask, options, settings, callback)
            results.append((samples, self.prompt_of(ids), found))
        return results[0][2] if len(results) == 1 else join_results(results, options)

    def generate_from_features(
        self, input_features: Array, *, callback: SearchCallback | None = None, **settings: Any
    ) -> SearchResult:
        """Generate from a speech model's features, like ``model.generate(input_features, **settings)``.

        Parameters
        ----------
        input_features : float32 [B, mels, frames]
            Log-mel features of whole windows, as `LogMel.features` makes them.
        callback : SearchCallback, optional
            Receiver of results while the search runs, the ``callback`` of ``generate``.
        **settings
            Arguments of ``model.generate``, by the same names.

        Returns
        -------
        SearchResult
            Sequences from the start token on, the prompt of language and task included.

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
        options = self._for_one_window(self.options(**settings))
        if not self.log_mel:
            raise InputError("this is a text model; pass text or token ids instead of audio")
        features = as_array("input_features", input_features)
        mels, frames = self.log_mel.mels, self.log_mel.frames
        if features.ndim != 3 or features.shape[1:] != (mels, frames) or not len(features):
            raise InputError(
                f"input_features is {list(features.shape)}, expected [B, {mels}, {frames}]; "
                "make them with Runner.log_mel.features"
            )
        if not (np.issubdtype(features.dtype, np.floating) and np.isfinite(features).all()):
            raise InputError(f"input_features is {features.dtype}, or holds NaN or infinity; expected finite float32")
        mask = np.ones((len(features), self.manifest.sizes.max_source), dtype=np.int64)
        return self._run(np.ascontiguousarray(features, dtype=np.float32), mask, options, callback)

    def _run(
        self,
        source: Array,
        mask: Array,
        given: GenerationOptions | list[GenerationOptions],
        callback: SearchCallback | None,
        prompt: Prompt | None = None,
    ) -> SearchResult:
        each = given if isinstance(given, list) else [given] * len(source)
        options = each[0]
        P = first_length(prompt)
        positions = max(own.max_length for own in each) - P  # the last token is never fed back
        with self._lock:
            groups = options.num_beam_groups
            decoding = self._runtime.begin(source, mask, options.num_beams, positions, options.candidates, P, groups)
            beginnings = None if prompt is None else prompt.tokens
            read = source if prompt is None else prompt.tokens
            sources = read if read.ndim == 2 else None  # not of features
            keyed = _keyed(source, mask, each, prompt)
            result = search(BeamStepper(decoding, options, prompt), keyed, len(source), beginnings, sources, callback)
            self.cache_bytes = decoding.cache_bytes
            decoding.close()
        return result

    def scheduler(self, batch_size: int) -> Scheduler:
        """Return a scheduler without samples, for samples that come and go one by one.

        Parameters
        ----------
        batch_size : int
            The most samples in the running batch.

        Returns
        -------
        Scheduler
            It is for one thread. Other calls of this runner run between its turns.
        """
        return Scheduler(self._runtime, batch_size, self._lock)

    def group_scheduler(self, max_rows: int, events: SchedulerEvents) -> GroupScheduler:
        """Return a scheduler without samples, for samples of any settings that come and go one by one.

        Parameters
        ----------
        max_rows : int
            The most rows (samples x beams) that take steps.
        events : SchedulerEvents
            Receives what happens to samples.

        Returns
        -------
        GroupScheduler
            It is for one thread. Other calls of this runner run between its turns.
        """
        return GroupScheduler(self._runtime, max_rows, self._lock, events)

    def sample(self, number: int, tokens: Sequence[int], settings: Mapping[str, Any]) -> Sample:
        """Return a sample for ``scheduler``.

        Parameters
        ----------
        number : int
            The caller's number of the sample.
        tokens : sequence of int
            Token ids that ``check_ids`` has no objection to.
        settings : mapping
            Arguments of ``model.generate``, for this sample alone.

        Returns
        -------
        Sample

        Raises
        ------
        GenerationError
            A setting is unknown, not supported, or impossible for this model or prompt.
        """
        options = self.options_for(len(tokens), settings)
        return Sample.of_tokens(number, tokens, options, decoder_only=self.decoder_only)

    def sample_of_features(self, number: int, features: Array, settings: Mapping[str, Any]) -> Sample:
        """Return a sample of a speech model for ``scheduler``.

        Parameters
        ----------
        number : int
            The caller's number of the sample.
        features : float32 [mels, frames]
            Log-mel features of a whole window, as `LogMel.features` makes them.
        settings : mapping
            Arguments of ``model.generate``, for this sample alone.

        Returns
        -------
        Sample

        Raises
        ------
        GenerationError
            A setting is unknown, not supported, or impossible for this model.
        """
        options = self._for_one_window(self.options_for(1, settings))
        return Sample(number, options, features, self.manifest.sizes.max_source)

    def _for_one_window(self, options: GenerationOptions) -> GenerationOptions:
        """The same options. Raises GenerationError for a setting that only a whole recording follows."""
        if options.recording is not None and (name := options.recording.asked):
            raise GenerationError(f"{name} is for recordings (Runner.transcribe), not for one window; leave it out")
        return options

    def pad(self, rows: Sequence[Sequence[int]], options: GenerationOptions) -> tuple[Array, Array]:
        """Pad rows of token ids to a batch, on the side that this model expects.

        Parameters
        ----------
        rows : sequence of sequences of int
            Token ids of each row.
        options : GenerationOptions
            The settings, for the pad token.

        Returns
        -------
        input_ids : int64 [B, N]
        attention_mask : int64 [B, N]
        """
        return left_pad(rows, options.pad_token_id) if self.decoder_only else right_pad(rows)

    def prompt_of(self, input_ids: Array) -> int:
        """Return the length of the prompt that the sequences of a batch begin with.

        Parameters
        ----------
        input_ids : integers [B, N]
            The batch.

        Returns
        -------
        int
            N, padding included, of a decoder-only model; 0 of an encoder-decoder.
        """
        return input_ids.shape[1] if self.decoder_only else 0

    def generate_text(
        self, texts: Sequence[str], *, truncate: bool = False, batch_size: int = 8, **settings: Any
    ) -> list[str]:
        """Generate text from texts.

        Parameters
        ----------
        texts : sequence of str
            Sources of an encoder-decoder model, or prompts of a decoder-only model.
        truncate : bool
            Cut a text that is longer than the model's positions, which is an error otherwise.
        batch_size : int
            Texts run together, at most.
        **settings
            Arguments of ``model.generate``, by the same names.

        Returns
        -------
        list of str
            ``num_return_sequences`` texts for each input, best first, without the prompt of a decoder-only model.

        Raises
        ------
        GenerationError
            A setting is unknown, not supported, impossible for this model, or asks for more than texts.
        InputError
            A text cannot be run. The message names its index; nothing has been generated then.
        BundleError
            The runtime failed.

        Examples
        --------
        >>> runner.generate_text(reports, num_beams=4)
        ['Lindenton festival opens in March with 259 singers', 'Birchbridge factory to build 413 bicycles']
        """
        settings = self._without_effect(settings)
        _check_texts_alone(self.options(**settings))
        found = self._outputs(texts, truncate, batch_size, settings)
        return [text for output in found for text in output.texts or []]

    def generate_outputs(
        self, texts: Sequence[str], *, truncate: bool = False, batch_size: int = 8, **settings: Any
    ) -> list[Output]:
        """Generate from texts, as `generate_text` does, and return all that is known of the results.

        Parameters
        ----------
        texts, truncate, batch_size, **settings
            Arguments of `generate_text`; with ``return_token_scores`` and ``return_alternatives``, too.

        Returns
        -------
        list of Output
            One for each input: texts, token ids and scores of its sequences, best first, and what is asked for of their
            tokens.

        Raises
        ------
        GenerationError, InputError, BundleError
            Those of `generate_text`.
        """
        return self._outputs(texts, truncate, batch_size, self._without_effect(settings))

    def _outputs(
        self, texts: Sequence[str], truncate: bool, batch_size: int, settings: Mapping[str, Any]
    ) -> list[Output]:
        if isinstance(texts, str):
            raise InputError("texts is one string, expected a list of strings; pass [text]")
        if not (_is_integer(batch_size) and batch_size >= 1):
            raise InputError(f"batch_size={batch_size!r} is not a number of texts; pass 1 or more")
        self.options(**settings)
        samples: list[Sample] = []
        for index, text in enumerate(texts):
            try:
                samples.append(self.sample(index, self.encode(text, truncate=truncate, **settings)[0], settings))
            except InputError as error:
                raise InputError(f"text {index}: {error}") from None
        scheduler = self.scheduler(min(batch_size, max(1, len(samples))))  # on a GPU every place takes every step
        found = scheduler.run(samples)
        self.cache_bytes = scheduler.cache_bytes
        return [output_of(self, found[own.number], own.options, own.prompt_length) for own in samples]

    def transcribe(
        self, recordings: Sequence[str | os.PathLike[str] | Array], *, batch_size: int = 8, **settings: Any
    ) -> list[str]:
        """Transcribe recordings. One of more than a window is gone through by timestamps.

        Parameters
        ----------
        recordings : sequence of str, path, or float array [n]
            Names of WAV, FLAC, OGG or MP3 files, or samples in -1..1 at the model's rate.
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
        found = self._transcribed(recordings, batch_size, self._without_effect(settings))
        return [each.texts[0] if each.texts else "" for each in found]

    def transcribe_segments(
        self, recordings: Sequence[str | os.PathLike[str] | Array], *, batch_size: int = 8, **settings: Any
    ) -> list[list[TextSegment]]:
        """Transcribe recordings by timestamps.

        Parameters
        ----------
        recordings : sequence of str, path, or float array [n]
            Names of WAV, FLAC, OGG or MP3 files, or samples in -1..1 at the model's rate, ``log_mel.sampling_rate_hz``.
        batch_size : int
            Windows that run together, at most.
        **settings
            Arguments of ``model.generate``, by the same names; those of Whisper too.

        Returns
        -------
        list of list of TextSegment
            The segments of each recording, in order. Their tokens are together those of ``model.generate``.

        Raises
        ------
        GenerationError
            A setting is unknown, not supported, or impossible for this model.
        InputError
            A recording cannot be read as audio; the message names its file.
        BundleError
            The runtime failed.
        """
        settings = {**self._without_effect(settings), "return_timestamps": True}
        return [each.segments or [] for each in self._transcribed(recordings, batch_size, settings)]

    def _transcribed(
        self, recordings: Sequence[Any], batch_size: int, settings: Mapping[str, Any]
    ) -> list[InputResult]:
        from tightbeam.deploy.audio.transcribe import transcribe_files

        _check_texts_alone(self.options(**settings))
        if isinstance(recordings, str):
            raise InputError("recordings is one string, expected a list of file names; pass [path]")
        sources: list[str | Array] = []
        for each in recordings:
            if isinstance(each, str | os.PathLike):
                sources.append(os.fspath(each))
                continue
            samples = np.asarray(each)
            if samples.ndim != 1 or samples.dtype.kind != "f":
                raise InputError(
                    f"recordings holds {type(each).__name__}, expected names of audio files, or arrays of samples, one "
                    "channel of floats in -1..1; pass those"
                )
            sources.append(samples.astype(np.float32))
        results = []
        for done in transcribe_files(self, sources, batch_size=batch_size, **settings):
            if done.failure is not None:
                raise done.failure
            results.append(done.result)
        return results

    def encode(self, text: str, *, truncate: bool = False, **settings: Any) -> tuple[list[int], int]:
        """Tokenize a source text.

        Parameters
        ----------
        text : str
            The source, or the prompt of a decoder-only model.
        truncate : bool
            Cut a text that is longer than the model's positions, which is an error otherwise. A prompt leaves as many
            positions as ``settings`` make new tokens.
        **settings
            Arguments of ``model.generate``; they matter to prompts, and ``source_language`` to a translator.

        Returns
        -------
        tokens : list of int
        cut : int
            Tokens of the text that were cut off; 0 where it fits.

        Raises
        ------
        InputError
            The text cannot be run.
        """
        if not isinstance(text, str):
            raise InputError(f"a text is {type(text).__name__}, expected str; pass text")
        if self.log_mel:
            raise InputError("this is a speech model; pass audio instead of text (Runner.transcribe)")
        codec = self.require_tokenizer()
        if not text.strip():
            raise InputError("empty text; expected at least one word")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InputError("text holds half a character (a lone surrogate), which is not UTF-8; remove it") from None
        ids = codec.encode(text)
        limit, vocabulary = self.manifest.sizes.max_source, self.manifest.sizes.source_vocabulary
        if truncate and self.decoder_only:
            limit = max(1, min(limit, self._longest_prompt(settings)))
        length = len(ids)
        if length > limit and not truncate:
            raise InputError(
                f"text of {length} tokens is longer than {longest_source(self.manifest.sizes)}; shorten it, or cut it "
                "with --truncate (truncate=True)"
            )
        ids = codec.truncate(text, limit) if length > limit else ids
        ids = from_language(ids, self.manifest.generation, settings)
        if not ids:
            raise InputError("the tokenizer makes no token of this text; expected at least one word of its vocabulary")
        if max(ids) >= vocabulary:  # bart-large-cnn's tokenizer has a <mask> that the model lacks
            raise InputError(
                f"the tokenizer makes token {max(ids)} of this text, outside the model's vocabulary of {vocabulary}; "
                "remove the special token from the text"
            )
        return ids, length - len(ids)

    def check_ids(self, tokens: Sequence[int]) -> None:
        """Check token ids as one source.

        Parameters
        ----------
        tokens : sequence of int
            The source, or the prompt of a decoder-only model.

        Raises
        ------
        InputError
            There are none, too many, or one outside the vocabulary.
        """
        check_ids(tokens, self.manifest.sizes)

    def _longest_prompt(self, settings: Mapping[str, Any]) -> int:
        """Length of the longest prompt that leaves the positions for the new tokens of ``settings``; for one new token
        where ``settings`` limit the whole row."""
        options = self.options_for(1, settings)
        if options.limited_by == "max_length":
            return options.max_length - 1
        return self.manifest.sizes.max_target - options.max_length + 1

    def decode(self, sequence: Array | Sequence[int]) -> str:
        """Make text of one generated sequence.

        Parameters
        ----------
        sequence : integers [T]
            A row of ``SearchResult.sequences``; special tokens are left out.

        Returns
        -------
        str
            The text.

        Raises
        ------
        InputError
            The bundle has no tokenizer.
        """
        return self.require_tokenizer().decode([int(token) for token in sequence])

    def require_tokenizer(self) -> TextCodec:
        """Return the tokenizer.

        Returns
        -------
        TextCodec

        Raises
        ------
        InputError
            The bundle has none.
        """
        if self._codec is None:
            raise InputError(
                f"bundle {self.bundle.path} has no tokenizer, since its checkpoint has none; pass token ids "
                "(Runner.generate, or --ids)"
            )
        return self._codec


def _check_texts_alone(options: GenerationOptions) -> None:
    """Raise GenerationError for settings that ask for more than texts."""
    if options.scoring is not None:
        asked = options.scoring.asked
        raise GenerationError(f"{asked} is more than texts; call Runner.generate_outputs or Runner.generate")


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _keyed(
    source: Array, mask: Array, options: Sequence[GenerationOptions], prompt: Prompt | None
) -> list[GenerationOptions]:
    """The options of each sample, with draws that depend on its source without padding."""
    if options[0].sampling is None:
        return list(options)
    inputs = list(source)
    if prompt is not None:
        inputs = [row[skipped:] for row, skipped in zip(prompt.tokens, prompt.padding, strict=True)]
    elif source.ndim == 2:
        inputs = [row[own > 0] for row, own in zip(source, mask, strict=True)]
    return [own.for_input(each) for own, each in zip(options, inputs, strict=True)]
