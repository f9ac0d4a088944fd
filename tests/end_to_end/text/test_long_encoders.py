"""Encoders that attend in blocks: LongT5, with and without global tokens, and LED."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LEDConfig, LEDForConditionalGeneration, LongT5Config, LongT5ForConditionalGeneration

from support.bundles.cache import BundleCache
from support.checkpoints.edits import edit_json, refusal
from support.checkpoints.families import CheckpointCache, randomise
from support.references.expected import expect_equal, expected_of
from support.references.generate_runs import SETTINGS, batch, runs_of
from support.slow_cases import slow_unless
from tightbeam.deploy import Runner
from tightbeam.deploy.model.bundle_facts import report_of, workload_of
from tightbeam.export import export_model
from tightbeam.export.accuracy.reference import TextSamples, greedy, samples_of
from tightbeam.export.tracing.text.led import WindowEncoder
from tightbeam.export.tracing.text.longt5 import GlobalEncoder, LocalEncoder
from tightbeam.graph_passes import PRESETS

LONGEST = 64
TWO_WINDOWS = {"attention_window": [4, 8], "encoder_layers": 2}
WIDER = {"attention_window": 64, "d_model": 66, "encoder_attention_heads": 11, "encoder_layers": 3}


def lengths_around(*sizes: int) -> list[tuple[int, ...]]:
    """Batches whose samples end around multiples of ``sizes``, the longest first."""
    edges = {max(1, times * size + by) for size in sizes for times in (1, 2, 3) for by in (-1, 0, 1)} | {1, LONGEST}
    found = sorted(edge for edge in edges if edge <= LONGEST)
    return [*((edge,) for edge in found), tuple(reversed(found)), tuple(reversed(found[: len(found) // 2]))]


def check_encoder(encoder: Any, step: torch.nn.Module, batches: list[tuple[int, ...]], global_tokens: int = 0) -> None:
    """Compare a module with transformers' encoder: padded batches, each sample alone, and masks with gaps."""
    runs = [batch(90, seed, lengths) for seed, lengths in enumerate(batches)]
    ids, mask = batch(90, 99, (23, 23, 23))
    mask[0, :6] = mask[1, 3:9] = mask[1, 17:20] = 0  # padding on the left, and within
    largest = 0.0
    with torch.no_grad():
        for source, counted in [*runs, (ids, mask)]:
            tokens, counts = torch.tensor(source), torch.tensor(counted)
            first = torch.zeros_like(tokens)
            first[:, :global_tokens] = 1
            given = {"global_attention_mask": first} if global_tokens else {}
            expected = encoder(input_ids=tokens, attention_mask=counts, **given).last_hidden_state
            found = step(tokens, counts)
            largest = max(largest, float(expected.abs().max()))
            torch.testing.assert_close(found[counts.bool()], expected[counts.bool()], atol=3e-5, rtol=0)
            for sample in range(len(tokens)) if counted is not mask else ():
                length = int(counts[sample].sum())
                own = {name: each[sample : sample + 1, :length] for name, each in given.items()}
                alone = encoder(input_ids=tokens[sample : sample + 1, :length], **own).last_hidden_state[0]
                torch.testing.assert_close(found[sample, :length], alone, atol=3e-5, rtol=0)
    assert largest > 1


@pytest.mark.parametrize(
    ("kind", "radius", "group"),
    [("local", 1, 9), ("local", 4, 9), ("local", 80, 9)]
    + [("transient-global", *sizes) for sizes in ((3, 4), (4, 3), (2, 16), (80, 7), (6, 25), (1, 80))],
)
def test_longt5_encoders_match_transformers(kind: str, radius: int, group: int) -> None:
    """Blocks and groups of any size, longer than the source too; of 25, the published rounding gives uneven groups."""
    torch.manual_seed(radius)
    config = LongT5Config(
        **{"vocab_size": 95, "d_model": 36, "d_kv": 12, "num_heads": 3, "num_layers": 2, "d_ff": 44},
        **{"relative_attention_num_buckets": 8, "relative_attention_max_distance": 13},
        **{"encoder_attention_type": kind, "local_radius": radius, "global_block_size": group},
    )
    model = LongT5ForConditionalGeneration(config).eval()
    randomise(model)
    encoder = model.get_encoder()
    step = (LocalEncoder if kind == "local" else GlobalEncoder)(encoder, LONGEST)
    check_encoder(encoder, step, lengths_around(radius + 1, *([group] if kind != "local" else [])))


