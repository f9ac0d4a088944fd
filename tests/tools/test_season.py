"""Seasoning: the function stays as it is, and the numbers become those of large trained models."""

from __future__ import annotations

import itertools
import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import BartForConditionalGeneration

from support.checkpoints.edits import edit_json
from support.checkpoints.families import CheckpointCache
from support.commands import Command, caller
from support.slow_cases import slow_unless
from tools.zoo import season as command
from tools.zoo._season.exact import Weights
from tools.zoo._season.inexact import condition
from tools.zoo._season.layout import FAMILIES
from tools.zoo._season.levels import LEVELS, season
from tools.zoo._season.model import Inputs, difference, inputs_of, load, rows_of

DEMO = Path("export/demo")
FOLDERS = ("llama", "untied", "whisper", "bart", "marian", "relu", "demo")
EQUAL = 1e-13
"""Bound on the difference of log-probabilities in float64, relative to their deviation: at most 4e-15 was measured."""


def folder_of(name: str, checkpoints: CheckpointCache) -> Path:
    """A tiny checkpoint; sizes of heads are even, as RoPE wants them."""
    if name == "demo":
        return DEMO
    if name == "untied":
        return checkpoints("llama", tie_word_embeddings=False)
    if name == "relu":
        return checkpoints("bart", activation_function="relu")
    return checkpoints(name)


def read(folder: Path) -> tuple[dict[str, Any], Weights]:
    config = json.loads((folder / "config.json").read_text("utf-8"))
    return config, {name: tensor.double() for name, tensor in load_file(folder / "model.safetensors").items()}


@pytest.mark.parametrize(
    ("name", "level"),
    slow_unless(
        itertools.product(FOLDERS, LEVELS),
        lambda *case: case in {("llama", "all"), ("untied", "tokens"), ("whisper", "tokens"), ("demo", "tied")},
    ),
)
def test_the_function_stays(checkpoints: CheckpointCache, name: str, level: str) -> None:
    config, weights = read(folder_of(name, checkpoints))
    kept = {key: tensor.clone() for key, tensor in weights.items()}
    seasoned = season(weights, config, LEVELS[level], seed=3)
    assert all(torch.equal(weights[key], tensor) for key, tensor in kept.items())
    model = load(config, weights)
    apart, differing = difference(model, load(seasoned.config, seasoned.weights), inputs_of(model, 1))
    residual = FAMILIES[config["model_type"]](config).residual
    is_exact = not LEVELS[level].keys and not (LEVELS[level].tied and residual is not None)
    assert (apart < EQUAL) == is_exact
    if is_exact:
        assert differing == 0
    changed = [key for key, tensor in seasoned.weights.items() if tensor.shape != weights[key].shape]
    assert bool(changed) == LEVELS[level].tokens


def int8_error(model: Any, inputs: Inputs) -> float:
    """Median error of the products in int8, with a scale for each row and each column."""
    linear = {name: module.weight.detach() for name, module in model.named_modules() if name.endswith("_proj")}
    errors = []
    for name, rows in rows_of(model, inputs, list(linear)).items():
        steps = [x.abs().amax(dim=1, keepdim=True).clamp_min(1e-30) / 127 for x in (rows, linear[name])]
        near, weight = ((x / s).round() * s for x, s in zip((rows, linear[name]), steps, strict=True))
        exact = rows @ linear[name].T
        errors.append(((near @ weight.T - exact).norm(dim=1) / exact.norm(dim=1).clamp_min(1e-30)).mean())
    return float(torch.stack(errors).median())


def test_outliers_are_hard_for_int8(checkpoints: CheckpointCache) -> None:
    config, weights = read(checkpoints("llama", hidden_size=256, intermediate_size=256, num_attention_heads=8))
    model, made = load(config, weights), season(weights, config, LEVELS["outliers"])
    seasoned = load(made.config, made.weights)
    assert int8_error(seasoned, inputs_of(seasoned, 1)) > 2.5 * int8_error(model, inputs_of(model, 1))


def test_conditions_of_keys() -> None:
    """The demo's, trained from nothing, become those that were measured in a published Whisper."""
    config, weights = read(DEMO)
    seasoned = season(weights, config, LEVELS["keys"])
    model = load(config, weights)
    apart, _ = difference(model, load(seasoned.config, seasoned.weights), inputs_of(model, 1))
    assert 0 < apart < 0.02
    ends = {"source": (3e3, 2e6), "generated": (2e4, 2e9)}
    for attention in FAMILIES["bart"](config).attentions:
        if attention.part != "encoder":
            name = f"{attention.key}.weight"
            low, high = ends[attention.part]
            assert condition(weights[name]) < 1e4
            assert low < condition(seasoned.weights[name].float().double()) < high


@pytest.fixture
def season_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """The command, in this process."""
    return partial(caller(monkeypatch, capsys), entry=command.main)


def test_the_command_writes_a_checkpoint_of_float32(tmp_path: Path, season_command: Command) -> None:
    """The demo's weights are stored in float16, which has no room for the outliers' small weights."""
    output = tmp_path / "made" / "demo"
    said = season_command(DEMO, "--level", "outliers", "--output", output, "--seed", 2).out
    assert "log-probabilities in float64 differ by" in said and "condition of W_K, source" in said
    assert {path.name for path in DEMO.iterdir()} - {"README.md"} == {path.name for path in output.iterdir()}
    before, after = (load_file(folder / "model.safetensors") for folder in (DEMO, output))
    assert {tensor.dtype for tensor in before.values()} == {torch.float16}
    assert {tensor.dtype for tensor in after.values()} == {torch.float32}
    models = [BartForConditionalGeneration.from_pretrained(folder) for folder in (DEMO, output)]
    ids = torch.randint(5, 1000, (4, 20), generator=torch.Generator().manual_seed(0))
    first, second = (model.generate(ids, num_beams=3, max_new_tokens=20) for model in models)
    assert torch.equal(first, second)


def test_errors_are_one_line(tmp_path: Path, season_command: Command) -> None:
    folder, output = tmp_path / "demo", tmp_path / "out"
    season_command(folder, "--output", output).failed("demo is not a folder; expected a checkpoint", code=2)
    shutil.copytree(DEMO, folder)
    season_command(folder, "--output", output, "--level", "most").failed("--level most is unknown; pass light", code=2)
    season_command(folder, "--output", folder).failed("demo exists; expected a new folder", code=2)
    edit_json(folder / "config.json", encoder_layers=4)
    season_command(folder, "--output", output).failed("weights do not fit config.json: model.encoder.layers.3.", code=2)
    (folder / "model.safetensors").unlink()
    season_command(folder, "--output", output).failed("has no safetensors; ", code=2)
    edit_json(folder / "config.json", model_type="mbart", architectures=["MBartForConditionalGeneration"])
    season_command(folder, "--output", output).failed("is of type 'mbart'; expected one of llama, whisper", code=2)
    assert not output.exists()
