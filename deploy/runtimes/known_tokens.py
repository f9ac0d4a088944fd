"""Tokens that are known before the decoder has read them: most of a decoder's prompt, and a draft of its output.

The decoder reads known tokens in one run, where generated tokens take a step each (`Decoding.prefill`).

    prompt   <prev> The painter draws <start> <en> <transcribe> The     read before the first step, without logits
    draft                                                           painter draws the how
    steps                                                           painter draws the house     verified
                                                                                      -----     a step of its own

A draft is verified: its logits are what the search chooses from, step by step, for as long as it chooses the draft's
tokens. Behind another token the rest of the draft is tried again, or the decoder runs steps; either overwrites what was
cached behind that token. So a draft changes no token but for rounding, as other rows beside a row do.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tightbeam.deploy.arrays import Ints
from tightbeam.deploy.generation.options import GenerationOptions
from tightbeam.deploy.runtimes.base import Decoding, KnownTokens
from tightbeam.deploy.runtimes.step_inputs import BeamStepper
from tightbeam.deploy.search import Candidates, StepInputs
from tightbeam.deploy.search.compaction import Compaction
from tightbeam.deploy.search.rows import Rows, candidates_of_rows

__all__ = ["KnownSteps"]

LEAST, LEAST_BESIDE = 4, 16
"""Fewest known tokens that are read in one run: of a sample that is alone in its batch, and of one beside others, whose
steps read the weights for all of them at once (Marian-base in int8, greedily: as fast at 6 tokens beside 3 samples, at
14 beside 15, at 18 beside 31; with 4 beams at fewer)."""
TOGETHER, AGAIN = 64, 8
"""Tokens of a draft that are read at a time: at first, and behind a token that it has not foreseen. A run of a few rows
takes little more than a step, whose time goes to reading weights. 64 rows of logits take 13 MB."""
NEAR = 16
"""Tokens of a draft among which a token that it has not foreseen is looked for."""


@dataclass
class _Draft:
    """A row's tokens so far and what the draft says will follow, and what the decoder gave for some of them.

    Behind a token that the draft has not foreseen it goes on behind the nearest such token in it; else it goes on as if
    one token were replaced, once.

    Attributes
    ----------
    guess : int64 [T]
    most : int
        Tokens that the caches have room for.
    read : int
        Tokens whose caches are written.
    together : int
        Tokens to read at a time.
    foreseen : bool
        True if the row's last token was the draft's.
    known : KnownTokens or None
        The results for the latest part.
    first : int
        The position of its first token.
    """

    guess: Ints
    most: int
    read: int
    together: int
    foreseen: bool = True
    known: KnownTokens | None = None
    first: int = 0

    def follow(self, row: Ints) -> bool:
        """Let the guess begin with the tokens of a row, which has one more than in the last call. Returns False if the
        draft does not say what follows."""
        length = len(row)
        if length <= len(self.guess) and np.array_equal(self.guess[:length], row):
            self.foreseen = True
            return True
        rest = self.guess[length - 1 :]
        places = np.flatnonzero(rest[:NEAR] == row[-1])
        known = len(places) > 0 or self.foreseen
        if known:
            rest = rest[int(places[0]) + 1 if len(places) else 1 :]
        self.guess, self.together, self.foreseen = np.concatenate([row, rest])[: self.most], AGAIN, False
        self.read = length - 1
        return known and len(self.guess) > length

    @property
    def is_over(self) -> bool:
        """True if nothing is left to verify."""
        return self.read >= len(self.guess)

    def next_part(self) -> Ints:
        """The tokens to read next."""
        part = self.guess[self.read : self.read + self.together]
        self.together = min(2 * self.together, TOGETHER)
        return part


class KnownSteps:
    """The search's ``Step`` that answers from a draft while it can, and else runs the steps of a decoding.

    Parameters
    ----------
    decoding : Decoding
    stepper : BeamStepper
        Runs the steps.
    options : GenerationOptions
        The options of any sample. Only options that all samples of a batch share are read.
    """

    def __init__(self, decoding: Decoding, stepper: BeamStepper, options: GenerationOptions) -> None:
        self._decoding, self._stepper, self._options = decoding, stepper, options
        self._draft: _Draft | None = None

    @property
    def history(self) -> Ints:
        """The buffer of the stepper."""
        return self._stepper.history

    def begin(self, place: int, options: GenerationOptions) -> int:
        """Let the decoder read the known tokens of a sample that has just joined.

        A draft is for greedy search and sampling of a sample that is alone in the batch; a sample that joins ends it.

        Parameters
        ----------
        place : int
            The sample's place in the decoding.
        options : GenerationOptions
            The sample's options.

        Returns
        -------
        int
            Tokens of ``options.prompt`` that the decoder has read.
        """
        self._draft = None
        count = self._read_prompt(place, options.prompt[: options.unobserved])
        tokens = options.drafted
        if place == 0 and options.num_beams == 1 and len(tokens) - count >= LEAST:
            self._draft = _Draft(np.array(tokens, np.int64), options.max_length - 1, count, TOGETHER)
        return count

    def _read_prompt(self, place: int, tokens: tuple[int, ...]) -> int:
        """Let the decoder read the beginning of a prompt. Returns how many of its tokens it has read: all or none."""
        if len(tokens) < (LEAST_BESIDE if place else LEAST):
            return 0
        if self._decoding.prefill(place, np.array(tokens, np.int64), 0) is None:
            return 0
        self._decoding.inputs["ancestry"][place, :, : len(tokens)] = 0  # all beams continue the first row
        return len(tokens)

    def __call__(self, inputs: StepInputs) -> Candidates:
        draft = self._draft
        if draft is not None:
            found = self._verified(draft, inputs)
            if found is not None:
                return found
            draft.read = int(inputs.lengths[0])  # the step reads it
            if draft.is_over:
                self._draft = None
        return self._stepper(inputs)

    def _verified(self, draft: _Draft, inputs: StepInputs) -> Candidates | None:
        """The candidates of a step that the draft has foreseen; None if it has not."""
        length = int(inputs.lengths[0])
        if not draft.follow(inputs.history[0, 0, :length]):
            return None
        if length > draft.read:
            part = draft.next_part()
            if len(part) == 1:
                return None  # a step reads it as fast
            draft.known = self._decoding.prefill(0, part, draft.read, read=True)
            draft.first, draft.read = draft.read, draft.read + len(part)
        known, place = draft.known, length - 1 - draft.first
        if known is None or known.logits is None:
            self._draft = None  # nothing is verified here
            return None
        if np.isnan(known.logits[place]).any():
            return None  # a step reports it
        own, options = slice(place, place + 1), self._options
        seen = inputs.history[0], inputs.lengths, inputs.banned[0], np.zeros(1, np.int32)
        scored = Rows.of(options, known.logits[own].copy(), *seen).processed(0)
        scores, beams, tokens = candidates_of_rows([scored], inputs.beam_scores[0], options.candidates)
        rows = Rows.of(options, known.logits[own], *seen) if options.reads_logits else None
        queries = None if known.queries is None else known.queries[own]
        return Candidates(scores[None], beams[None], tokens[None], rows, queries)

    def compact(self, compaction: Compaction) -> None:
        """Remove samples."""
        self._stepper.compact(compaction)
