"""The report of an export: seven aligned lines, and a sentence for each surprise."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from support.bundles.cache import BundleCache
from support.checkpoints.families import CheckpointCache
from tightbeam.deploy import Bundle
from tightbeam.deploy.bundle.manifest import GuardEntry, ParityReport, PrecisionErrorEntry
from tightbeam.export.auto.workload import Workload
from tightbeam.export.command import main
from tightbeam.export.report import details, report
from tightbeam.export.writing.entries import sizes_of
from tightbeam.graph_passes import PRESETS

LABELS = ["variant", "on disk", "cache", "process", "check", "time", "next"]


def rows(bundle: Bundle, *, workload: Workload | None = None, **options: Any) -> list[tuple[str, str]]:
    lines = report(bundle, workload or Workload(), **{"variant": None, "seconds": 3.4, **options})
    return [(line[:9].rstrip(), line[9:]) for line in lines]


def load(bundles: BundleCache, variant: str, family: str = "bart", **changes: Any) -> Bundle:
    bundle = Bundle.load(bundles(variant, family, **changes.pop("arguments", {})), verify=False)
    return Bundle(bundle.path, bundle.manifest.model_copy(update=changes))


@pytest.mark.parametrize(
    "sampling", [{}, pytest.param({"num_beams": 3, "eos_token_id": [2, 7]}, marks=pytest.mark.slow)], ids=str
)
def test_the_command_prints_seven_lines(
    checkpoints: CheckpointCache,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    sampling: dict[str, Any],
) -> None:
    folder = checkpoints("bart", tokenizer=True, generation={"do_sample": True, **sampling})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["export-model", str(folder), "--output", "b", "--batch-size", "2"])
    with pytest.raises(SystemExit) as exit_:
        main()
    assert not exit_.value.code
    out = capsys.readouterr().out.splitlines()
    manifest = Bundle.load(tmp_path / "b").manifest
    assert manifest.variant == "dedup" and manifest.parity is not None
    assert [line[:9].rstrip() for line in out] == [*LABELS, "note"]
    assert out[0].startswith("variant  dedup, the default")
    assert f"passed: {manifest.parity.tokens} generated tokens of " in out[4]
    assert out[6] == 'next     echo "A text." | run-model b'
    assert out[7].startswith("note     --variant el would keep ")


def test_cache_is_that_of_the_users_runs(bundles: BundleCache) -> None:
    bundle, workload = load(bundles, "dedup"), Workload(50, 3, 40, 20)
    run = f"batch 50, 3 beams, source of 40, output of {20} tokens"
    sizes = sizes_of(bundle.manifest)
    one = 36 * 4 * 2 * 3  # bytes of keys and values of a position, of 3 layers
    dedup, baseline = 50 * 40 * one + 150 * 20 * one, 150 * 40 * one + 150 * 20 * one
    assert sizes.L == 3 and sizes.D == 36
    assert dict(rows(bundle, workload=workload))["cache"] == (
        f"{dedup / 1e6:.1f} MB for {run}; an ordinary export keeps {baseline / 1e6:.1f} MB"
    )
    small = 50 * 40 * 36 * 4 + 150 * 20 * one
    notes = [text for label, text in rows(bundle, workload=workload) if label == "note"]
    assert f"--variant el would keep {small / 1e6:.1f} MB of cache, {(dedup - small) / 1e6:.1f} MB less" in notes
    assert not [text for _, text in rows(load(bundles, "el"), workload=workload) if "would keep" in text]
    assert not [text for _, text in rows(load(bundles, "dedup", "llama")) if "would keep" in text]


def test_disk_and_time_and_reason(bundles: BundleCache) -> None:
    bundle = load(bundles, "dedup")
    whole = sum(path.stat().st_size for path in bundle.path.rglob("*") if path.is_file())
    found = dict(rows(bundle, variant="dedup", seconds=61.7))
    on_disk = float(found["on disk"].split()[0])
    assert abs(on_disk * 1e6 - whole + (bundle.path / "bundle.json").stat().st_size) < 5e4
    assert str(bundle.path) in found["on disk"]
    assert found["time"] == "62 seconds"
    by_step = {"loading": 4.6, "rewriting": 0.3, "tracing": 41.2}
    assert dict(rows(bundle, seconds=61.7, by_step=by_step))["time"] == "62 seconds: loading 5 s, tracing 41 s"
    assert found["variant"] == "dedup, as asked for"
    assert dict(rows(bundle, variant="auto"))["variant"] == "dedup, the fastest by prediction"


@pytest.mark.parametrize(
    ("family", "arguments", "expected"),
    [
        ("bart", {"tokenizer": True}, 'echo "A text." | run-model {}'),
        ("gpt2", {"tokenizer": True}, 'echo "The beginning of a text" | run-model {}'),
        ("bart", {}, 'echo "[5, 6, 7]" | run-model {} --ids'),
        ("whisper", {}, "run-model {} speech.wav"),
    ],
)
def test_the_next_command_fits_the_model(
    bundles: BundleCache, family: str, arguments: dict[str, Any], expected: str
) -> None:
    bundle = load(bundles, "dedup", family, arguments=arguments)
    found = rows(bundle)
    assert dict(found)["next"] == expected.format(bundle.path)
    assert any("has no tokenizer" in text for _, text in found) == ("tokenizer" not in arguments)


def test_results_of_the_check(bundles: BundleCache) -> None:
    parity = ParityReport(samples=4, settings=3, tokens=187, ties=2, max_score_error=4.2e-7)
    assert dict(rows(load(bundles, "dedup", parity=parity)))["check"] == (
        "passed: 187 generated tokens of 10 sequences equal torch's, scores within 4e-07; 2 more differ by rounding "
        "alone, between equally good ones"
    )
    inexact = {"weight_threshold": 0.01, "parity": parity.model_copy(update={"differing": 3})}
    assert dict(rows(load(bundles, "dedup", **inexact)))["check"] == (
        "3 of 12 sequences differ from torch's, which --weight-threshold allows; the 187 generated tokens of the "
        "others are equal"
    )
    assert "not done (--no-check)" in dict(rows(load(bundles, "dedup", parity=None)))["check"]


def test_a_model_of_images_takes_no_ids(bundles: BundleCache) -> None:
    notes = [text for label, text in rows(load(bundles, "dedup", "pix2struct")) if label == "note"]
    assert "the checkpoint has no tokenizer, so the bundle gives token ids" in notes


def test_a_language_model_has_a_prompt(bundles: BundleCache) -> None:
    found = dict(rows(load(bundles, "dedup", "llama"), workload=Workload(2, 3, 40, 20)))
    assert found["variant"] == "dedup, the default: it keeps the prompt's keys and values once for all beams"
    assert "for batch 2, 3 beams, prompt of 40, output of 20 tokens; an ordinary" in found["cache"]


def test_a_sentence_for_each_surprise(bundles: BundleCache) -> None:
    def entry(layer: int, kept: str) -> GuardEntry:
        numbers = {"error": 0.1, "allowed": 0.01, "original": 0.001, "condition": 1e6}
        return GuardEntry(layer=layer, part="generated", wanted="k", kept=kept, **numbers)

    guard = (entry(0, "x"), entry(1, "k"), entry(2, "x"))
    error = PrecisionErrorEntry(error=0.0123, steps=64, differing=1)
    found = rows(
        load(bundles, "slim", guard=guard, precision="fp16", precision_error=error), variant="slim", notes=["Mind."]
    )
    measured = [label for label in LABELS if label != "process"]  # what a GPU's process takes is not known
    assert [label for label, _ in found] == [*measured, *["note"] * 4]
    assert dict(found)["variant"] == "slim, as asked for, except in the layers of the notes below"
    notes = [text for label, text in found if label == "note"]
    assert notes[0] == (
        "layers 0, 2 keep x as generated cache in place of k, which is not exact enough with these weights (--verbose "
        "shows the errors)"
    )
    assert "error of fp16" in notes[1] and "1.23%" in notes[1]
    assert "no tokenizer" in notes[2] and notes[3] == "Mind."


def test_verbose_marks_the_chosen_variant(bundles: BundleCache) -> None:
    console = Console(width=100)
    for variant in ("el", "dedup"):
        with console.capture() as capture:
            console.print(details(load(bundles, variant), Workload(batch_size=5)))
        out = capture.get()
        assert f"Passes of {variant}" in out and "for batch 5, " in out
        table = [line.split() for line in out[out.index("Bytes of cache") :].splitlines() if line.strip()]
        assert [row[0] for row in table if row[-1] == "chosen"] == [variant]
        assert [row[0] for row in table if row[0] in PRESETS] == list(PRESETS)
