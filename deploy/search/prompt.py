"""The decoder's prompt: tokens that every row begins with, before the search chooses any.

Source: transformers 5.23, `generate` with decoder_input_ids, and `WhisperGenerationMixin.detect_language` for a token
that the model chooses.
"""

from __future__ import annotations

import numpy as np

from tightbeam.deploy.arrays import Ints
from tightbeam.deploy.generation.options import CHOSEN, GenerationOptions
from tightbeam.deploy.search.step import Step, StepInputs


def begin(step: Step, options: GenerationOptions, batch_size: int) -> Ints:
    """Write ``options.prompt`` to the beginning of ``step.history``, and run the decoder over all but its last token.

    Returns
    -------
    int64 [B, P]
        The beginning of each sample. For the entry `CHOSEN`, each sample has the best of ``options.choices``.
    """
    B, M, prompt = batch_size, options.num_beams, options.prompt
    history = step.history
    parents = np.tile(np.arange(M), (B, 1))  # [B, M]
    scores = np.zeros((B, M), np.float32)
    history[:, :, 0] = prompt[0]
    for length, token in enumerate(prompt[1:], start=1):
        banned = np.zeros(0, np.int64)
        if token == CHOSEN:
            banned = np.setdiff1d(np.arange(options.vocab_size), options.choices)
        known = history[:, :, :length]
        inputs = StepInputs(known[:, :, -1], known, parents, scores, np.broadcast_to(banned, (B, M, len(banned))))
        candidates = step(inputs)
        history[:, :, length] = candidates.tokens[:, :1] if token == CHOSEN else token
    return history[:, 0, : len(prompt)].copy()
