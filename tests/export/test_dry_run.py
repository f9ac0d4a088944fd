"""``--dry-run``: what config.json alone gives equals what the export of the same checkpoint gives."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from rich.console import Console, RenderableType

from support.bundles.cache import BundleCache
from support.checkpoints.edits import edit_json
from support.checkpoints.families import CLASSES, CheckpointCache
from support.checkpoints.image import PATCHES
from support.checkpoints.speech import RECORDING_FAMILIES
from support.slow_cases import STOOD_FOR, slow_unless
from tightbeam.deploy import Bundle
from tightbeam.deploy.model import bundle_facts
from tightbeam.deploy.model.bundle_facts import process_memory
from tightbeam.export import ExportError
from tightbeam.export.auto.ranking import rank, refusals_by_graphs, refusals_by_sizes
from tightbeam.export.auto.workload import Workload
from tightbeam.export.checkpoint.declared import declared_config
from tightbeam.export.checkpoint.files import read_files, with_encoding
from tightbeam.export.command import main
from tightbeam.export.dry_run import dry_run
from tightbeam.export.families.base import Family
from tightbeam.export.families.table import FAMILIES
from tightbeam.export.options import ExportOptions
from tightbeam.export.preparation import run_size
from tightbeam.graph_passes.caches.cost import Machine, count_weights

SMALL = [
    *CLASSES,
    *RECORDING_FAMILIES,
    PATCHES,
    *("gpt2", "gpt_bigcode", "falcon", "bloom", "mpt", "llama", "mistral", "qwen3", "olmo2", "phi3", "gemma", "gemma2"),
    "starcoder2",
]
MACHINE = Workload(batch_size=3, bandwidth_gb_s=10.0, gflop_s=100.0)


def shown(model: Path | str, options: ExportOptions) -> str:
    parts: list[RenderableType] = []
    dry_run(model, options, parts.append)
    console = Console(width=80, highlight=False)
    with console.capture() as capture:
        for part in parts:
            console.print(part)
    return capture.get()


def config_only(checkpoint: Path, folder: Path) -> Path:
    folder.mkdir()
    for name in ("config.json", "generation_config.json"):
        if (checkpoint / name).exists():
            shutil.copy(checkpoint / name, folder)
    return folder


@pytest.mark.parametrize(("family",), slow_unless(((each,) for each in SMALL), lambda family: family not in STOOD_FOR))
def test_config_alone_gives_the_numbers_of_the_export(bundles: BundleCache, tmp_path: Path, family: str) -> None:
    """Sizes, and with them bytes of caches, the run, the products' weights, the ranking and its refusals are equal."""
    checkpoint, canonical = bundles.trace(family)
    files = read_files(config_only(checkpoint.path, tmp_path / family))
    assert files.sizes == checkpoint.sizes == canonical.sizes
    run = run_size(files, ExportOptions(workload=MACHINE))
    whole = checkpoint.family.has_whole_source
    assert run == MACHINE.run_size(checkpoint.sizes, checkpoint.generation_config, whole=whole)
    weights = files.family.weights(files.declared)
    counts = count_weights(canonical)
    assert weights.products == counts
    impossible = refusals_by_graphs(canonical)
    assert refusals_by_sizes(files.sizes) == impossible
    predicted, real = (
        rank(files.sizes, each, impossible, run, Machine(1e9, 1e10), 0, None) for each in (weights.products, counts)
    )
    assert predicted == real


def test_weights_of_global_attention_are_counted(bundles: BundleCache, tmp_path: Path) -> None:
    """With tokens that have global attention the encoder has more products; the model's weights are the same."""
    checkpoint, canonical = bundles.trace("led", global_tokens=1)
    without = read_files(config_only(checkpoint.path, tmp_path / "led"))
    files = with_encoding(without, global_tokens=1)
    weights = files.family.weights(files.declared)
    assert weights.products == count_weights(canonical)
    assert weights.products.encoder > without.family.weights(without.declared).products.encoder
    assert weights.total == without.family.weights(without.declared).total
    assert "led: 1 decoder layers" in shown(files.path, ExportOptions(workload=MACHINE, global_tokens=1))


OF_PARTS = ("t5gemma2",)
WITH_DEFAULTS = tuple(family for family in FAMILIES if not family.reads_images and family.model_type not in OF_PARTS)
"""Families without a model of each side, or of images beside text."""


