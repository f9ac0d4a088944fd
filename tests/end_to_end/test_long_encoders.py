"""Encoders that attend in blocks: LongT5, with and without global tokens, and LED."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LEDConfig, LEDForConditionalGeneration, LongT5Config, LongT5ForConditionalGeneration

from support.bundles import BundleCache
from support.checkpoint_edits import edit_json, refusal
from support.checkpoints import CheckpointCache, randomise
from support.expected import expect_equal
from support.generate_runs import SETTINGS, batch, runs_of
from tightbeam.deploy import Runner
from tightbeam.export.tracing.led import WindowEncoder
from tightbeam.export.tracing.text.longt5 import GlobalEncoder, LocalEncoder
from tightbeam.graph_passes import PRESETS

LONGEST = 64


def lengths_around(*sizes: int) -> list[tuple[int, ...]]:
    """Batches whose samples end around multiples of ``sizes``, the longest first."""
    edges = {max(1, times * size + by) for size in sizes for times in (1, 2, 3) for by in (-1, 0, 1)} | {1, LONGEST}
    found = sorted(edge for edge in edges if edge <= LONGEST)
    return [*((edge,) for edge in found), tuple(reversed(found)), tuple(reversed(found[: len(found) // 2]))]


def check_encoder(encoder: Any, step: torch.nn.Module, batches: list[tuple[int, ...]]) -> None:
    """Compare a module with transformers' encoder: padded batches, each sample alone, and masks with gaps."""
    runs = [batch(90, seed, lengths) for seed, lengths in enumerate(batches)]
    ids, mask = batch(90, 99, (23, 23, 23))
    mask[0, :6] = mask[1, 3:9] = mask[1, 17:20] = 0  # padding on the left, and within
    largest = 0.0
    with torch.no_grad():
        for source, counted in [*runs, (ids, mask)]:
            tokens, counts = torch.tensor(source), torch.tensor(counted)
            expected = encoder(input_ids=tokens, attention_mask=counts).last_hidden_state
            found = step(tokens, counts)
            largest = max(largest, float(expected.abs().max()))
            torch.testing.assert_close(found[counts.bool()], expected[counts.bool()], atol=3e-5, rtol=0)
            for sample in range(len(tokens)) if counted is not mask else ():
                length = int(counts[sample].sum())
                alone = encoder(input_ids=tokens[sample : sample + 1, :length]).last_hidden_state[0]
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


@pytest.mark.parametrize("windows", [[4, 8], [6, 6], [16, 4], 64], ids=str)
def test_led_encoders_match_transformers(windows: Any) -> None:
    torch.manual_seed(1)
    config = LEDConfig(
        **{"vocab_size": 96, "d_model": 36, "encoder_attention_heads": 2, "decoder_attention_heads": 3},
        **{"encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 50, "decoder_ffn_dim": 44},
        **{"max_encoder_position_embeddings": 72, "attention_window": windows},
    )
    model = LEDForConditionalGeneration(config).eval()
    randomise(model)
    encoder = model.get_encoder()
    check_encoder(encoder, WindowEncoder(encoder), lengths_around(encoder.config.attention_window[-1]))


@pytest.mark.parametrize(
    ("family", "shape"),
    [
        ("longt5", {}),
        ("led", {}),
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
        [(*source, {"num_beams": beams, "max_new_tokens": 9}) for source in sources for beams in (1, 3)],
    )


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
    folder = checkpoints.copy(tmp_path / "c", family)
    edit_json(folder / "config.json", **changes)
    message = refusal(folder)
    assert expected in message
    assert "config.json" in message
