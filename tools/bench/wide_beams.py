"""Times of beam search with many beams over a trie, next to transformers' ``generate``; the tokens must be equal.

    python tools/make_checkpoint.py build/t5-small-random --shape t5-small
    python -m tools.bench.wide_beams build/t5-small-random --beams 4 --beams 100

The trie has a million random entries of seven tokens and the end token, more often low tokens than high ones. For
transformers it is a ``prefix_allowed_tokens_fn`` that follows the same arrays. A step is timed by itself; what is left
of a run is the encoder, which is timed too, and numpy's part of the search. Medians over rounds, in turn, in one
process; transformers runs ``--their-rounds`` times.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import transformers
import typer
from rich.console import Console
from rich.table import Table

from tightbeam.deploy.arrays import Array
from tightbeam.deploy.cores import allowed_cores
from tightbeam.deploy.runner import Runner
from tightbeam.deploy.runtimes import onnxruntime_cpu
from tightbeam.deploy.tries.build import build_trie
from tightbeam.deploy.tries.trie import Trie
from tools.bench.decode_step import bundle_of

END = 1
NEW = 8


class Clock:
    """Seconds that the graphs take, by name, while it stands in for the function that runs them."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {"encoder": [], "decoder": []}
        self._run = onnxruntime_cpu._run
        onnxruntime_cpu._run = self._timed

    def _timed(self, session: Any, binding: Any, graph: str, options: Any = None) -> None:
        start = time.perf_counter()
        self._run(session, binding, graph, options)
        self.seconds[graph].append(time.perf_counter() - start)


class Allowed:
    """The tokens that may follow a row, as ``generate`` asks for them; the list of a node is made once."""

    def __init__(self, trie: Trie) -> None:
        self._trie, self._lists = trie, dict[int, list[int]]()

    def __call__(self, _: int, row: Array) -> list[int]:
        node = 1
        for token in row.tolist()[1:]:
            children = self._trie.children(node)
            place = int(np.searchsorted(children, token))
            if place == len(children) or children[place] != token:
                return [END]
            node = int(self._trie.offsets[node]) + place + 2
        if node not in self._lists:
            self._lists[node] = self._trie.children(node).tolist() or [END]
        return self._lists[node]


def random_trie(vocabulary: int, entries: int) -> Trie:
    skewed = np.random.default_rng(0).random((entries, NEW - 1)) ** 3
    return build_trie(np.unique((3 + (vocabulary - 3) * skewed).astype(np.int64), axis=0), end_token_id=END)


def main(
    checkpoint: Annotated[Path, typer.Argument(help="Checkpoint folder of T5, e.g. of tools/make_checkpoint.py.")],
    work: Annotated[Path, typer.Option(help="Folder for the bundle; an existing one is reused.")] = Path("build/bench"),
    beams: Annotated[list[int], typer.Option(help="Beams of the search.")] = [4, 100],  # noqa: B006
    entries: Annotated[int, typer.Option(help="Entries of the trie.")] = 1_000_000,
    source: Annotated[int, typer.Option(help="Source length in tokens.")] = 32,
    rounds: Annotated[int, typer.Option(help="Rounds of measurement; the median is printed.")] = 7,
    their_rounds: Annotated[int, typer.Option(help="Rounds of transformers; 0 leaves it out.")] = 2,
    threads: Annotated[int | None, typer.Option(help="Threads; all cores by default.")] = None,
) -> None:
    """Print the table."""
    console = Console(highlight=False)
    bundle = bundle_of(checkpoint, work, "dedup", console)
    vocabulary = bundle.manifest.sizes.vocabulary
    trie = random_trie(vocabulary, entries)
    runner = Runner.load(bundle.path, threads=threads, verify=False)
    ids = np.random.default_rng(0).integers(5, vocabulary, (1, source))
    table = Table("beams", "trie", "ms a run", "ms a step", "numpy, % of it", "transformers ms", "times", "tokens")
    clock = Clock()
    model = None
    if their_rounds:
        torch.set_num_threads(threads or allowed_cores())
        model = transformers.T5ForConditionalGeneration.from_pretrained(checkpoint, dtype=torch.float32).eval()
    for M in beams:
        for own in (None, trie):
            asked = {"num_beams": M, "max_new_tokens": NEW, "min_new_tokens": NEW if own is None else 0}
            table.add_row(*_measure(runner, model, clock, ids, own, asked, (rounds, their_rounds)))
    console.print(table)


def _measure(
    runner: Runner,
    model: Any,
    clock: Clock,
    ids: Array,
    trie: Trie | None,
    asked: dict[str, Any],
    rounds: tuple[int, int],
) -> list[str]:
    runs, steps, others = [], [], []
    for index in range(rounds[0] + 1):
        for each in clock.seconds.values():
            each.clear()
        start = time.perf_counter()
        found = runner.generate(ids, trie=trie, **asked)
        whole = time.perf_counter() - start
        if index:  # the first one allocates
            runs.append(whole)
            steps.append(np.median(clock.seconds["decoder"]))
            others.append((whole - sum(sum(each) for each in clock.seconds.values())) / len(clock.seconds["decoder"]))
    run, step = float(np.median(runs)), float(np.median(steps))
    shown = [str(asked["num_beams"]), "no" if trie is None else "yes", f"{1e3 * run:.0f}", f"{1e3 * step:.1f}"]
    shown.append(f"{100 * float(np.median(others)) / (step + float(np.median(others))):.1f}")
    if model is None:
        return [*shown, "", "", ""]
    theirs = _generate_of(model, ids, None if trie is None else Allowed(trie), asked)
    times = []
    for _ in range(rounds[1]):
        start = time.perf_counter()
        expected = theirs()
        times.append(time.perf_counter() - start)
    equal = "equal" if np.array_equal(found.sequences, expected) else "DIFFERENT"
    return [*shown, f"{1e3 * min(times):.0f}", f"{min(times) / run:.2f}", equal]


def _generate_of(model: Any, ids: Array, allowed: Allowed | None, asked: dict[str, Any]) -> Callable[[], Array]:
    tokens = torch.from_numpy(ids)
    settings = dict(asked) if allowed is None else {**asked, "prefix_allowed_tokens_fn": allowed}

    def generate() -> Array:
        with torch.no_grad():
            found: Array = model.generate(tokens, attention_mask=torch.ones_like(tokens), **settings).numpy()
        return found

    return generate


if __name__ == "__main__":
    typer.run(main)