@pytest.mark.parametrize(
    ("windows", "global_tokens"),
    [([4, 8], 0), ([6, 6], 0), ([16, 4], 0), (64, 0), ([4, 8], 1), ([6, 6], 3), ([16, 4], 11), ([4, 4], 64)],
    ids=str,
)
def test_led_encoders_match_transformers(windows: Any, global_tokens: int) -> None:
    """Windows of any size, and as many global tokens as a window, a source, or more."""
    torch.manual_seed(1)
    config = LEDConfig(
        **{"vocab_size": 96, "d_model": 36, "encoder_attention_heads": 2, "decoder_attention_heads": 3},
        **{"encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 50, "decoder_ffn_dim": 44},
        **{"max_encoder_position_embeddings": 72, "attention_window": windows},
    )
    model = LEDForConditionalGeneration(config).eval()
    randomise(model)
    encoder = model.get_encoder()
    batches = lengths_around(encoder.config.attention_window[-1], *([global_tokens] if global_tokens else []))
    check_encoder(encoder, WindowEncoder(encoder, global_tokens), batches, global_tokens)


@pytest.mark.parametrize(
    ("family", "shape"),
    [
        ("longt5", {}),
        pytest.param("led", {}, marks=pytest.mark.slow),
        pytest.param("led", TWO_WINDOWS, marks=pytest.mark.slow),
        pytest.param("led", {"global_tokens": 1, **TWO_WINDOWS}, marks=pytest.mark.slow),
        pytest.param("led", {"global_tokens": 1}, marks=pytest.mark.slow),
        pytest.param("led", {"global_tokens": 3}, marks=pytest.mark.slow),
        pytest.param("led", {"global_tokens": 64}, marks=pytest.mark.slow),
        pytest.param("led", {"global_tokens": 3, **WIDER}, marks=pytest.mark.slow),
        pytest.param("led", {"attention_window": 64}, marks=pytest.mark.slow),
        pytest.param("longt5", {"encoder_attention_type": "local"}, marks=pytest.mark.slow),
        pytest.param("longt5", {"local_radius": 127, "global_block_size": 16}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_lengths_around_blocks(bundles: BundleCache, family: str, shape: dict[str, Any]) -> None:
    model = bundles.trace(family, **shape)[0].model
    runner = Runner.load(bundles("dedup", family, **shape), threads=1)
    assert runner.manifest.sizes.max_source == LONGEST
    batches = [(1,), (3,), (4, 3), (5,), (6, 5, 4), (15, 9), (64, 63, 17, 1)]
    sources = [batch(runner.manifest.sizes.source_vocabulary, *each) for each in enumerate(batches)]
    expect_equal(
        runner,
        model,
        [(*source, {"num_beams": 1 + 2 * (number % 2), "max_new_tokens": 9}) for number, source in enumerate(sources)],
    )


@pytest.mark.parametrize(
    ("variant", "global_tokens"),
    slow_unless(itertools.product(PRESETS, (1, 3)), lambda *case: case == ("el", 1)),
)
def test_global_attention_in_every_variant(bundles: BundleCache, variant: str, global_tokens: int) -> None:
    model = bundles.trace("led", global_tokens=global_tokens)[0].model
    runner = Runner.load(bundles(variant, "led", global_tokens=global_tokens), threads=1)
    assert runner.manifest.global_tokens == global_tokens
    runs = list(runs_of(runner, SETTINGS))
    expect_equal(runner, model, runs)
    without = [expected_of(model, *run).sequences.tolist() for run in runs]
    assert [expected_of(model, *run, global_tokens).sequences.tolist() for run in runs] != without


def test_export_with_global_attention(
    checkpoints: CheckpointCache, bundles: BundleCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch generates with the same global attention, and without it gives other tokens."""
    monkeypatch.chdir(tmp_path)
    notes: list[str] = []
    folder = checkpoints("led")
    bundle = export_model(folder, variant="el", global_tokens=1, on_note=notes.append)
    assert bundle.path.name == f"{folder.name}-el-global-1"
    assert bundle.manifest.global_tokens == 1
    assert bundle.manifest.parity is not None and bundle.manifest.parity.tokens > 0 and not notes
    lines = dict(report_of(bundle, workload_of(bundle.manifest)))
    assert lines["encoder"] == "the first token of each source has global attention"
    checkpoint = bundles.trace("led", global_tokens=1)[0]
    samples = samples_of(checkpoint)
    assert isinstance(samples, TextSamples) and samples.global_tokens == 1
    assert greedy(checkpoint, samples) != greedy(checkpoint, replace(samples, global_tokens=0))


@pytest.mark.slow
def test_an_export_without_global_attention_says_so(checkpoints: CheckpointCache, tmp_path: Path) -> None:
    notes: list[str] = []
    export_model(checkpoints("led"), tmp_path / "out", check=False, on_note=notes.append)
    assert len(notes) == 1 and "--global-tokens 1" in notes[0]


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_global_attention_in_low_precision(checkpoints: CheckpointCache, tmp_path: Path, precision: str) -> None:
    folder, target = checkpoints("led"), tmp_path / "out"
    bundle = export_model(folder, target, variant="auto", precision=precision, global_tokens=3)
    assert bundle.manifest.global_tokens == 3
    assert bundle.manifest.precision_error is not None and 0 < bundle.manifest.precision_error.error < 0.1


@pytest.mark.slow
@pytest.mark.parametrize("variant", PRESETS)
@pytest.mark.parametrize("shape", [{"encoder_attention_type": "local"}, {"feed_forward_proj": "relu", "num_layers": 3}])
def test_longt5_in_every_variant(bundles: BundleCache, variant: str, shape: dict[str, Any]) -> None:
    model = bundles.trace("longt5", **shape)[0].model
    runner = Runner.load(bundles(variant, "longt5", **shape), threads=1)
    expect_equal(runner, model, runs_of(runner, SETTINGS))


@pytest.mark.parametrize(
    ("family", "changes", "expected"),
    [
        ("longt5", {"encoder_attention_type": "sparse"}, "encoder_attention_type is 'sparse'; expected local or "),
        ("longt5", {"local_radius": 0}, "local_radius is 0; expected a whole number of at least 1"),
        ("longt5", {"local_radius": 1024}, "local_radius is 1024; expected at most 1023"),
        ("longt5", {"global_block_size": 10**6}, "global_block_size is 1000000; expected at most 1023"),
        ("longt5", {"global_block_size": "4"}, "global_block_size"),
        ("led", {"attention_window": [4, 5]}, "attention_window has 5; expected even numbers from 4 to 2046"),
        ("led", {"attention_window": [4, 6]}, "attention_window has 4 and 6; transformers pads a source to a multiple"),
        ("led", {"attention_window": [4]}, "attention_window has 1 numbers; expected one for each of the 2 encoder"),
        ("led", {"attention_window": 66}, "attention_window has 66; expected at most max_encoder_position_embeddings"),
        ("led", {"attention_window": "wide"}, "attention_window"),
        ("led", {"max_encoder_position_embeddings": 0}, "max_encoder_position_embeddings is 0"),
    ],
)
def test_contradictory_configs_are_refused(
    checkpoints: CheckpointCache, tmp_path: Path, family: str, changes: dict[str, Any], expected: str
) -> None:
    folder = checkpoints.copy(tmp_path / "c", family, **(TWO_WINDOWS if family == "led" else {}))
    edit_json(folder / "config.json", **changes)
    message = refusal(folder)
    assert expected in message
    assert "config.json" in message
