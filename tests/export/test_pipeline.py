"""An export from end to end: its result, its checks, and that a failed one leaves nothing."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import sentencepiece
import torch
from tokenizers import Tokenizer

from support.bundles.cache import BundleCache
from support.checkpoints.edits import edit_json
from support.checkpoints.families import SENTENCES, CheckpointCache
from tightbeam.deploy import Bundle, BundleError, Runner
from tightbeam.deploy.bundle.writer import check_target
from tightbeam.export import ExportError, export_model
from tightbeam.export import pipeline as exporter
from tightbeam.export.accuracy import parity, reference
from tightbeam.export.checkpoint.config import longest_output
from tightbeam.export.checkpoint.load import load_checkpoint
from tightbeam.export.checkpoint.sample_texts import SAMPLE_TEXTS
from tightbeam.export.one_graph import search
from tightbeam.export.progress import STEPS
from tightbeam.export.tracing import tested_release
from tightbeam.export.tracing.tested_release import TESTED
from tightbeam.graph_passes import LayerPlan, ModelGraphs, PassResult, rewrite


@pytest.mark.usefixtures("own_processes")
def test_export_model_returns_a_checked_bundle(checkpoints: CheckpointCache, tmp_path: Path) -> None:
    checkpoint = checkpoints("bart", tokenizer=True)
    steps: list[str] = []
    target = tmp_path / "deep" / "out"
    bundle = export_model(checkpoint, target, variant="el", max_new_tokens=9, on_step=steps.append)
    assert steps == [step for step in STEPS if step not in ("measuring products", "comparing with float32")]
    assert Bundle.load(target).manifest == bundle.manifest
    manifest = bundle.manifest
    assert manifest.parity is not None
    assert manifest.parity.samples == len(SAMPLE_TEXTS)
    assert manifest.parity.tokens > 0
    assert (manifest.variant, manifest.family, manifest.sizes.L) == ("el", "bart", 3)
    assert [choice.source for choice in manifest.layers] == ["states"] * 3
    assert manifest.tokenizer is not None
    assert manifest.tokenizer.kind == "tokenizers"
    assert longest_output(manifest.generation, 64) == 9
    runner = Runner.load(target, threads=1)
    assert runner.options().max_length == 10
    texts = list(SENTENCES[:2])
    both = runner.generate_text(texts, num_beams=2)
    assert both == [runner.generate_text([text], num_beams=2)[0] for text in texts]
    assert sorted(path.name for path in target.parent.iterdir()) == ["out"]


def test_a_bundle_with_other_tokens_is_not_kept(
    bundles: BundleCache, checkpoints: CheckpointCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One number of one weight is changed in the export; the comparison must find it."""

    def spoiled(canonical: ModelGraphs, plan: tuple[LayerPlan, ...]) -> tuple[ModelGraphs, list[PassResult]]:
        graphs, results = rewrite(canonical, plan)
        norm = next(node for node in graphs.decoder.nodes if node.op == "LayerNormalization")
        values = norm.inputs[1].values.copy()
        values[0] += 5
        norm.inputs[1].values = values
        return graphs, results

    checkpoint = checkpoints("bart")
    target = tmp_path / "out"
    shutil.copytree(bundles("dedup"), target)
    before = (target / "bundle.json").read_bytes()
    monkeypatch.setattr(exporter, "rewrite", spoiled)
    with pytest.raises(ExportError, match="does not generate what torch does"):
        export_model(checkpoint, target, variant="dedup", force=True)
    assert (target / "bundle.json").read_bytes() == before
    with pytest.raises(ExportError, match="does not generate what torch does"):
        export_model(checkpoint, tmp_path / "other", variant="dedup")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]


def test_padding_of_a_prompt_decides_nothing(checkpoints: CheckpointCache) -> None:
    """Transformers blocks the n-grams of the pad tokens too, which this model repeats."""
    checkpoint = load_checkpoint(checkpoints("gemma3_text"))
    samples = reference.samples_of(checkpoint)
    assert isinstance(samples, reference.TextSamples)
    made = reference.make_reference(checkpoint, samples)
    padded = made.generations[-1]
    alone = [
        reference.generate(checkpoint, samples.alone(index), padded.settings).sequences[0]
        for index in range(len(samples.rows))
    ]
    assert alone != padded.sequences
    for index, tokens in enumerate(alone):
        assert parity.is_tie(made, padded, {"tokens": tokens}, index)
        assert not parity.is_tie(made, padded, {"tokens": [*tokens, 5]}, index)


