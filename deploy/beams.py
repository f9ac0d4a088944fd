"""From the search's view of a step to the decoder's small inputs; it owns the beams' ancestry."""

from __future__ import annotations

import numpy as np

from tightbeam.deploy.engine import Array, Decoding
from tightbeam.deploy.generation import GenerationOptions
from tightbeam.deploy.search import Candidates, StepInputs

__all__ = ["BeamStepper"]


class BeamStepper:
    """The search's ``Step`` over a decoding in progress.

    ``ancestry`` int32 [B, M, C] says which beam slot wrote position t of each beam's own history. It is all that moves
    when beams are reordered.
    """

    def __init__(self, decoding: Decoding, options: GenerationOptions, batch_size: int, positions: int) -> None:
        self._decoding = decoding
        M = options.num_beams
        self._slots = np.tile(np.arange(M, dtype=np.int32), (batch_size, 1))  # [B, M]
        self._first_rows = np.arange(batch_size, dtype=np.int64)[:, None] * M  # [B, 1]
        self._ancestry = np.zeros((batch_size, M, positions), dtype=np.int32)
        ngram_size = min(options.no_repeat_ngram_size, options.max_length)  # longer ones fit into no row
        self._constants: dict[str, Array] = {
            "normalize": np.array(options.normalize),
            "repetition_penalty": np.array(options.repetition_penalty, dtype=np.float32),
            "no_repeat_ngram_size": np.array(ngram_size, dtype=np.int64),
            "candidates": np.array([options.candidates], dtype=np.int64),
        }

    def __call__(self, inputs: StepInputs) -> Candidates:
        B, M, T = inputs.history.shape
        past = self._ancestry[:, :, : T - 1]
        past[:] = np.take_along_axis(past, inputs.parents[:, :, None], axis=1)
        self._ancestry[:, :, T - 1] = self._slots
        rows = B * M
        scores, beams, tokens = self._decoding.step(
            {
                **self._constants,
                "tokens": inputs.tokens.reshape(rows, 1),
                "positions": np.full((rows, 1), T - 1, dtype=np.int64),
                "lengths": np.full(B, T, dtype=np.int32),
                "ancestry": np.ascontiguousarray(self._ancestry[:, :, :T]),
                "beam_index": (inputs.parents + self._first_rows).reshape(rows),
                "history": np.ascontiguousarray(inputs.history).reshape(rows, T),
                "beam_scores": inputs.beam_scores,
                "banned": inputs.banned.reshape(rows, inputs.banned.shape[2]),
            }
        )
        return Candidates(scores=scores, beams=beams, tokens=tokens)
