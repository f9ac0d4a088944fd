"""Greedy search, beam search (diverse, constrained) and sampling: in numpy, after transformers; one file a search."""

from __future__ import annotations

from tightbeam.deploy.generation.options import GenerationOptions
from tightbeam.deploy.search.batch import BatchSearch
from tightbeam.deploy.search.beam import BeamSearch
from tightbeam.deploy.search.beam_sampling import BeamSampleSearch
from tightbeam.deploy.search.callbacks import NullCallback, SearchCallback
from tightbeam.deploy.search.forced_words import ForcedWordsSearch
from tightbeam.deploy.search.greedy import GreedySearch
from tightbeam.deploy.search.group_beam import GroupBeamSearch
from tightbeam.deploy.search.sampling import SampleSearch
from tightbeam.deploy.search.step import Candidates, SearchResult, Step, StepInputs
from tightbeam.deploy.search.token_scores import Alternatives, Scored

__all__ = [
    "Alternatives",
    "BatchSearch",
    "Candidates",
    "NullCallback",
    "Scored",
    "SearchCallback",
    "SearchResult",
    "Step",
    "StepInputs",
    "new_search",
]


def new_search(step: Step, options: GenerationOptions, callback: SearchCallback) -> BatchSearch:
    """Return a search without samples, for those of settings like ``options``."""
    if options.num_beam_groups > 1:
        return GroupBeamSearch(step, options, callback)
    if options.force_words_ids:
        return ForcedWordsSearch(step, options, callback)
    if options.sampling is not None:
        return (BeamSampleSearch if options.samples_beams else SampleSearch)(step, options.num_beams, callback)
    return (BeamSearch if options.normalize else GreedySearch)(step, options.num_beams, callback)