def test_a_tie_is_counted_not_refused(checkpoints: CheckpointCache) -> None:
    expected = reference.Generation({"num_beams": 2, "max_new_tokens": 5}, [[2, 5, 6]], [-4.0], None)
    samples = reference.TextSamples(("[5, 6]",), ([5, 6],), as_ids=True, pad_left_with=None)
    found = reference.Reference(checkpoints("bart"), samples, (expected,))
    assert parity.is_tie(found, expected, {"tokens": [2, 6, 5], "score": -4.000001}, 0)
    settings = {"num_beams": 2, "max_new_tokens": 5}
    own = reference.generate(load_checkpoint(checkpoints("bart")), samples, settings)
    assert not parity.is_tie(found, own, {"tokens": [2, 6, 5], "score": -99.0}, 0)
    assert parity.is_tie(found, expected, {"tokens": own.sequences[0], "score": -99.0}, 0)


@pytest.mark.usefixtures("own_processes")
def test_an_unsupported_setting_fails_the_export_by_name(checkpoints: CheckpointCache, tmp_path: Path) -> None:
    checkpoint = checkpoints("bart", generation={"encoder_repetition_penalty": 1.5})
    with pytest.raises(ExportError, match=r"encoder_repetition_penalty=1\.5"):
        export_model(checkpoint, tmp_path / "out", variant="dedup")
    assert not (tmp_path / "out").exists()
    export_model(checkpoint, tmp_path / "out", variant="dedup", check=False)
    runner = Runner.load(tmp_path / "out", threads=1)
    with pytest.raises(ValueError, match=r"encoder_repetition_penalty=1\.5 .from the checkpoint"):
        runner.generate(np.array([[5, 6]]))
    runner.generate(np.array([[5, 6]]), encoder_repetition_penalty=1.0, max_new_tokens=2)


def test_one_graph_refuses_a_rule_that_it_does_not_have_by_name(checkpoints: CheckpointCache, tmp_path: Path) -> None:
    checkpoint = checkpoints("bart", generation={"renormalize_logits": True})
    steps: list[str] = []
    with pytest.raises(ExportError, match="one graph cannot have the checkpoint's renormalize_logits=True"):
        export_model(checkpoint, tmp_path / "out", one_graph=True, on_step=steps.append)
    assert steps == ["loading"]


