"""The results of several samples as one `SearchResult`, padded like the output of ``model.generate``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tightbeam.deploy.scheduling.sample import Sample
from tightbeam.deploy.search import FinishReason, Scored, SearchResult

__all__ = ["join_results"]


def join_results(samples: Sequence[Sample], found: Mapping[int, SearchResult]) -> SearchResult:
    """Join the results of samples that were generated with the same settings.

    Parameters
    ----------
    samples : sequence of B Sample
        At least one.
    found : mapping of int to SearchResult
        Results by the samples' numbers. A sample without a result was cancelled, and gets rows of padding.

    Returns
    -------
    SearchResult
        The samples in their order. Prompts are padded on the left to the longest, new tokens on the right.
    """
    options = samples[0].options
    returned, pad = options.num_return_sequences, options.pad_token_id or 0
    fill = options.fill_token_id if options.normalize and options.eos_token_ids else pad
    prompts = max(sample.prompt_length for sample in samples)
    new = max(
        (
            found[sample.number].sequences.shape[1] - sample.prompt_length
            for sample in samples
            if sample.number in found
        ),
        default=0,
    )
    count = len(samples) * returned
    sequences = np.full((count, prompts + new), fill, np.int64)
    sequences[:, :prompts] = pad
    scores = np.zeros(count, np.float32) if options.normalize else None
    reasons: list[FinishReason] = ["cancelled"] * count
    new_tokens, scored = [0] * count, list[tuple[range, Scored]]()
    for index, sample in enumerate(samples):
        if (own := found.get(sample.number)) is None:
            continue
        rows, first = range(index * returned, (index + 1) * returned), prompts - sample.prompt_length
        sequences[rows.start : rows.stop, first : first + own.sequences.shape[1]] = own.sequences
        if scores is not None:
            scores[rows.start : rows.stop] = own.scores
        reasons[rows.start : rows.stop], new_tokens[rows.start : rows.stop] = own.finish_reasons, own.new_tokens
        scored.append((rows, own.scored))
    return SearchResult(sequences, scores, Scored.join(scored, count), tuple(reasons), tuple(new_tokens))
