"""Training batches of the Whisper type: features, tokens, and what espeak-ng knows about where each sound is."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Any

import torch

from tools.training import IGNORED, padded
from tools.zoo._whisper_tokens import STEP_S, STEPS
from tools.zoo.grammar import Language
from tools.zoo.recordings import Placed, Recording, Spoken, training_windows
from tools.zoo.speech import RATE_HZ

TIMESTAMPS_SHARE = 0.6  # of the windows have timestamps in their tokens
PREVIOUS_SHARE = 0.15  # begin with what was said before
MARGIN_S = 0.06  # a token may look this far beyond its word
NOWHERE = (0.0, 0.0)


@dataclass(frozen=True)
class Batch:
    """Windows that are trained on together: B windows, T tokens, F encoder positions."""

    features: torch.Tensor
    """[B, mels, 2 F]"""
    inputs: torch.Tensor
    """[B, T], the decoder's"""
    labels: torch.Tensor
    """[B, T]"""
    phonemes: torch.Tensor
    """[B, F], 0 is silence"""
    sounds: torch.Tensor
    """[B, T, 2], the first encoder position of what each label is heard in, and the one after the last; both are 0 for
    a label that is heard nowhere"""


class Batches:
    """Makes batches of a pool of spoken sentences."""

    def __init__(self, pool: dict[Language, list[Spoken]], tokenizer: Any, extractor: Any, seed: int) -> None:
        names = sorted({name for some in pool.values() for one in some for name, _ in one.utterance.phonemes})
        self.phonemes = {name: number for number, name in enumerate(["", *names])} | {"_": 0, "_:": 0}
        self._pool = pool
        self._extractor = extractor
        self._tokenizer = tokenizer
        self._ids = tokenizer.get_vocab()
        self._rng = random.Random(f"batches {seed}")
        self._windows = training_windows(seed, pool)

    def stream(self, size: int) -> Iterator[Batch]:
        """Batches without end."""
        while True:
            windows = list(islice(self._windows, size))
            rows = [self._tokens(window) for window in windows]
            waves = [window.wave for window in windows]
            sounds = [[(round(a / STEP_S), round(b / STEP_S)) for _, _, (a, b) in row] for row in rows]
            longest = max(map(len, rows))
            yield Batch(
                features=self._extractor(waves, sampling_rate=RATE_HZ, return_tensors="pt").input_features,
                inputs=padded([[token for token, _, _ in row] for row in rows], self._ids["<|endoftext|>"]),
                labels=padded([[label for _, label, _ in row] for row in rows], IGNORED),
                phonemes=torch.tensor([self._sounds(window) for window in windows]),
                sounds=torch.tensor([row + [(0, 0)] * (longest - len(row)) for row in sounds]),
            )

    def _tokens(self, window: Recording) -> list[tuple[int, int, tuple[float, float]]]:
        """Of each position: the decoder's input, the label, and from when to when the label is heard."""
        ids, rng = self._ids, self._rng
        start, end = ids["<|startoftranscript|>"], ids["<|endoftext|>"]
        # A token, whether it is learned, and where it is heard.
        made: list[tuple[int, bool, tuple[float, float]]] = [(start, False, NOWHERE)]
        if not window.sentences:
            made += [(ids["<|nospeech|>"], True, NOWHERE)]
        else:
            made += [(ids[f"<|{window.language}|>"], True, NOWHERE), (ids["<|transcribe|>"], False, NOWHERE)]
            cut = window.sentences[-1].end_s > STEPS * STEP_S
            if cut or rng.random() < TIMESTAMPS_SHARE:
                for sentence in window.sentences[: len(window.sentences) - cut]:
                    made += [self._timestamp(sentence.start_s), *self._words(sentence)]
                    made += [self._timestamp(sentence.end_s)]
                if cut:  # only its beginning is told
                    made += [self._timestamp(window.sentences[-1].start_s)]
            else:
                made += [(ids["<|notimestamps|>"], False, NOWHERE)]
                made += [token for sentence in window.sentences for token in self._words(sentence)]
        made.append((end, True, NOWHERE))
        if rng.random() < PREVIOUS_SHARE:
            before = "".join(f" {one.text}" for one in rng.choices(self._pool[window.language], k=rng.randint(1, 2)))
            previous = [ids["<|startofprev|>"], *self._tokenizer(before, add_special_tokens=False)["input_ids"]]
            made = [(token, False, NOWHERE) for token in previous] + made
        return [
            (token, label if learned else IGNORED, heard) for (token, _, _), (label, learned, heard) in pairwise(made)
        ]

    def _timestamp(self, time_s: float) -> tuple[int, bool, tuple[float, float]]:
        step = min(STEPS, round(time_s / STEP_S))
        return self._ids["<|0.00|>"] + step, True, _interval(time_s, time_s)

    def _words(self, sentence: Placed) -> list[tuple[int, bool, tuple[float, float]]]:
        """The tokens of a sentence, with the times of the words that they are parts of."""
        spoken = sentence.spoken
        encoded = self._tokenizer(f" {spoken.text}", add_special_tokens=False, return_offsets_mapping=True)
        places = [place for place, _ in spoken.utterance.words]
        times = [time for _, time in spoken.utterance.words] + [spoken.length_s]
        made = []
        for token, (_, after) in zip(encoded["input_ids"], encoded["offset_mapping"], strict=True):
            word = max(0, bisect_right(places, after - 2) - 1)  # its last character, without the space before the text
            made.append((token, True, _interval(sentence.start_s + times[word], sentence.start_s + times[word + 1])))
        return made

    def _sounds(self, window: Recording) -> list[int]:
        """The phoneme that is heard at each position of the encoder."""
        heard = [0] * STEPS
        for sentence in window.sentences:
            phonemes = [*sentence.spoken.utterance.phonemes, ("", sentence.spoken.length_s)]
            for (name, begin), (_, end) in pairwise(phonemes):
                first, after = (round((sentence.start_s + time) / STEP_S) for time in (begin, end))
                for position in range(first, min(after, STEPS)):
                    heard[position] = self.phonemes[name]
        return heard


def _interval(start_s: float, end_s: float) -> tuple[float, float]:
    return max(0.0, start_s - MARGIN_S), min(STEPS * STEP_S, end_s + MARGIN_S)
