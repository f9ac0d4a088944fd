"""Times of the decode step of three variants and of the encoder, next to their floors; the tokens must be equal.

    python tools/make_checkpoint.py build/bart-large-random --shape bart-large-cnn
    python -m tools.bench.decode_step build/bart-large-random

The floor of a step is its matrix products with weights alone, in ONNX Runtime, from the same weights file; the floor
of the encoder is these and the two products of each attention. ``functions`` is a variant whose operators run as the
functions inside the model, without our library. Times are measured in one process, round by round in turn, and the
medians are printed.
"""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from tightbeam.deploy import Bundle
from tightbeam.deploy.arrays import Array
from tightbeam.deploy.runner import Runner
from tightbeam.deploy.runtimes.base import Decoding
from tightbeam.deploy.runtimes.onnxruntime_cpu import OnnxRuntimeCpu
from tightbeam.export import export_model
from tightbeam.plugins.library import ENVIRONMENT as LIBRARY_VARIABLE
from tools.bench.floor import Floor
from tools.bench.turns import in_turn

NEW_TOKENS_FOR_PARITY = 8
VARIANTS = ("baseline", "dedup", "el")
FUNCTIONS = " functions"
WITH_OPERATORS = ("dedup", "el")


@contextmanager
def _without_library() -> Iterator[None]:
    """Sessions made in this context run the functions inside a model."""
    before = os.environ.get(LIBRARY_VARIABLE)
    os.environ[LIBRARY_VARIABLE] = "none"
    try:
        yield
    finally:
        del os.environ[LIBRARY_VARIABLE]
        if before is not None:
            os.environ[LIBRARY_VARIABLE] = before