@pytest.mark.parametrize("family", WITH_DEFAULTS, ids=lambda family: family.model_type)
def test_weights_are_those_of_a_model_of_real_size(family: Family) -> None:
    """All matrices are counted, and what is left out, biases and norms, is 0.4 % at most."""
    model_class = getattr(transformers, family.architecture)
    with torch.device("meta"):
        model = model_class(model_class.config_class())
    declared = declared_config(family.model_type, {})
    total = family.weights(declared).total
    assert not list(family.sizes_errors(declared))
    assert family.sizes(declared) == family.sizes(model.config)
    assert total == sum(parameter.numel() for parameter in model.parameters() if parameter.ndim > 1)
    assert total > 0.996 * sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("family", "config"),
    [
        ("bart", {"tie_word_embeddings": False}),
        ("fsmt", {"src_vocab_size": 90}),
        ("prophetnet", {"tie_word_embeddings": False}),
        ("marian", {"share_encoder_decoder_embeddings": False}),
        ("mt5", {"num_decoder_layers": 2}),
        ("t5gemma", {"tie_word_embeddings": False}),
        ("llama", {"tie_word_embeddings": True, "head_dim": 20}),
        ("gpt2", {"n_inner": 70}),
    ],
)
def test_weights_of_unusual_configs(checkpoints: CheckpointCache, family: str, config: dict[str, Any]) -> None:
    files = read_files(checkpoints(family, **config))
    model_class = getattr(transformers, files.family.architecture)
    with torch.device("meta"):
        model = model_class(model_class.config_class.from_pretrained(files.path))
    assert files.sizes == files.family.sizes(model.config)
    expected = sum(parameter.numel() for parameter in model.parameters() if parameter.ndim > 1)
    assert files.family.weights(files.declared).total == expected


def test_fields_under_other_names_and_missing_ones(checkpoints: CheckpointCache, tmp_path: Path) -> None:
    folder = config_only(checkpoints("gpt2"), tmp_path / "c")
    config = json.loads((folder / "config.json").read_text())
    width = config.pop("n_embd")
    (folder / "config.json").write_text(json.dumps({**config, "hidden_size": width}))
    assert read_files(folder).sizes == read_files(checkpoints("gpt2")).sizes
    bloom = config_only(checkpoints("bloom"), tmp_path / "b")
    config = json.loads((bloom / "config.json").read_text())
    width = config.pop("hidden_size")
    (bloom / "config.json").write_text(json.dumps({**config, "n_embed": width}))
    assert read_files(bloom).sizes == read_files(checkpoints("bloom")).sizes
    (folder / "config.json").write_text('{"model_type": "mistral"}')
    assert read_files(folder).sizes.max_target == 4096 * 32


def test_memory_of_a_process_is_that_of_the_bundle(bundles: BundleCache, tmp_path: Path) -> None:
    """Weights, caches and buffers of the table are those that show-bundle computes of the bundle."""
    text = shown(config_only(bundles.trace("bart")[0].path, tmp_path / "bart"), ExportOptions(workload=MACHINE))
    rows = [line.split() for line in text.splitlines() if re.match(r" +[13] +[\d.]+ [kM]B ", line)]
    assert [row[0] for row in rows] == ["1", "3"]
    for row in rows:
        batch, numbers = int(row[0]), [float(number) for number in row[1::2]]
        run = MACHINE.run_size(bundles.trace("bart")[0].sizes, {}, whole=False)
        bundle = Bundle.load(bundles("dedup"))
        memory = process_memory(bundle, bundle_facts.Workload(batch, run.M, run.N, run.T))
        assert memory is not None and row[-1] == "MB" and abs(numbers[-1] * 1e6 / memory.total - 1) < 0.05


