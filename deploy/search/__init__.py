"""Greedy search, beam search (diverse, constrained) and sampling: in numpy, after transformers; one file a search."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tightbeam.deploy.generation.options import GenerationOptions
from tightbeam.deploy.search.batch import BatchSearch
from tightbeam.deploy.search.beam import BeamSearch
from tightbeam.deploy.search.beam_sampling import BeamSampleSearch
from tightbeam.deploy.search.callbacks import NullCallback, SearchCallback
from tightbeam.deploy.search.endings import FinishReason
from tightbeam.deploy.search.forced_words import ForcedWordsSearch
from tightbeam.deploy.search.greedy import GreedySearch
from tightbeam.deploy.search.group_beam import GroupBeamSearch
from tightbeam.deploy.search.sampling import SampleSearch
from tightbeam.deploy.search.step import Candidates, SearchResult, Step, StepInputs
from tightbeam.deploy.search.token_scores import Alternatives, Scored

__all__ = [
    "SEARCHES",
    "Alternatives",
    "BatchSearch",
    "Candidates",
    "FinishReason",
    "NullCallback",
    "Scored",
    "SearchCallback",
    "SearchResult",
    "Step",
    "StepInputs",
    "new_search",
]


SEARCHES: tuple[tuple[Callable[[GenerationOptions], bool], type[BatchSearch[Any]]], ...] = (
    (lambda options: options.num_beam_groups > 1, GroupBeamSearch),
    (lambda options: bool(options.force_words_ids), ForcedWordsSearch),
    (lambda options: options.samples_beams, BeamSampleSearch),
    (lambda options: options.sampling is not None, SampleSearch),
    (lambda options: options.num_beams > 1, BeamSearch),
    (lambda options: True, GreedySearch),
)
"""All searches, each behind the condition on a sample's settings under which it is chosen; the first that holds counts.
A condition on settings that are not part of `GenerationOptions.kind` would mix searches in one batch."""


def new_search(step: Step, options: GenerationOptions, callback: SearchCallback) -> BatchSearch[Any]:
    """Return a search without samples.

    Parameters
    ----------
    step : Step
    options : GenerationOptions
        The options of any sample; samples of other kinds must not join.
    callback : SearchCallback
        Receives tokens and results, and may cancel samples.
    """
    chosen = next(search for condition, search in SEARCHES if condition(options))
    return chosen(step, options, callback)
