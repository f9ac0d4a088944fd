"""Conversion of the search's step inputs to the decoder's small inputs, with the ancestry of the beams."""

from __future__ import annotations

import numpy as np

from tightbeam.deploy.arrays import Array
from tightbeam.deploy.errors import NonFiniteError
from tightbeam.deploy.generation.options import GenerationOptions
from tightbeam.deploy.runtimes._padded_history import PaddedHistory, banned_by_padding
from tightbeam.deploy.runtimes.base import Decoding
from tightbeam.deploy.search import Candidates, StepInputs
from tightbeam.deploy.search.compaction import Compaction
from tightbeam.deploy.search.rows import Rows

__all__ = ["BeamStepper"]


class BeamStepper:
    """The search's ``Step`` over a decoding in progress. A step writes into the decoding's buffers.

    The buffer ``ancestry`` int32 [B, M, T_max] holds the beam slot that wrote position t of each beam's history. Beams
    are reordered by reordering it; the caches are never moved. FasterTransformer, ONNX Runtime and TensorRT-LLM call it
    ``cache_indirection``.

    Parameters
    ----------
    decoding : Decoding
    options : GenerationOptions
        The options of any sample. Only options that all samples of a batch share are read.

    Samples are added by ``join``, in the order of their places.
    """

    def __init__(self, decoding: Decoding, options: GenerationOptions) -> None:
        self._decoding = decoding
        self._beams = options.num_beams
        inputs = decoding.inputs
        self._samples = np.zeros(0, np.int64)  # [B']: sample of the batch by place
        self._prompt_lengths = np.zeros(0, np.int64)  # [B']
        self._padding = np.zeros(0, np.int64)  # [B'], tokens of padding in them
        self._padded: PaddedHistory | None = None  # the search's rows, if the decoder's have no padding
        self._options, self._reads_logits = options, options.reads_logits
        inputs["normalize"][...] = options.normalize
        inputs["repetition_penalty"][...] = options.repetition_penalty
        inputs["candidates"][...] = options.candidates
        inputs["all_logits"][...] = self._reads_logits
        if self._reads_logits:
            decoding.fetch_logits()
        if options.aligned:
            decoding.fetch_alignment()
        self._slots = np.arange(self._beams)  # [M]
        if options.trie is not None:
            decoding.use_trie(options.trie)
        self._bind_buffers()

    def _bind_buffers(self) -> None:
        """Refer to the decoding's present buffers."""
        inputs = self._decoding.inputs
        rows, M = len(inputs["tokens"]), self._beams
        # No row is longer than the buffer and its last token, so a larger size bans nothing.
        inputs["no_repeat_ngram_size"][...] = min(self._options.no_repeat_ngram_size, inputs["history"].shape[1] + 1)
        self._places = np.arange(rows // M)[:, None]  # [B, 1]
        self._first_rows = M * self._places
        self._tokens = inputs["tokens"].reshape(-1, M)
        self._beam_index = inputs["beam_index"].reshape(-1, M)
        self._rows_history = inputs["history"].reshape(rows // M, M, inputs["history"].shape[1])
        self.history = self._rows_history
        if self._padded is not None:
            self.history = self._padded.rows(*self._rows_history.shape[::2])
        self._ancestry = inputs["ancestry"]
        self._positions = inputs["positions"].reshape(-1, M)
        self._first_positions = inputs["first_positions"][:, None].astype(np.int64)  # [B, 1]

    def __call__(self, inputs: StepInputs) -> Candidates:
        newest = inputs.lengths - self._prompt_lengths  # [B], the position that each sample writes in this step
        longest = int(newest.max())
        if self._beams > 1 and longest:
            past = self._ancestry[:, :, :longest]
            past[:] = past[self._places, inputs.parents]
        self._ancestry[self._places, self._slots, newest[:, None]] = self._slots
        np.add(inputs.parents, self._first_rows, out=self._beam_index)
        buffers = self._decoding.inputs
        self._tokens[:] = inputs.tokens
        np.add(self._first_positions, newest[:, None], out=self._positions)
        np.add(newest, 1, out=buffers["lengths"], casting="unsafe")
        buffers["history_lengths"].T[...] = inputs.lengths  # [B], or [B, groups]
        if inputs.nodes is not None:
            buffers["trie_nodes"][:] = inputs.nodes.reshape(-1)
        buffers["beam_scores"][:] = inputs.beam_scores
        self._ban(inputs.banned if self._padded is None else self._without_padding(inputs))
        scores, beams, tokens = self._decoding.step()
        self._check(scores, tokens, inputs.lengths)
        return Candidates(scores, beams, tokens, self._whole_rows(), self._decoding.alignment_queries)

    def _whole_rows(self) -> Rows | None:
        """Return all scores of the step; None if they are not fetched."""
        logits = self._decoding.logits if self._reads_logits else None
        if logits is None:
            return None
        names = "history", "history_lengths", "banned", "trie_nodes"
        return Rows.of(self._options, logits, *(self._decoding.inputs[name] for name in names))

    def _without_padding(self, inputs: StepInputs) -> Array:
        """Write the decoder's rows, without padding. Returns all banned tokens [B, M, X]."""
        size, banned = self._options.no_repeat_ngram_size, [*inputs.banned]
        for place, (length, padding) in enumerate(zip(inputs.lengths.tolist(), self._padding.tolist(), strict=True)):
            own = inputs.history[place, :, :length]
            self._rows_history[place, :, : length - padding] = own[:, padding:]
            banned[place] = np.concatenate([banned[place], banned_by_padding(own, padding, size)], axis=1)
        self._decoding.inputs["history_lengths"].T[...] = inputs.lengths - self._padding
        found = np.full((len(banned), self._beams, max(own.shape[1] for own in banned)), -1, np.int64)
        for row, each in zip(found, banned, strict=True):
            row[:, : each.shape[1]] = each
        return found

    def _ban(self, banned: Array) -> None:
        """Write banned tokens [B, M, P] into their buffer, filled up with -1."""
        P = banned.shape[2]
        self._decoding.reserve_banned(P)
        buffer = self._decoding.inputs["banned"]
        buffer[:, :P] = banned.reshape(len(buffer), P)
        buffer[:, P:] = -1

    def _check(self, scores: Array, tokens: Array, lengths: Array) -> None:
        """Raise NonFiniteError for a sample whose scores are NaN."""
        if tokens.min() >= 0 and not np.isnan(scores.min()):  # the minimum is NaN if any score is
            return
        invalid = np.isnan(scores).any(axis=1) | (tokens < 0).any(axis=1)
        sample = int(self._samples[invalid].min())
        length = int(lengths[self._samples == sample][0])
        raise NonFiniteError(f"the model's scores of sample {sample} are NaN or infinite after {length} tokens")

    def join(self, number: int, prompt_length: int, first_position: int) -> None:
        """Add the sample that has the next place of the decoding.

        Parameters
        ----------
        number : int
            The sample's number, for errors.
        prompt_length : int
            Tokens that its rows begin with, with padding. The decoder reads the last of them first.
        first_position : int
            The position of that token, not counting padding.
        """
        place, padding = len(self._samples), prompt_length - 1 - first_position
        self._samples = np.append(self._samples, number)
        self._prompt_lengths = np.append(self._prompt_lengths, prompt_length)
        self._padding = np.append(self._padding, padding)
        if padding and self._padded is None:
            self._padded = PaddedHistory(self.history)
        self._decoding.inputs["first_positions"][place] = first_position
        self._bind_buffers()

    def compact(self, compaction: Compaction) -> None:
        if self._padded is not None:
            self._padded.compact(compaction, len(self._samples))
        self._decoding.compact(compaction)
        self._samples = compaction.apply(self._samples)
        self._prompt_lengths = compaction.apply(self._prompt_lengths)
        self._padding = compaction.apply(self._padding)
        self._bind_buffers()
