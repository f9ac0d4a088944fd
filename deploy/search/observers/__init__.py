"""Observers of a search: they measure what was asked for while a sample is searched. One file an observer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from tightbeam.deploy.generation.options import GenerationOptions
from tightbeam.deploy.search.observers._observer import Observer, SampleStep
from tightbeam.deploy.search.observers.alignment import alignment
from tightbeam.deploy.search.observers.confidence import confidence
from tightbeam.deploy.search.observers.language import language
from tightbeam.deploy.search.observers.token_scores import token_scores

__all__ = ["OBSERVERS", "Observer", "SampleStep", "observers_of"]

Maker: TypeAlias = Callable[[GenerationOptions, int], Observer | None]
"""Makes an observer from the settings of a sample and the tokens that its rows begin with; returns None if the settings
do not ask for it."""

OBSERVERS: tuple[Maker, ...] = (token_scores, alignment, confidence, language)


def observers_of(options: GenerationOptions, beginning: int) -> list[Observer]:
    """Return the observers of a sample whose rows begin with some tokens."""
    made = (maker(options, beginning) for maker in OBSERVERS)
    return [observer for observer in made if observer is not None]
