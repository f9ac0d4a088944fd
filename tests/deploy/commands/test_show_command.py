"""`show-bundle`: the report, its JSON, and the bytes of cache against what a run allocates."""

from __future__ import annotations

import json
import shutil
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.bundles.cache import BundleCache
from support.checkpoints.families import WHISPER_GENERATION
from support.commands import Command, Done, caller
from tightbeam.deploy import Bundle, Runner
from tightbeam.deploy.bundle.operators import operators_note, operators_version
from tightbeam.deploy.commands.show_bundle import main
from tightbeam.deploy.model.bundle_facts import Workload, cache_bytes, facts_of, report_of, workload_of
from tightbeam.graph_passes import PRESETS
from tightbeam.plugins.ops import VERSION

OLD = Path(__file__).parents[2] / "data" / "bundle-format-1"


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    run = caller(monkeypatch, capsys)

    def show(*arguments: object) -> Done:
        return run(*arguments, entry=main)

    return show


@pytest.fixture
def changed(tmp_path: Path) -> Any:
    """Makes a copy of the old bundle with other entries in bundle.json."""

    def change(**entries: Any) -> Path:
        folder = tmp_path / "changed"
        shutil.copytree(OLD, folder, dirs_exist_ok=True)
        data = json.loads((OLD / "bundle.json").read_text("utf-8"))
        (folder / "bundle.json").write_text(json.dumps({**data, **entries}), "utf-8")
        return folder

    return change


@pytest.mark.parametrize("variant", PRESETS)
def test_bytes_of_cache_are_those_of_a_run(bundles: BundleCache, variant: str) -> None:
    runner = Runner.load(bundles(variant), threads=1)
    for B, beams, N, new in ((1, 1, 5, 4), (3, 4, 17, 9)):
        ids = np.random.default_rng(0).integers(3, 90, (B, N))
        runner.generate(ids, num_beams=beams, max_new_tokens=new, min_new_tokens=new)
        if B == 1:  # no sample leaves the batch
            assert runner.cache_bytes == cache_bytes(runner.manifest, Workload(B, beams, N, new))
        assert runner.cache_bytes[0] == cache_bytes(runner.manifest, Workload(B, beams, N, new))[0]


def test_bytes_of_cache_of_prompts_and_speech(bundles: BundleCache) -> None:
    runner = Runner.load(bundles("dedup", "gpt2"), threads=1)
    runner.generate([[5] * 12], num_beams=3, max_new_tokens=7, min_new_tokens=7)
    assert runner.cache_bytes == cache_bytes(runner.manifest, Workload(1, 3, 12, 7))
    runner = Runner.load(bundles("dedup", "whisper", generation=WHISPER_GENERATION), threads=1)
    runner.generate_from_features(np.zeros((1, 9, 100), np.float32), num_beams=2, max_new_tokens=7, min_new_tokens=7)
    workload = workload_of(runner.manifest, num_beams=2, new_tokens=7)
    assert runner.cache_bytes == cache_bytes(runner.manifest, workload)


def test_report_has_a_line_for_each_fact(call: Command) -> None:
    done = call(OLD)
    assert (done.code, done.err) == (0, "")
    lines = dict(line.split(maxsplit=1) for line in done.out.splitlines())
    assert lines == {
        "model": "tiny-bart (bart, encoder-decoder)",
        "variant": "el, fp32: source cache states, generated cache kv (all layers)",
        "sizes": "width 12, 3 heads, 1 decoder layer, 300 tokens, source of 32, output of 32 positions",
        "files": "63 kB: encoder.onnx 5.2 kB, decoder.onnx 17 kB, weights.safetensors 29 kB, tokenizer 12 kB",
        "sha256": f"{sha256((OLD / 'bundle.json').read_bytes()).hexdigest()} of bundle.json, which has that of every "
        "other file",
        "cache": "2.3 kB (source 1.5 kB, generated 0.8 kB) for a batch of 1, 1 beam, 32 source positions, 8 new tokens",
        "process": "97 MB for this batch on a CPU, by formula: 4.9 kB of weights in the file, 24 kB of packed copies "
        "of them, 2.3 kB of cache, 33 kB of buffers, 97 MB of libraries and graphs",
        "check": "108 tokens of 4 inputs under 3 settings equal model.generate's, scores within 3e-08",
        "operators": f"of version 1, older than the kernels' {VERSION}: the functions in its graphs run in their "
        "place, slower; export the model again",
        "generation": "bos_token_id=0, decoder_start_token_id=2, eos_token_id=2, forced_eos_token_id=2, "
        "max_new_tokens=8, pad_token_id=1",
        "tokenizer": "tokenizers",
        "made": "by tightbeam 0.1.0",
    }


def test_json_holds_the_facts(call: Command) -> None:
    done = call(OLD, "--json", "--batch-size", 3, "--num-beams", 4, "--source-length", 20, "--new-tokens", 10)
    facts = json.loads(done.out)
    bundle = Bundle.load(OLD)
    assert facts == facts_of(bundle, Workload(3, 4, 20, 10))
    D, itemsize = 12, 4
    assert facts["cache"]["source"] == 3 * 20 * D * itemsize
    assert facts["cache"]["generated"] == 3 * 4 * 10 * 2 * D * itemsize
    assert facts["total_bytes"] == sum((OLD / name).stat().st_size for name in facts["files"])
    assert facts["check"]["tokens"] == 108
    assert facts["operators_version"] == 1


def test_operators_of_this_version_have_no_line(bundles: BundleCache) -> None:
    bundle = Bundle.load(bundles("dedup", "bart"))
    assert facts_of(bundle, workload_of(bundle.manifest))["operators_version"] == VERSION
    assert operators_note(bundle) is None and "operators" not in dict(report_of(bundle, workload_of(bundle.manifest)))


