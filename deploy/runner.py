"""The runner: a loaded bundle that turns token ids, or text, into generated sequences. Also the command.

python deploy/runner.py BUNDLE article.txt --num-beams 4
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tightbeam.deploy.audio.features import LogMel
from tightbeam.deploy.bundle.manifest import Manifest
from tightbeam.deploy.bundle.reader import Bundle
from tightbeam.deploy.errors import InputError
from tightbeam.deploy.generation.for_bundle import options_for
from tightbeam.deploy.generation.options import GenerationOptions
from tightbeam.deploy.generation.prompt import Prompt, left_pad, mask_of_padding, unbroken
from tightbeam.deploy.runtimes.base import Array, Runtime
from tightbeam.deploy.runtimes.onnxruntime_cpu import OnnxRuntimeCpu
from tightbeam.deploy.runtimes.step_inputs import BeamStepper
from tightbeam.deploy.search import SearchCallback, SearchResult, search
from tightbeam.deploy.text.tokenizer import TextCodec, load_codec

__all__ = ["Runner", "right_pad"]

TENSORRT = "tensorrt"
ENGINE_KINDS = ("onnxruntime", TENSORRT)
CUDA = "cuda"
DEVICES = ("cpu", CUDA)
MAX_THREADS = 1024
"""More than any machine has cores; ONNX Runtime would start a hundred thousand and hang."""


class Runner:
    """Drives the search over a bundle's graphs. Calls from several threads take turns."""

    def __init__(self, bundle: Bundle, engine: Runtime, codec: TextCodec | None) -> None:
        self.bundle = bundle
        self._engine = engine
        self._codec = codec
        speech = bundle.manifest.speech
        self.log_mel = LogMel.read(bundle.file(speech)) if speech else None
        """The feature extractor of a speech model; None for a text model."""
        self._turn = threading.Lock()
        self.cache_bytes = (0, 0)
        """Bytes of the source cache and of the generated cache in the last batch."""

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

        ``engine``: "onnxruntime"; "tensorrt", the engine built from this bundle that fits the GPU; or "tensorrt:NAME",
        the one of that name. ``threads``: for one operator of ONNX Runtime on the CPU; None takes all cores.
        ``device``: where ONNX Runtime runs, "cpu" or "cuda". ``verify``: compare every file with its checksum first.
        Raises BundleError for a bundle or an engine that cannot be read or run here, InputError for an engine or a
        device that is not known, or no threads.
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

    @property
    def manifest(self) -> Manifest:
        return self.bundle.manifest

    def options(self, **settings: Any) -> GenerationOptions:
        """The bundle's generation defaults with ``settings`` on top, under the names of ``model.generate``.

        Raises GenerationError for a setting that is unknown, not supported, or impossible for this model; of a
        decoder-only model, with a prompt of one token.
        """
        return self.options_for(1, settings)

    def options_for(self, prompt_length: int, settings: Mapping[str, Any]) -> GenerationOptions:
        """As ``options``, for prompts of so many tokens, padding included; with an encoder it does not matter."""
        return options_for(
            self.manifest.generation,
            settings,
            self.manifest.sizes,
            speech=self.log_mel is not None,
            prompt_length=prompt_length,
        )

    @property
    def decoder_only(self) -> bool:
        """Whether sequences begin with the prompt, rather than with a start token."""
        return self.manifest.sizes.decoder_only

    def batch_key(self, length: int, settings: Mapping[str, Any]) -> tuple[int, ...]:
        """What inputs of so many tokens must have in common to be run together, so that none changes what another gets.
        That is nothing with an encoder. A decoder-only model's lengths may count the padding, and so may what forbids
        or forces tokens after others. Raises GenerationError where such a prompt is too long for the settings."""
        if not self.decoder_only:
            return ()
        options = self.options_for(length, settings)
        looks_back = options.no_repeat_ngram_size > 0 or options.repetition_penalty != 1
        looks_back |= any((options.pad_token_id or 0) in word[:-1] for word in options.bad_words_ids)
        looks_back |= options.forced_bos_token_id is not None  # of prompts of one token
        room = options.max_length - length, max(0, options.min_length - length)
        return (*room, length) if looks_back else room

    def generate(
        self,
        input_ids: Array,
        attention_mask: Array | None = None,
        *,
        callback: SearchCallback | None = None,
        **settings: Any,
    ) -> SearchResult:
        """What ``model.generate(input_ids, attention_mask=..., **settings)`` returns, from the bundle.

        ``input_ids``: integers [B, N]. ``attention_mask``: [B, N] of 0 and 1; without it every position
        counts, as in transformers. Returns sequences int64 [B x num_return_sequences, T], each from the
        start token on, and for beam search scores float32 [B x num_return_sequences].

        Of a decoder-only model the sequences begin with the prompt, [B, N] as it was given; prompts padded on the
        right come back padded on the left, and give what ``generate`` gives for that. Without a mask pad tokens do not
        count, as in transformers. Lengths count the whole row, padding included, as there.

        ``callback`` is told of each sample as soon as it is through, and may let samples go.
        Raises GenerationError for a setting, InputError for ids or a mask that cannot be run.
        """
        if self.log_mel:
            raise InputError("this is a speech model; pass audio instead of token ids (Runner.transcribe)")
        options = self.options(**settings)
        ids, mask = self._check_inputs(input_ids, attention_mask, options)
        if not self.decoder_only:
            return self._run(ids, mask, options, callback)
        options, prompt = self.options_for(ids.shape[1], settings), Prompt.of(ids, mask)
        return self._run(prompt.source_ids, prompt.source_mask, options, callback, prompt)

    def generate_from_features(
        self, input_features: Array, *, callback: SearchCallback | None = None, **settings: Any
    ) -> SearchResult:
        """What ``model.generate(input_features, return_dict_in_generate=True, **settings)`` returns, from the bundle of
        a speech model: sequences with their prompt.

        ``input_features``: float32 [B, mels, frames], of whole windows. ``callback``: as in ``generate``. Raises
        GenerationError for a setting, InputError for features that cannot be run.
        """
        options = self.options(**settings)
        if not self.log_mel:
            raise InputError("this is a text model; pass text or token ids instead of audio")
        features = _as_array("input_features", input_features)
        mels, frames = self.log_mel.mels, self.log_mel.frames
        if features.ndim != 3 or features.shape[1:] != (mels, frames) or not len(features):
            raise InputError(f"input_features is {list(features.shape)}, expected [B, {mels}, {frames}]")
        if not (np.issubdtype(features.dtype, np.floating) and np.isfinite(features).all()):
            raise InputError(f"input_features is {features.dtype}, or holds NaN or infinity; expected finite float32")
        mask = np.ones((len(features), self.manifest.sizes.max_source), dtype=np.int64)
        return self._run(np.ascontiguousarray(features, dtype=np.float32), mask, options, callback)

    def _run(
        self,
        source: Array,
        mask: Array,
        options: GenerationOptions,
        callback: SearchCallback | None,
        prompt: Prompt | None = None,
    ) -> SearchResult:
        P = 1 if prompt is None else prompt.tokens.shape[1]
        positions = options.max_length - P  # the last token is never fed back
        with self._turn:
            decoding = self._engine.begin(source, mask, options.num_beams, positions, options.candidates, P)
            beginnings = None if prompt is None else prompt.tokens
            result = search(BeamStepper(decoding, options, prompt), options, len(source), beginnings, callback)
            self.cache_bytes = decoding.cache_bytes
            decoding.close()
        return result

    def pad(self, rows: Sequence[Sequence[int]], options: GenerationOptions) -> tuple[Array, Array]:
        """Rows of token ids as int64 [B, N] and their mask, padded on the side on which this model expects it."""
        return left_pad(rows, options.pad_token_id) if self.decoder_only else right_pad(rows)

    def prompt_of(self, input_ids: Array) -> int:
        """How many tokens of a batch [B, N] its sequences begin with, padding included."""
        return input_ids.shape[1] if self.decoder_only else 0

    def generate_text(
        self, texts: Sequence[str], *, truncate: bool = False, batch_size: int = 8, **settings: Any
    ) -> list[str]:
        """Generate for each text; ``num_return_sequences`` texts for each, one after the other. Of a decoder-only model
        they are what comes after the prompt.

        ``truncate``: cut a text that is longer than the model's positions, which is an error otherwise.
        Raises InputError, naming the text's index, before anything is generated; and GenerationError.
        """
        if isinstance(texts, str):
            raise InputError("texts is one string, expected a list of strings; pass [text]")
        if not (_is_integer(batch_size) and batch_size >= 1):
            raise InputError(f"batch_size={batch_size!r} is not a number of texts; pass 1 or more")
        options = self.options(**settings)
        rows: dict[tuple[int, ...], list[tuple[int, list[int]]]] = {}
        for index, text in enumerate(texts):
            try:
                tokens = self.encode(text, truncate=truncate, **settings)[0]
            except InputError as error:
                raise InputError(f"text {index}: {error}") from None
            rows.setdefault(self.batch_key(len(tokens), settings), []).append((index, tokens))
        results: dict[int, list[str]] = {}
        count = options.num_return_sequences
        for together in rows.values():
            for start in range(0, len(together), batch_size):
                batch = together[start : start + batch_size]
                ids, mask = self.pad([tokens for _, tokens in batch], options)
                found = self.generate(ids, mask, **settings).sequences[:, self.prompt_of(ids) :]
                for sample, (index, _) in enumerate(batch):
                    results[index] = [self.decode(row) for row in found[sample * count : (sample + 1) * count]]
        return [text for index in range(len(texts)) for text in results[index]]

    def transcribe(self, paths: Sequence[str], *, batch_size: int = 8, **settings: Any) -> list[str]:
        """Transcribe audio files (WAV, FLAC) window by window; returns the joined text of each.

        Raises InputError, naming the file, for one that cannot be transcribed; and GenerationError.
        """
        from tightbeam.deploy.audio.transcribe import read_features, transcribe

        if isinstance(paths, str):
            raise InputError("paths is one string, expected a list of file names; pass [path]")
        self.options(**settings)
        outputs = (transcribe(self, read_features(self, path), batch_size=batch_size, **settings) for path in paths)
        return [output.texts[0] if output.texts else "" for output in outputs]

    def encode(self, text: str, *, truncate: bool = False, **settings: Any) -> tuple[list[int], bool]:
        """Token ids of a source text, and whether it was cut: to the model's positions, of which a prompt leaves as
        many as ``settings`` make new tokens. Raises InputError for a text that cannot be run."""
        if not isinstance(text, str):
            raise InputError(f"a text is {type(text).__name__}, expected str")
        if self.log_mel:
            raise InputError("this is a speech model; pass audio instead of text (Runner.transcribe)")
        codec = self._require_codec()
        if not text.strip():
            raise InputError("empty text; expected at least one word")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InputError("text holds half a character (a lone surrogate), which is not UTF-8; remove it") from None
        ids = codec.encode(text)
        limit, vocabulary = self.manifest.sizes.max_source, self.manifest.sizes.source_vocabulary
        if truncate and self.decoder_only:
            limit = max(1, min(limit, self._room_for_prompts(settings)))
        cut = len(ids) > limit
        if cut and not truncate:
            raise InputError(
                f"text of {len(ids)} tokens is longer than {self.longest_source}; shorten it, or cut it with "
                "--truncate (truncate=True)"
            )
        ids = codec.truncate(text, limit) if cut else ids
        if not ids:
            raise InputError("the tokenizer makes no token of this text; expected at least one word it knows")
        if max(ids) >= vocabulary:  # bart-large-cnn's tokenizer has a <mask> that the model lacks
            raise InputError(
                f"the tokenizer makes token {max(ids)} of this text, outside the model's vocabulary of {vocabulary}; "
                "remove the special token from the text"
            )
        return ids, cut

    def check_ids(self, tokens: Sequence[int]) -> None:
        """Raise InputError for the token ids of one source that cannot be run."""
        sizes = self.manifest.sizes
        if not len(tokens):
            raise InputError("no token ids; expected at least one")
        outside = next((token for token in tokens if not 0 <= token < sizes.source_vocabulary), None)
        if outside is not None:
            raise InputError(
                f"token id {outside} is outside the vocabulary; expected 0 to {sizes.source_vocabulary - 1}"
            )
        if len(tokens) > sizes.max_source:
            raise InputError(f"{len(tokens)} token ids are more than {self.longest_source}; shorten them")

    def _room_for_prompts(self, settings: Mapping[str, Any]) -> int:
        """The longest prompt that leaves room for what ``settings`` make; for one token where they limit the whole."""
        options = self.options_for(1, settings)
        if options.limited_by == "max_length":
            return options.max_length - 1
        return self.manifest.sizes.max_target - options.max_length + 1

    def decode(self, sequence: Array | Sequence[int]) -> str:
        """The text of one generated sequence, without special tokens."""
        return self._require_codec().decode([int(token) for token in sequence])

    @property
    def longest_source(self) -> str:
        """How many tokens a source may have, as errors say it."""
        sizes = self.manifest.sizes
        if self.decoder_only:
            return f"the {sizes.max_source} that a prompt may have, of {sizes.max_target} positions one for a new token"
        return f"the model's {sizes.max_source} positions"

    @property
    def has_tokenizer(self) -> bool:
        return self._codec is not None

    def _require_codec(self) -> TextCodec:
        if self._codec is None:
            raise InputError(
                f"bundle {self.bundle.path} has no tokenizer, since its checkpoint has none; pass token ids "
                "(Runner.generate, or --ids)"
            )
        return self._codec

    def _check_inputs(
        self, input_ids: Array, attention_mask: Array | None, options: GenerationOptions
    ) -> tuple[Array, Array]:
        sizes = self.manifest.sizes
        ids = _as_array("input_ids", input_ids)
        if ids.size == 0:
            raise InputError(f"input_ids is empty, {list(ids.shape)}; expected at least one sample of one token")
        if ids.ndim != 2 or not np.issubdtype(ids.dtype, np.integer):
            raise InputError(f"input_ids is {ids.dtype} {list(ids.shape)}, expected integers [B, N]")
        if ids.shape[1] > sizes.max_source:
            raise InputError(
                f"input_ids has {ids.shape[1]} positions, more than {self.longest_source}; shorten the source"
            )
        outside = ids[(ids < 0) | (ids >= sizes.source_vocabulary)]
        if outside.size:
            raise InputError(
                f"input_ids holds {int(outside[0])}, which is outside the vocabulary; "
                f"expected 0 to {sizes.source_vocabulary - 1}"
            )
        if attention_mask is None:
            mask = mask_of_padding(ids, options) if self.decoder_only else np.ones_like(ids)
        else:
            mask = _as_array("attention_mask", attention_mask)
            if mask.shape != ids.shape:
                raise InputError(f"attention_mask is {list(mask.shape)}, expected {list(ids.shape)} like input_ids")
            if not np.isin(mask, (0, 1)).all():
                raise InputError("attention_mask holds other values than 0 and 1")
        empty = np.flatnonzero(~mask.astype(bool).any(axis=1))
        if empty.size:
            raise InputError(f"sample {int(empty[0])} has no token that attention_mask lets through")
        whole = unbroken(mask.astype(np.int64))
        if self.decoder_only and not whole.all():
            sample = int(np.argmin(whole))
            raise InputError(
                f"attention_mask has a gap in sample {sample}; expected a prompt in one piece, padded on a side"
            )
        return np.ascontiguousarray(ids, dtype=np.int64), np.ascontiguousarray(mask, dtype=np.int64)


def _as_array(name: str, value: Any) -> Array:
    try:
        return np.asarray(value)
    except ValueError:
        raise InputError(f"{name} has rows of different lengths, expected [B, N]; pad them and mask that") from None


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def right_pad(rows: Sequence[Sequence[int]]) -> tuple[Array, Array]:
    """Token ids int64 [B, N], padded on the right, and their attention mask int64 [B, N]. What pads is masked."""
    ids = np.zeros((len(rows), max(map(len, rows))), dtype=np.int64)
    mask = np.zeros_like(ids)
    for row, tokens in enumerate(rows):
        ids[row, : len(tokens)] = tokens
        mask[row, : len(tokens)] = 1
    return ids, mask


if __name__ == "__main__":
    from tightbeam.deploy.command import main

    main()
