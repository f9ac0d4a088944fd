"""The cache of what is made of settings: equal settings share an object, and large ones do not fill the memory."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import numpy as np
import pytest

from support.bundles.cache import BundleCache
from tightbeam.deploy import Runner
from tightbeam.deploy.generation.layers import Layer, settings_of
from tightbeam.deploy.generation.settings_cache import MOST_HEAVY, MOST_LIGHT, SettingsCache
from tightbeam.deploy.search.processors import processors_of


class Made:
    """An object that is made of settings."""

    def __init__(self, settings: object) -> None:
        self.settings = settings


@pytest.mark.parametrize(
    ("settings", "most"),
    [
        (lambda number: (number, (1, 2)), MOST_LIGHT),
        (lambda number: (number, tuple(range(9000))), MOST_HEAVY),
        (lambda number: (number, tuple((token, 1) for token in range(900))), MOST_HEAVY),
        (lambda number: (number, "a" * 9000), MOST_HEAVY),
        (lambda number: (Layer("a request", {"bad_words_ids": [[5]] * 900}, asked=True), number), MOST_HEAVY),
    ],
)
def test_the_cache_keeps_few_objects_of_large_settings(
    settings: Callable[[int], tuple[object, ...]], most: int
) -> None:
    cache = SettingsCache(Made)
    first = settings(0)
    assert cache(first) is cache(first)
    alive = [weakref.ref(cache(settings(number))) for number in range(3 * MOST_LIGHT)]
    assert sum(made() is not None for made in alive) == most
    cache.clear()
    assert not any(made() for made in alive)


class Counted(tuple[int, ...]):
    """Settings that count how often they are looked through."""

    hashed = 0

    def __hash__(self) -> int:
        Counted.hashed += 1
        return super().__hash__()


def test_the_samples_of_a_request_look_through_its_settings_once() -> None:
    cache, settings = SettingsCache(Made), Counted((1, 2))
    made = cache(settings)
    looked = Counted.hashed
    assert all(cache(settings) is made for _ in range(32))
    assert Counted.hashed == looked
    other = cache(Counted((3,)))
    assert cache(settings) is made and cache(Counted((3,))) is other


def test_a_model_keeps_few_of_the_large_lists_that_requests_have(bundles: BundleCache) -> None:
    settings = Runner.load(bundles("dedup"), threads=1).model.settings
    made: list[weakref.ref[object]] = []
    for number in range(2 * MOST_LIGHT):
        words = [[5 + number % 7, token] for token in range(3, 95)] * 8
        own = settings_of([Layer("the request", {"bad_words_ids": words, "max_length": 9 + number % 9}, asked=True)])
        options = settings.options(own)
        made += [weakref.ref(options), weakref.ref(processors_of(options, np.array([5], np.int64)))]
    del options, own
    gc.collect()
    assert sum(each() is not None for each in made) <= 6 * MOST_HEAVY
