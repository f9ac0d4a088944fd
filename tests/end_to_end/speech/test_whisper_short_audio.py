"""Whisper with ``--short-audio``: windows are encoded without the silence that fills them."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from support.audio import RATE_HZ, chirp
from support.bundles.cache import BundleCache
from support.checkpoints.families import WHISPER_GENERATION
from support.inputs import run_windows
from support.slow_cases import slow_unless
from tightbeam.deploy import Runner
from tightbeam.deploy.errors import InputError
from tightbeam.export.checkpoint.files import read_files, with_encoding
from tightbeam.export.checkpoint.quiet import quiet_transformers
from tightbeam.export.errors import ExportError
from tightbeam.export.options import ExportOptions

WINDOW_S = 4
"""The seconds of a window of the runners here, several so that there are shorter recordings."""
ARGUMENTS: dict[str, Any] = {"generation": WHISPER_GENERATION, "short_audio": True}


def load(bundles: BundleCache, variant: str = "dedup") -> Runner:
    """The tiny Whisper, whose frames are as many seconds apart as a window of ``WINDOW_S`` needs."""
    runner = Runner.load(bundles(variant, "whisper", **ARGUMENTS), threads=1)
    log_mel = runner.model.require_windows()
    runner.model.log_mel = replace(log_mel, chunk_s=WINDOW_S, hop=WINDOW_S * log_mel.hop)
    return runner


@pytest.mark.parametrize(("variant",), slow_unless([("dedup",), ("el",), ("baseline",)], lambda name: name == "el"))
def test_tokens_are_those_of_an_encoder_with_fewer_positions(bundles: BundleCache, variant: str) -> None:
    """A window without a mask is encoded whole, as ever."""
    runner = load(bundles, variant)
    log_mel = runner.model.require_windows()
    features = np.stack([log_mel.features(chirp(seconds)) for seconds in (0.4, 0.7)])
    own_frames, frames = 20, 50  # less than a second, and two of them
    model = copy.deepcopy(bundles.trace("whisper", **ARGUMENTS)[0].model)
    for settings in ({"max_new_tokens": 9}, {"num_beams": 3, "language": "de", "max_new_tokens": 12}):
        with torch.no_grad(), quiet_transformers():
            whole = model.generate(torch.from_numpy(features), return_dict_in_generate=True, **settings).sequences
        np.testing.assert_array_equal(runner.generate_from_features(features, **settings).sequences, whole)
    encoder = model.get_encoder()
    encoder.config.max_source_positions = model.config.max_source_positions = encoder.max_source_positions = frames // 2
    encoder.embed_positions = torch.nn.Embedding.from_pretrained(encoder.embed_positions.weight[: frames // 2])
    mask = np.broadcast_to(np.arange(features.shape[2]) < own_frames, features.shape[::2]).astype(np.int64)
    for settings in ({"max_new_tokens": 9}, {"num_beams": 3, "language": "de", "max_new_tokens": 12}):
        with torch.no_grad(), quiet_transformers():
            cut = model.generate(
                torch.from_numpy(features[:, :, :frames].copy()), return_dict_in_generate=True, **settings
            ).sequences
        found = runner.generate_from_features(features, mask, **settings).sequences
        np.testing.assert_array_equal(found, cut)
        assert found.tolist() != runner.generate_from_features(features, **settings).sequences.tolist()


@pytest.mark.parametrize("own", [{"return_timestamps": False}, {"return_token_timestamps": True}], ids=str)
def test_neighbours_of_other_lengths_change_nothing(bundles: BundleCache, own: dict[str, Any]) -> None:
    runner = load(bundles)
    recordings = [chirp(seconds, high_hz=900 + 200 * place) for place, seconds in enumerate((0.3, 3.9, 1.2, 0.6, 9.0))]
    settings: dict[str, Any] = {"num_beams": 2, "max_new_tokens": 8, **own}
    together = [each.result for each in run_windows(runner, recordings, batch_size=8, **settings)]
    alone = [next(run_windows(runner, [one], **settings)).result for one in recordings]
    assert [each.error for each in together] == [None] * len(recordings)
    assert [each.sequences for each in together] == [each.sequences for each in alone]
    assert [each.segments for each in together] == [each.segments for each in alone]


def test_frames_are_those_of_the_sound_and_a_second_in_whole_seconds(bundles: BundleCache) -> None:
    model = load(bundles).model
    log_mel = model.require_windows()
    window = log_mel.features(chirp(1.0))
    assert [model.heard_in(window, own)[0].shape[1] for own in (-60, 0, 1, 24, 25, 49, 50, 74, 75, 99, 100)] == [
        *(50, 50, 50, 50, 75, 75, 100, 100, 100, 100, 100)
    ]
    assert [model.heard_in(window, own)[1] for own in (24, 50, None)] == [25, 50, 50]


def test_bundle_says_that_it_is_inexact(bundles: BundleCache) -> None:
    manifest = load(bundles).manifest
    assert manifest.short_audio and manifest.has_windows
    assert not ExportOptions(short_audio=True).is_exact


def test_other_models_and_one_graph_refuse_it(bundles: BundleCache) -> None:
    with pytest.raises(ExportError, match="short_audio is for Whisper"):
        with_encoding(read_files(bundles.checkpoints("bart")), short_audio=True)
    with pytest.raises(ExportError, match="short_audio does not go with one_graph"):
        ExportOptions(short_audio=True, one_graph=True)


def test_mask_of_other_bundles_is_refused(bundles: BundleCache) -> None:
    runner = Runner.load(bundles("dedup", "whisper", generation=WHISPER_GENERATION), threads=1)
    features = runner.model.require_windows().features(np.zeros(RATE_HZ // 2, np.float32))[None]
    with pytest.raises(InputError, match="leave it out"):
        runner.generate_from_features(features, np.ones(features.shape[::2], np.int64))