def main(
    checkpoint: Annotated[Path, typer.Argument(help="Checkpoint folder, e.g. of tools/make_checkpoint.py.")],
    work: Annotated[Path, typer.Option(help="Folder for the bundles; existing bundles are reused.")] = Path(
        "build/bench"
    ),
    rows: Annotated[list[int], typer.Option(help="Rows R = batch x beams of the decode step.")] = [4, 16, 32],  # noqa: B006
    steps: Annotated[list[int], typer.Option(help="Tokens generated before the timed step.")] = [30, 100],  # noqa: B006
    encoder_batch: Annotated[list[int], typer.Option(help="Batch sizes of the encoder.")] = [1, 4],  # noqa: B006
    beams: Annotated[int, typer.Option(help="Beams a sample.")] = 4,
    source: Annotated[int, typer.Option(help="Source length in tokens.")] = 512,
    rounds: Annotated[int, typer.Option(help="Rounds of measurement; the median is printed.")] = 9,
    threads: Annotated[int | None, typer.Option(help="Threads; all cores by default.")] = None,
    output: Annotated[Path | None, typer.Option(help="Write the figures as JSON.")] = None,
) -> None:
    """Print the tables of the encoder and of the decode step."""
    if any(R % beams for R in rows):
        raise typer.BadParameter(f"rows {rows} must be multiples of beams, {beams}")
    console = Console(highlight=False)
    bundles = {variant: _bundle_of(checkpoint, work, variant, console) for variant in VARIANTS}
    console.print(f"parity: {_check_parity(bundles, source, threads)}")
    figures: dict[str, Any] = {"step_ms": [], "encoder_s": []}
    figures["encoder_s"] = _time_encoder(bundles["dedup"], encoder_batch, source, max(3, rounds // 3), threads)
    _print_encoder(console, figures["encoder_s"], source)
    gc.collect()
    figures["step_ms"] = _time_steps(bundles, rows, steps, beams, source, rounds, threads)
    _print_steps(console, figures["step_ms"], [*VARIANTS, *(f"{name}{FUNCTIONS}" for name in WITH_OPERATORS)], source)
    if output is not None:
        output.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


def _bundle_of(checkpoint: Path, work: Path, variant: str, console: Console) -> Bundle:
    folder = work / f"{checkpoint.name}-{variant}"
    if folder.exists():
        return Bundle.load(folder)
    console.print(f"exporting {folder}")
    return export_model(checkpoint, folder, variant=variant)


def _check_parity(bundles: dict[str, Bundle], source: int, threads: int | None) -> str:
    """Compare the tokens of all variants on one batch, and say so in a line. Raises SystemExit if they differ."""
    found: dict[str, list[list[int]]] = {}
    for variant, bundle in bundles.items():
        if bundle.manifest.parity is None:
            raise typer.BadParameter(f"{bundle.path} was not compared with torch; export it without --no-check")
        ids, mask = random_source(bundle, 2, source)
        mask[1, source // 2 :] = 0
        runner = Runner.load(bundle.path, threads=threads, verify=False)
        settings: dict[str, Any] = {"num_beams": 4, "min_new_tokens": 0, "max_new_tokens": NEW_TOKENS_FOR_PARITY}
        found[variant] = runner.generate(ids, mask, **settings).sequences.tolist()
    if len({json.dumps(tokens) for tokens in found.values()}) != 1:
        raise SystemExit(f"error: the variants generate different tokens: {found}")
    return f"{', '.join(bundles)} give the same tokens"


def random_source(bundle: Bundle, batch: int, source: int) -> tuple[Array, Array]:
    ids = np.random.default_rng(0).integers(5, bundle.manifest.sizes.source_vocabulary, (batch, source))
    return ids, np.ones_like(ids)


def _time_encoder(
    bundle: Bundle, batches: list[int], source: int, rounds: int, threads: int | None
) -> list[dict[str, float]]:
    engine = OnnxRuntimeCpu(bundle, threads)
    floor = Floor(bundle, bundle.manifest.encoder, threads, attention=True)
    figures = []
    for batch in batches:
        ids, mask = random_source(bundle, batch, source)
        sizes = bundle.manifest.sizes
        shape = (batch, sizes.H, source, sizes.K)
        run_floor = floor.at(batch * source, shape)

        def encode(ids: Array = ids, mask: Array = mask) -> None:
            engine.begin(ids, mask, 1, 1, 2)

        medians = in_turn({"floor": run_floor, "encoder": encode}, rounds)
        figures.append({"batch": batch, **medians})
    return figures


def _time_steps(
    bundles: dict[str, Bundle],
    rows: list[int],
    steps: list[int],
    beams: int,
    source: int,
    rounds: int,
    threads: int | None,
) -> list[dict[str, Any]]:
    engines = {variant: OnnxRuntimeCpu(bundle, threads) for variant, bundle in bundles.items()}
    with _without_library():
        engines |= {f"{variant}{FUNCTIONS}": OnnxRuntimeCpu(bundles[variant], threads) for variant in WITH_OPERATORS}
    floor = Floor(bundles["dedup"], bundles["dedup"].manifest.decoder, threads)
    figures = []
    for R in rows:
        batch = R // beams
        any_bundle = bundles["dedup"]
        decodings = {}
        for variant, engine in engines.items():
            ids, mask = random_source(any_bundle, batch, source)
            decodings[variant] = engine.begin(ids, mask, beams, max(steps) + 1, 2 * beams)
        taken = 0
        for T in sorted(steps):
            work: dict[str, Callable[[], None]] = {"floor": floor.at(R)}
            for variant, decoding in decodings.items():
                work[variant] = step_at(decoding, any_bundle, batch, beams, T)
                states = bundles[variant.removesuffix(FUNCTIONS)].manifest.cache_states
                if any(state.kind == "append" for state in states):
                    for _ in range(T - 1 - taken):  # such a cache has the length of the steps taken
                        work[variant]()
            medians = in_turn(work, rounds)
            taken = T + rounds
            caches = {variant: list(decoding.cache_bytes) for variant, decoding in decodings.items()}
            figures.append({"rows": R, "T": T, "ms": {k: 1e3 * v for k, v in medians.items()}, "cache_bytes": caches})
        del decodings
    return figures


def step_at(decoding: Decoding, bundle: Bundle, batch: int, beams: int, T: int) -> Callable[[], None]:
    """A step after T tokens, with a random history, and an ancestry of random reorderings."""
    generator = np.random.default_rng(T)
    inputs = decoding.inputs
    inputs["history"][:, :T] = generator.integers(5, bundle.manifest.sizes.vocabulary, (batch * beams, T))
    ancestry = inputs["ancestry"]
    for t in range(T):
        parents = generator.integers(0, beams, (batch, beams, 1))
        ancestry[:, :, :t] = np.take_along_axis(ancestry[:, :, :t], parents, axis=1)
        ancestry[:, :, t] = np.arange(beams)
    inputs["tokens"][:] = inputs["history"][:, T - 1 : T]
    inputs["positions"].fill(T - 1)
    inputs["lengths"].fill(T)
    inputs["history_lengths"].fill(T)
    inputs["beam_index"][:] = np.arange(batch * beams)
    decoding.reserve_banned(1)
    inputs["banned"].fill(2)
    inputs["normalize"][...] = True
    inputs["repetition_penalty"][...] = 1
    inputs["no_repeat_ngram_size"][...] = 3
    inputs["candidates"][:] = 2 * beams

    def step() -> None:
        decoding.step()

    return step


def _print_encoder(console: Console, figures: list[dict[str, float]], source: int) -> None:
    table = Table(title=f"Encoder, {source} tokens, seconds", title_justify="left")
    for heading in ("batch", "floor", "encoder", "ratio"):
        table.add_column(heading, justify="right")
    for row in figures:
        ratio = row["encoder"] / row["floor"]
        table.add_row(str(row["batch"]), f"{row['floor']:.2f}", f"{row['encoder']:.2f}", f"{ratio:.2f}")
    console.print(table)


def _print_steps(console: Console, figures: list[dict[str, Any]], variants: list[str], source: int) -> None:
    table = Table(title=f"Decode step, source of {source} tokens, ms (ratio to the floor)", title_justify="left")
    for heading in ("rows", "tokens", "floor", *variants):
        table.add_column(heading, justify="right")
    for row in figures:
        ms = row["ms"]
        cells = [f"{ms[variant]:.1f} ({ms[variant] / ms['floor']:.2f})" for variant in variants]
        table.add_row(str(row["rows"]), str(row["T"]), f"{ms['floor']:.1f}", *cells)
    console.print(table)
    cache = Table(title="Source cache, bytes allocated", title_justify="left")
    for heading in ("rows", *variants, "baseline / el"):
        cache.add_column(heading, justify="right")
    for row in figures:
        if row["T"] == figures[0]["T"]:
            source_bytes = {variant: row["cache_bytes"][variant][0] for variant in variants}
            ratio = source_bytes["baseline"] / source_bytes["el"]
            cache.add_row(str(row["rows"]), *(f"{source_bytes[v]:,}" for v in variants), f"{ratio:g}")
    console.print(cache)


if __name__ == "__main__":
    typer.run(main)
