"""A made-up decoder: its scores depend on a source and a row alone, so what a sample gets in any batch can be told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from support.options import resolve_options
from tightbeam.deploy.errors import ExecutionError
from tightbeam.deploy.generation.options import GenerationOptions
from tightbeam.deploy.runtimes.base import sizes_of, small_inputs
from tightbeam.deploy.runtimes.device.steps_alone import StepsAlone
from tightbeam.deploy.search.compaction import Compaction
from tightbeam.deploy.search.step import Candidates, StepInputs

VOCABULARY, EOS = 17, 2
DEFAULTS = {"eos_token_id": EOS, "pad_token_id": 1, "decoder_start_token_id": 3}


def made_up_scores(source: list[int], row: list[int]) -> Any:
    """Log-probabilities float32 [vocabulary] that depend on a source and its row alone. Some are equal."""
    generator = np.random.default_rng([*source, 99, *row])
    logits = generator.integers(-4, 4, VOCABULARY).astype(np.float32)  # small integers, so that many are equal
    logits[EOS] += np.float32(np.random.default_rng(source).uniform(-6, 8))
    return (logits - np.log(np.exp(logits).sum())).astype(np.float32)


TRIE = ("trie_offsets", "trie_tokens")
"""Inputs of a whole batch."""


Faults = dict[tuple[int, ...], int]
"""Steps in which sources fail: 0 is the encoder, a positive step raises, a negative one has scores that are NaN."""


class MadeUpAlone:
    """The `Step` of one sample without a batch."""

    def __init__(self, source: list[int], options: GenerationOptions, fails: int | None = None) -> None:
        self.source, self.options, self.fails, self.steps = source, options, fails, 0
        self.history = np.zeros((1, options.num_beams, options.max_length), np.int64)

    def __call__(self, inputs: StepInputs) -> Candidates:
        self.steps += 1
        if self.fails is not None and self.steps >= abs(self.fails):
            raise ExecutionError("alone too")
        rows = [made_up_scores(self.source, row) for row in inputs.history[0].tolist()]
        return best_of(np.stack(rows), inputs.banned[0], inputs.beam_scores, self.options.candidates)

    def compact(self, compaction: Compaction) -> None:
        raise AssertionError("one sample is never removed from others")


def best_of(scores: Any, banned: Any, beam_scores: Any, count: int) -> Candidates:
    for row, tokens in zip(scores, banned, strict=True):
        row[tokens[tokens >= 0]] = -np.inf
    flat = (beam_scores.reshape(-1, 1) + scores).reshape(1, -1)
    order = np.argsort(-flat, axis=1, kind="stable")[:, :count]
    return Candidates(np.take_along_axis(flat, order, 1), order // VOCABULARY, order % VOCABULARY)


class MadeUpDecoding(StepsAlone):
    """A joining decoding that keeps its sources in Python, and checks what the stepper writes.

    ``most``: samples with which a step does not fail.
    """

    def __init__(self, places: int, beams: int, candidates: int, faults: Faults, most: int | None = None) -> None:
        self.places, self.beams, self.candidates, self.faults, self.most = places, beams, candidates, faults, most
        self.sources: list[list[int]] = []
        self.written: list[list[list[int]]] = []  # of each place and slot, the tokens by position: never moved
        self.capacity = {"T_max": 0, "T_history": 0}
        self.cache_bytes = (0, 0)
        self.closed = False
        self.whole = small_inputs({**sizes_of(places, 0, beams, 0, 1), "P": 0})
        self.inputs: dict[str, Any] = {}
        self.view()

    logits = None

    def fetch_logits(self) -> None:
        """Do nothing: no search that is run needs whole rows."""

    def view(self) -> None:
        rows = {"tokens", "positions", "beam_index", "history", "banned", "trie_nodes"}
        scalars = {"normalize", "repetition_penalty", "no_repeat_ngram_size", "candidates", "all_logits", *TRIE}
        for name, array in self.whole.items():
            count = len(self.sources) * (self.beams if name in rows else 1)
            self.inputs[name] = array if name in scalars else array[:count]

    def free_places(self, count: int, width: int) -> None:
        assert count and width

    def reserve(self, *, width: int, positions: int, tokens: int) -> None:
        needed = {"T_max": positions, "T_history": tokens}
        self.capacity = {name: max(size, self.capacity[name]) for name, size in needed.items()}
        sizes = {**sizes_of(self.places, 0, self.beams, 0, 1), "P": self.whole["banned"].shape[1], **self.capacity}
        larger = small_inputs(sizes)
        for name, array in self.whole.items():
            larger[name][tuple(map(slice, array.shape))] = array
        self.whole = larger
        self.view()

    def join(self, encoded: Mapping[str, Any], sample: int, *, width: int, positions: int, tokens: int) -> None:
        assert len(self.sources) < self.places
        self.reserve(width=width, positions=positions, tokens=tokens)
        self.sources.append(encoded["source"][sample][:width])
        self.written.append([[] for _ in range(self.beams)])
        self.view()

    def step(self) -> Any:
        assert not self.closed
        if self.most is not None and len(self.sources) > self.most:
            raise ExecutionError(f"no memory for {len(self.sources)} samples")
        inputs, found = self.inputs, []
        M = self.beams
        for place, source in enumerate(self.sources):
            length, tokens = int(inputs["lengths"][place]), int(inputs["history_lengths"][place])
            prompt = tokens - length
            assert (inputs["positions"].reshape(-1, M)[place] == prompt + length - 1).all()
            for slot in range(M):
                newest = int(inputs["tokens"].reshape(-1, M)[place, slot])
                self.written[place][slot] = [*self.written[place][slot][: length - 1], newest]
            rows = []
            for slot in range(M):
                row = inputs["history"].reshape(len(self.sources), M, -1)[place, slot, :tokens].tolist()
                ancestry = inputs["ancestry"][place, slot, :length].tolist()
                assert row[prompt:] == [self.written[place][writer][t] for t, writer in enumerate(ancestry)]
                rows.append(made_up_scores(source, row))
            banned = inputs["banned"].reshape(len(self.sources), M, -1)[place]
            found.append(best_of(np.stack(rows), banned, inputs["beam_scores"][place], self.candidates))
            fails = self.faults.get(tuple(source))
            if fails and length == abs(fails):
                if fails > 0:
                    raise ExecutionError(f"step {fails} fails")
                found[-1].scores[:] = np.nan
        return tuple(np.concatenate([getattr(own, name) for own in found]) for name in ("scores", "beams", "tokens"))

    def compact(self, compaction: Compaction) -> None:
        for source, hole in compaction.moves:
            self.sources[hole], self.written[hole] = self.sources[source], self.written[source]
        del self.sources[compaction.remaining :], self.written[compaction.remaining :]
        for name, array in self.inputs.items():
            if array.ndim and name not in {"candidates", *TRIE}:
                compaction.apply(array, self.beams if len(array) == self.beams * len(self.inputs["lengths"]) else 1)
        self.view()

    def reserve_banned(self, count: int) -> None:
        if count > self.whole["banned"].shape[1]:
            self.whole["banned"] = np.full((self.places * self.beams, count), -1, np.int64)
            self.view()

    def close(self) -> None:
        self.closed = True


class MadeUpRuntime:
    encoded_together = 24
    most_samples = 1 << 62
    steps_in_turn = 1

    def __init__(self, faults: Faults | None = None, most: int | None = None) -> None:
        self.faults: Faults = {} if faults is None else faults
        self.most = most
        self.encoded: list[list[list[int]]] = []
        self.opened: list[MadeUpDecoding] = []

    def joining(self) -> MadeUpRuntime:
        return self

    def encode(self, source: Any, mask: Any, num_beams: int, into: None, *, aligned: bool, **_: Any) -> dict[str, Any]:
        rows = [ids[: max(1, count)].tolist() for ids, count in zip(source, mask.sum(axis=1).tolist(), strict=True)]
        self.encoded.append(rows)
        if any(self.faults.get(tuple(row)) == 0 for row in rows):
            raise ExecutionError("the encoder fails")
        return {"source": rows}

    def open(self, places: int, num_beams: int, candidates: int, groups: int = 1) -> MadeUpDecoding:
        assert groups == 1
        self.opened.append(MadeUpDecoding(places, num_beams, candidates, self.faults, self.most))
        return self.opened[-1]


def options_of(**asked: Any) -> GenerationOptions:
    return resolve_options(DEFAULTS, asked, vocab_size=VOCABULARY, max_positions=40)