def test_one_graph_with_other_tokens_is_not_kept(
    checkpoints: CheckpointCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search of the graph continues the worst candidates; the comparison must find it."""
    rule = "run_scores, order = TopK <axis = -1, largest = 1, sorted = 1>"
    monkeypatch.setattr(search, "STEP_ENDS", search.STEP_ENDS.replace(rule, rule.replace("largest = 1", "largest = 0")))
    with pytest.raises(ExportError, match="the one graph does not generate what torch does"):
        export_model(checkpoints("bart"), tmp_path / "out", variant="el", one_graph=True)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize(
    ("name", "value", "step"),
    [
        ("num_beams", "x", []),
        ("num_beams", 2.0, []),
        ("num_beams", 0, []),
        ("no_repeat_ngram_size", "x", ["loading"]),
        ("min_length", "x", ["loading"]),
        ("max_length", "x", []),
        ("max_new_tokens", 1.5, []),
        ("begin_suppress_tokens", 5, ["loading"]),
    ],
)
def test_settings_of_a_wrong_kind_are_refused_before_the_work(
    checkpoints: CheckpointCache, tmp_path: Path, name: str, value: Any, step: list[str], check: bool
) -> None:
    folder = checkpoints.copy(tmp_path / "c", "bart")
    edit_json(folder / "generation_config.json", **{name: value})
    steps: list[str] = []
    with pytest.raises(ExportError, match=rf"generation_config.json: {name}(=| is )"):
        export_model(folder, tmp_path / "out", check=check, on_step=steps.append)
    assert steps == step


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"variant": "slimmer"}, "variant 'slimmer' is unknown; expected one of baseline, dedup, el, kcache"),
        ({"precision": "half"}, "precision 'half' is not supported; expected fp32, fp16"),
        ({"max_new_tokens": 0}, "max_new_tokens=0"),
        ({"max_new_tokens": 64}, "the model's 64 positions"),
    ],
)
def test_impossible_options_are_refused(
    checkpoints: CheckpointCache, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ExportError, match=message):
        export_model(checkpoints("bart"), tmp_path / "out", **options)


def test_an_existing_output_is_refused_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    check_target(tmp_path / "out", force=False)  # an empty folder holds nothing to lose
    (tmp_path / "out" / "bundle.json").write_text("{}")
    with pytest.raises(BundleError, match="exists; choose another --output, or replace it with --force"):
        export_model("no-such-model", tmp_path / "out")


def test_a_panic_after_loading_is_an_error(
    checkpoints: CheckpointCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tokenizer that panics on the texts of the comparison alone."""
    folder = checkpoints.copy(tmp_path / "c", "bart", tokenizer=True)
    broken = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    broken["post_processor"]["special_tokens"].pop("</s>")
    loaded = load_checkpoint(folder)
    loaded.tokenizer.backend_tokenizer.post_processor = Tokenizer.from_str(json.dumps(broken)).post_processor
    monkeypatch.setattr(exporter, "load_files", lambda _: loaded)
    with pytest.raises(ExportError, match=r"a library panicked on this checkpoint, .*no entry found for key"):
        export_model(folder, tmp_path / "out", variant="dedup")
    assert not (tmp_path / "out").exists()


def test_a_failed_trace_with_another_transformers_names_the_tested_one(
    checkpoints: CheckpointCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(checkpoint: object) -> None:
        raise TypeError("forward() got an unexpected argument")

    monkeypatch.setattr(exporter, "trace", fail)
    with pytest.raises(TypeError, match="unexpected argument"):
        export_model(checkpoints("bart"), tmp_path / "out", variant="dedup")
    monkeypatch.setattr(tested_release, "version", {"transformers": "5.99.1"}.get)
    advice = rf"^TypeError: .* argument; transformers 5.99.1 is .* tested with {TESTED}: pip install 'transformers=="
    with pytest.raises(ExportError, match=advice):
        export_model(checkpoints("bart"), tmp_path / "out", variant="dedup")
    assert not (tmp_path / "out").exists()


def test_the_tested_transformers_is_the_one_that_is_installed() -> None:
    root = Path(__file__).parents[2]
    assert re.search(rf"^transformers=={re.escape(TESTED)}\.\d+$", (root / "constraints.txt").read_text(), re.MULTILINE)
    assert f'"transformers>={TESTED},<6"' in (root / "pyproject.toml").read_text()


@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses:UserWarning")
def test_a_tokenizer_without_a_tokenizer_json(checkpoints: CheckpointCache, tmp_path: Path) -> None:
    """Marian's tokenizer: two SentencePiece models and a vocabulary, read by transformers' own class on both sides."""
    from transformers import MarianTokenizer

    folder = checkpoints.copy(tmp_path / "marian", "marian")
    text = tmp_path / "text.txt"
    text.write_text("\n".join(SENTENCES * 20), encoding="utf-8")
    for side in ("source", "target"):
        sentencepiece.SentencePieceTrainer.train(
            input=str(text), model_prefix=str(folder / side), vocab_size=99, model_type="bpe", minloglevel=2
        )
        (folder / f"{side}.model").rename(folder / f"{side}.spm")
        (folder / f"{side}.vocab").unlink()
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(folder / "source.spm"))
    words = ["</s>", *(pieces.id_to_piece(i) for i in range(3, 99)), "<unk>"]
    vocabulary = {word: index for index, word in enumerate(words)} | {"<pad>": 98}
    (folder / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    config = {"tokenizer_class": "MarianTokenizer", "source_lang": "en", "target_lang": "de", "model_max_length": 64}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")

    with_tokenizer = importlib.util.find_spec("onnxruntime_extensions") is not None
    bundle = export_model(
        *(folder, tmp_path / "out"), variant="el", max_new_tokens=8, one_graph=True, with_tokenizer=with_tokenizer
    )
    assert (bundle.manifest.text_graph is not None) == with_tokenizer
    assert bundle.manifest.tokenizer is not None
    assert bundle.manifest.tokenizer.kind == "transformers"
    tokenizer = MarianTokenizer.from_pretrained(folder)
    model = load_checkpoint(folder).model
    inputs = tokenizer(SENTENCES[0], return_tensors="pt")
    with torch.no_grad():
        expected = model.generate(**inputs, num_beams=3, max_new_tokens=8)
    found = Runner.load(tmp_path / "out", threads=1).generate_text([SENTENCES[0]], num_beams=3)
    assert found == [tokenizer.decode(expected[0], skip_special_tokens=True)]


def test_the_demo_model_exports_and_ties_its_embedding(bundles: BundleCache, tmp_path: Path) -> None:
    bundle = export_model("demo", tmp_path / "demo", variant="el", one_graph=True)
    assert bundle.manifest.one_graph is not None
    one = bundle.file(bundle.manifest.one_graph)
    assert one.name == "generate.onnx"
    onnx.checker.check_model(one, full_check=True)
    matched = {entry.name: entry.matched for entry in bundle.manifest.passes}
    assert matched["tie_embeddings"] == 1
    numbers = sum(p.numel() for p in load_checkpoint("demo").model.parameters())
    assert bundle.manifest.weights.bytes < 4 * numbers * 1.01