def test_tables_show_the_users_own_sizes(checkpoints: CheckpointCache, tmp_path: Path) -> None:
    folder = config_only(checkpoints("bart"), tmp_path / "c")
    workload = Workload(2, 3, 10, 5, bandwidth_gb_s=10.0, gflop_s=100.0)
    out = shown(folder, ExportOptions(variant="el", workload=workload))
    assert "Bytes of cache in fp32 for batch 2, 3 beams, source of 10, output of 5 tokens" in out
    sizes = read_files(folder).sizes
    source, generated = 2 * 10 * sizes.D * 4, 2 * 3 * 5 * 2 * sizes.D * sizes.L * 4
    (row,) = [line.split() for line in out.splitlines() if line.endswith("chosen  ")]
    assert row[:4] == ["el", f"{source:,}", f"{generated:,}", f"{source + generated:,}"]
    assert "at 10 GB/s and 100 GFLOP/s (as given)" in out
    assert max(map(len, out.splitlines())) <= 80
    assert f"{source // 2:,}" in shown(folder, ExportOptions(variant="el", workload=workload, precision="fp16"))
    assert "llama" in shown(config_only(checkpoints("llama"), tmp_path / "l"), ExportOptions(workload=MACHINE))


def test_a_dry_run_applies_the_memory_limit(
    checkpoints: CheckpointCache, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = config_only(checkpoints("bart"), tmp_path / "c")
    capsys.readouterr()
    rates = ["--bandwidth-gb-s", "10", "--gflop-s", "100"]
    monkeypatch.setattr(sys, "argv", ["export-model", str(folder), "--dry-run", *rates, "--memory-limit", "1kB"])
    with pytest.raises(SystemExit, match="1"):
        main()
    captured = capsys.readouterr()
    assert "too large" in captured.out and "fastest" not in captured.out
    (line,) = captured.err.splitlines()
    assert line.startswith("error: weights and caches need ")
    monkeypatch.setattr(sys, "argv", ["export-model", str(folder), "--dry-run", *rates, "--memory-limit", "1GB"])
    with pytest.raises(SystemExit) as exit_:
        main()
    assert not exit_.value.code
    assert "fastest" in capsys.readouterr().out
    with pytest.raises(ExportError, match="no variant fits the memory limit"):
        shown(folder, ExportOptions(variant="auto", workload=Workload(memory_limit=1000, gflop_s=1, bandwidth_gb_s=1)))
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


def test_sizes_that_contradict_one_another_are_refused(checkpoints: CheckpointCache, tmp_path: Path) -> None:
    folder = config_only(checkpoints("bart"), tmp_path / "c")
    edit_json(folder / "config.json", decoder_attention_heads=5)
    with pytest.raises(ExportError, match="d_model 36 is not divisible by decoder_attention_heads 5"):
        shown(folder, ExportOptions())


@pytest.mark.parametrize(
    "settings",
    [{"num_beams": "4"}, {"num_beams": [4]}, {"num_beams": -1}, {"max_length": "x"}, {"max_new_tokens": 1e400}],
)
def test_settings_that_are_no_numbers(checkpoints: CheckpointCache, tmp_path: Path, settings: dict[str, Any]) -> None:
    model = config_only(checkpoints("bart"), tmp_path / "bart")
    (model / "generation_config.json").write_text(json.dumps(settings))
    with pytest.raises(
        ExportError, match=r"generation_config\.json: (\w+) is .*; expected a whole number of at least 1"
    ):
        shown(model, ExportOptions(workload=MACHINE))


NEW_FIELDS = ("rope_parameters", "layer_types")


@pytest.mark.parametrize(
    "family", ["llama", "t5gemma", "t5gemma2", "gemma3_text", "bloom", "mpt", *RECORDING_FAMILIES, PATCHES]
)
def test_values_of_wrong_types_are_errors_of_one_line(
    checkpoints: CheckpointCache, tmp_path: Path, family: str
) -> None:
    """Every field of a config, with values that it cannot have: sizes, or an ExportError."""
    folder = config_only(checkpoints(family), tmp_path / family)
    config = json.loads((folder / "config.json").read_text())
    refused = 0
    sides = ["", *({"encoder", "decoder", "encoder_config", "decoder_config"} & config.keys())]
    fields = [(side, name) for side in sides for name in sorted({*config.get(side, config), *NEW_FIELDS})]
    for side, name in fields:
        for value in ("x", [[1]], {"full_attention": 3}):
            changed = {**config, side: {**config[side], name: value}} if side else {**config, name: value}
            (folder / "config.json").write_text(json.dumps({**changed, "model_type": family}))
            try:
                files = read_files(folder)
                files.family.weights(files.declared)
            except ExportError as error:
                refused += 1
                assert "\n" not in str(error)
    assert refused > 3
