"""The decoder of `hashed_logits` as a search's step, with the search head in numpy; and results of removed searches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from support.options import resolve_options
from support.searches.hashed_logits import VOCABULARY, hashed_logits
from tightbeam.deploy.generation.options import GenerationOptions
from tightbeam.deploy.search import Candidates, StepInputs
from tightbeam.deploy.search.compaction import Compaction
from tightbeam.deploy.search.rows import Rows

FOLDER = Path(__file__).resolve().parents[2] / "data" / "removed-searches"


def cases_of(name: str) -> list[dict[str, Any]]:
    """The cases of a file that `removed_searches.py` has written."""
    cases: list[dict[str, Any]] = json.loads((FOLDER / f"{name}.json").read_text())
    return cases


def options_of(case: dict[str, Any], **more: Any) -> GenerationOptions:
    """The settings of a case."""
    given = {name: value for name, value in case["settings"].items() if value is not None}
    asked = {**given, **more}
    return resolve_options({}, asked, vocab_size=VOCABULARY, max_positions=99, prompt_length=len(case["rows"][0]))


class HashedStep:
    """A decoder without a cache, which keeps the samples' rows alone."""

    def __init__(self, case: dict[str, Any], options: GenerationOptions) -> None:
        self.ends = {int(token): more for token, more in case["ends"].items()}
        self.options = options
        self.history = np.zeros((len(case["rows"]), options.num_beams, options.max_length), np.int64)

    def __call__(self, inputs: StepInputs) -> Candidates:
        B, M, _ = inputs.history.shape
        lengths = inputs.lengths.repeat(M).tolist()
        histories = inputs.history.reshape(B * M, -1)
        logits = [hashed_logits(row[:own].tolist(), self.ends) for row, own in zip(histories, lengths, strict=True)]
        options = self.options
        rows = Rows(
            logits=np.stack(logits),
            history=histories,
            lengths=inputs.lengths,
            banned=inputs.banned.reshape(B * M, -1),
            normalize=options.normalize,
            repetition_penalty=options.repetition_penalty,
            no_repeat_ngram_size=options.no_repeat_ngram_size,
            trie=options.trie,
            nodes=inputs.nodes,
        )
        scores = np.stack([rows.processed(row) for row in range(B * M)]) + inputs.beam_scores.reshape(-1, 1)
        flat = scores.reshape(B * options.num_beam_groups, -1)
        order = np.argsort(-flat, axis=1, kind="stable")[:, : options.candidates]
        best = np.take_along_axis(flat, order, 1), order // VOCABULARY, order % VOCABULARY
        return Candidates(*(array.reshape(B, -1) for array in best), rows)

    def compact(self, compaction: Compaction) -> None:
        self.history = compaction.apply(self.history)
