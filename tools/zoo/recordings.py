"""Recordings of several spoken sentences, and the windows that the Whisper type is trained on."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from tools.zoo import grammar
from tools.zoo.grammar import Language
from tools.zoo.speech import RATE_HZ, Speaker, Utterance, Voice

LANGUAGES: tuple[Language, ...] = ("en", "es")
ACCENTS: dict[Language, tuple[str, ...]] = {"en": ("en-us", "en-gb-x-rp"), "es": ("es", "es-419")}
VARIANTS = ("m1", "m3", "m4", "m7", "f1", "f2", "f4", "f5")
WINDOW_S = 8.0
WINDOW = int(WINDOW_S * RATE_HZ)
HEARD_S = 0.06
"""A sentence that begins less than this before the end of a window is not heard in it."""


@dataclass(frozen=True)
class Spoken:
    """A sentence as it was spoken."""

    text: str
    language: Language
    utterance: Utterance

    @property
    def length_s(self) -> float:
        """Seconds until the pause at its end."""
        return self.utterance.phonemes[-2][1]


@dataclass(frozen=True)
class Placed:
    """A spoken sentence in a recording or a window."""

    spoken: Spoken
    start_s: float

    @property
    def end_s(self) -> float:
        """The time at which it ends."""
        return self.start_s + self.spoken.length_s


@dataclass(frozen=True)
class Recording:
    """Samples and the sentences in them, one after the other, all of one language."""

    wave: NDArray[np.float32]
    sentences: tuple[Placed, ...]
    language: Language

    @property
    def text(self) -> str:
        """What is said."""
        return " ".join(sentence.spoken.text for sentence in self.sentences)


def spoken(seed: int, count: int, *, held_out: bool = False) -> dict[Language, list[Spoken]]:
    """So many different sentences of each language, each in a voice, speed and pitch of its own."""
    rng = random.Random(f"voices {seed}")
    sentences = grammar.different(seed, count, held_out=held_out)
    with Speaker() as speaker:
        return {
            language: [
                Spoken(text, language, speaker.speak(text, _voice(rng, language)))
                for text in (sentence.text(language) for sentence in sentences)
            ]
            for language in LANGUAGES
        }


def _voice(rng: random.Random, language: Language) -> Voice:
    name = f"{rng.choice(ACCENTS[language])}+{rng.choice(VARIANTS)}"
    return Voice(name, words_per_minute=rng.randint(145, 190), pitch=rng.randint(35, 65))


def recording(rng: random.Random, sentences: list[Spoken]) -> Recording:
    """Sentences one after the other, with pauses and a little noise; at least a window long."""
    placed, place = [], rng.uniform(0.0, 0.5)
    for sentence in sentences:
        placed.append(Placed(sentence, place))
        place = placed[-1].end_s + rng.uniform(0.2, 0.8)
    wave = np.zeros(max(WINDOW, int(place * RATE_HZ)), np.float32)
    for one in placed:
        start = int(one.start_s * RATE_HZ)
        samples = one.spoken.utterance.wave[: len(wave) - start]
        wave[start : start + len(samples)] += samples
    wave *= rng.uniform(0.3, 0.9)
    noise = np.random.default_rng(rng.getrandbits(32)).standard_normal(len(wave), np.float32)
    wave += noise * 10 ** rng.uniform(-4.0, -2.3)
    return Recording(wave, tuple(placed), sentences[0].language if sentences else "en")


def training_windows(seed: int, pool: dict[Language, list[Spoken]]) -> Iterator[Recording]:
    """Windows without end. A third of them hold one sentence; a few none; the last one in the others may be cut."""
    rng = random.Random(f"windows {seed}")
    while True:
        language = rng.choice(LANGUAGES)
        kind = rng.random()
        count = 0 if kind < 0.02 else 1 if kind < 0.35 else rng.choice((2, 3, 4, 4))
        made = recording(rng, rng.choices(pool[language], k=count))
        heard = tuple(one for one in made.sentences if one.start_s < WINDOW_S - HEARD_S)
        yield Recording(made.wave[:WINDOW], heard, language)


def tests(seed: int, singles: int, long: int) -> list[Recording]:
    """Recordings of held-out sentences: `singles` of one sentence, then `long` ones of 20 to 40 s, in each language."""
    rng = random.Random(f"tests {seed}")
    lengths = [1] * singles + [9] * long
    pool = spoken(seed, sum(lengths), held_out=True)
    found = []
    for language in LANGUAGES:
        sentences = iter(pool[language])
        found += [recording(rng, list(islice(sentences, length))) for length in lengths]
    return found