def test_a_damaged_graph_has_no_version(changed: Any) -> None:
    folder = changed()
    for content in (b"", b"\x42\xff", b"\x42\x03\x0a\x09t", b"\x42\x02\x08\x05", bytes(range(256))):
        (folder / "decoder.onnx").write_bytes(content)
        assert operators_version(Bundle(folder, Bundle.load(OLD).manifest)) is None


def test_report_of_other_bundles(changed: Any) -> None:
    """A bundle that was not checked, one whose layers differ, an inexact one."""
    data = json.loads((OLD / "bundle.json").read_text("utf-8"))

    def lines(**entries: Any) -> list[tuple[str, str]]:
        bundle = Bundle.load(changed(**entries), verify=False)
        return report_of(bundle, workload_of(bundle.manifest))

    assert ("check", "not done (--no-check): the bundle was not compared with model.generate") in lines(parity=None)
    assert ("tokenizer", "none: takes and returns token ids (--ids)") in lines(tokenizer=None)
    layers = [{"layer": n, "source": "kv", "generated": "k" if n else "x", "reason": ""} for n in range(3)]
    guard = {"layer": 0, "part": "generated", "wanted": "k", "kept": "x", "error": None, "allowed": 1e-5}
    guard |= {"original": None, "condition": None}
    found = lines(
        layers=layers,
        sizes={**data["sizes"], "L": 3, "G": 1},
        guard=[guard],
        precision="fp16",
        precision_error={"error": 0.01, "steps": 90, "differing": 2},
        divergences=[
            {"divergence": moved, "int8": 9 - wider, "w8a16": wider, "fp32": 0, "bytes": 99}
            for moved, wider in ((0.03, 0), (0.0012, 2))
        ],
        weight_threshold=0.001,
        parity={**data["parity"], "ties": 1, "differing": 2},
    )
    assert found[1:3] == [
        (
            "variant",
            "el, fp16, skips weights below 0.001: source cache kv, generated cache x (layer 0); source cache kv, "
            "generated cache k (layers 1 to 2)",
        ),
        (
            "sizes",
            "width 12, 3 heads over 1 key head, 3 decoder layers, 300 tokens, source of 32, output of 32 positions",
        ),
    ]
    texts = dict(found)
    assert texts["fallback"] == "layer 0 keeps x as generated cache, as k was not exact enough"
    assert texts["error"] == "fp16 chooses another token at 2 of 90 steps on the built-in texts"
    assert texts["divergence"] == "the products move the distribution of the next token by 0.0012 nats"
    int4 = dict(lines(precision="int4", precision_error={"error": 0.1, "steps": 64, "differing": 6}))
    assert int4["error"] == "int4 chooses another token at 6 of 64 steps on the built-in texts"
    assert texts["check"].endswith("rounding alone decides 1 sequence; 2 sequences differ, as this bundle is inexact")


def test_provenance_is_shown(changed: Any) -> None:
    origin = {"source": "facebook/bart-base", "revision": "aadd2ab", "created": "2026-01-31T12:00:00Z"}
    origin |= {"versions": {"tightbeam": "0.1.0", "torch": "2.13.0"}}
    bundle = Bundle.load(changed(format_version=2, provenance=origin))
    lines = dict(report_of(bundle, workload_of(bundle.manifest)))
    assert lines["made"] == ("2026-01-31T12:00:00Z from facebook/bart-base at aadd2ab by tightbeam 0.1.0, torch 2.13.0")
    assert facts_of(bundle, workload_of(bundle.manifest))["provenance"] == origin


def test_an_engine_that_cannot_be_used_is_named(changed: Any) -> None:
    folder = changed()
    (folder / "engines" / "sm80").mkdir(parents=True)
    (folder / "engines" / "sm80" / "engine.json").write_text("{}")
    bundle = Bundle.load(folder, verify=False)
    (engine,) = [text for word, text in report_of(bundle, workload_of(bundle.manifest)) if word == "engine"]
    assert engine.startswith("sm80: cannot be used: ") and "engine.json" in engine


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("--new-tokens", 32), ("--new-tokens 32", "32 positions", "pass 1 to 31")),
        (("--source-length", 33), ("--source-length 33", "pass 1 to 32")),
        (("--batch-size", 0), ("--batch-size 0", "pass 1 or more")),
        (("--num-beams", -1), ("--num-beams -1", "pass 1 or more")),
    ],
)
def test_impossible_sizes_are_refused(call: Command, arguments: tuple[object, ...], parts: tuple[str, ...]) -> None:
    call(OLD, *arguments).failed(*parts)


def test_what_is_no_bundle_is_refused(call: Command, tmp_path: Path) -> None:
    call(tmp_path).failed("has no bundle.json", "export-model")


def test_prompts_leave_positions_for_new_tokens(bundles: BundleCache) -> None:
    manifest = Bundle.load(bundles("dedup", "gpt2"), verify=False).manifest
    assert workload_of(manifest, new_tokens=10).source_length == manifest.sizes.max_target - 10
    speech = Bundle.load(bundles("dedup", "whisper", generation=WHISPER_GENERATION), verify=False).manifest
    with pytest.raises(ValueError, match="--source-length is for text"):
        workload_of(speech, source_length=5)


def test_a_report_holds_nothing_that_steers_a_terminal(changed: Any, call: Command) -> None:
    done = call(changed(model="a\x1b[2J\nb"))
    assert done.code == 0 and "a\\x1b[2J\\nb (" in done.out and "\x1b" not in done.out
