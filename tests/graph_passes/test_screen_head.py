"""Screened logits: the same results for every search, and the pass that makes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
import pytest

from support.passes.heads import demo_graphs, head_of, in_integers
from tightbeam.deploy import Bundle, Runner
from tightbeam.deploy.bundle.writer import write_bundle
from tightbeam.deploy.runtimes.onnxruntime_cpu import OnnxRuntimeCpu
from tightbeam.export.checkpoint.load import load_checkpoint
from tightbeam.export.writing.bundle_files import write_files
from tightbeam.graph_passes import PRESETS, ModelGraphs, PassError, same_for_all, to_precision
from tightbeam.graph_passes.model import Array
from tightbeam.graph_passes.precision.screen_head import ALL_LOGITS, head_site, screen_head
from tightbeam.graph_passes.tensorrt.standard_operators import standard_operators
from tightbeam.plugins.library import cpu_library

EXAMPLES = Path(__file__).resolve().parents[2] / "export" / "demo" / "examples.txt"
SEARCHES: list[dict[str, Any]] = [
    {"num_beams": 1},
    {"num_beams": 1, "no_repeat_ngram_size": 1, "repetition_penalty": 1.7},
    {"num_beams": 1, "repetition_penalty": 0.5},
    {"num_beams": 1, "bad_words_ids": [[5], [17, 30]], "suppress_tokens": list(range(100, 700))},
    {"num_beams": 1, "return_token_scores": True},
    {"num_beams": 4},
    {"num_beams": 1, "do_sample": True, "seed": 3},
]


@pytest.fixture(scope="module")
def graphs() -> ModelGraphs:
    return demo_graphs()


@pytest.fixture(scope="module")
def directions(graphs: ModelGraphs) -> Array:
    """Those along which the columns of the output matrix are longest."""
    matrix = head_site(graphs).values
    return np.ascontiguousarray(np.linalg.eigh(matrix @ matrix.T)[1][:, :-97:-1].astype(np.float32))


@pytest.fixture(scope="module", params=["fp32", "int8", "w8a16"])
def folders(
    request: pytest.FixtureRequest, graphs: ModelGraphs, directions: Array, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    """A bundle with all logits, and one with screened logits. Of "w8a16" the rows of the head keep 15 bits."""
    root, checkpoint = tmp_path_factory.mktemp("screened"), load_checkpoint("demo")
    precision = "fp32" if request.param == "fp32" else "int8"
    forms = {head_site(graphs).name: request.param} if request.param == "w8a16" else {}

    def written(name: str, screened: bool) -> Path:
        made, results = to_precision(graphs, precision, forms, screened=screened, directions=directions)
        plan = same_for_all(PRESETS["dedup"], graphs.sizes.L, "")
        parts = checkpoint, made, results, plan
        return write_bundle(
            root / name, lambda folder: write_files(folder, *parts, variant="dedup", precision=precision)
        ).path

    return written("all", False), written("screened", True)


@pytest.fixture(scope="module")
def runners(folders: tuple[Path, Path]) -> list[Runner]:
    return [Runner.load(folder, verify=False) for folder in folders]


@pytest.mark.parametrize("search", SEARCHES, ids=str)
def test_every_search_gives_the_same(runners: list[Runner], search: dict[str, Any]) -> None:
    for text in EXAMPLES.read_text(encoding="utf-8").splitlines()[:3]:
        ids, _ = runners[0].model.text.encode(text)
        expected, found = (runner.generate([ids], max_new_tokens=12, **search) for runner in runners)
        np.testing.assert_array_equal(found.sequences, expected.sequences)
        for name in ("scores", "token_scores"):
            if getattr(expected, name) is not None:
                np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))


@pytest.mark.skipif(cpu_library() is None, reason="the function inside a model computes all logits")
def test_logits_are_left_out_only_if_no_search_reads_them(folders: tuple[Path, Path], runners: list[Runner]) -> None:
    bundle = Bundle.load(folders[1], verify=False)
    ids, _ = runners[1].encode(EXAMPLES.read_text(encoding="utf-8").splitlines()[0])
    source = np.array([ids])
    decoding = OnnxRuntimeCpu(bundle, 1).begin(source, np.ones_like(source), 1, 4, 1)
    decoding.fetch_logits()
    for name in ("lengths", "history_lengths", "repetition_penalty"):
        decoding.inputs[name][...] = 1
    decoding.inputs["candidates"][...] = 1
    made = []
    for all_logits in (False, True):
        decoding.inputs[ALL_LOGITS][...] = all_logits
        decoding.step()
        assert decoding.logits is not None
        made.append(decoding.logits.copy())
    computed = made[0] == made[1]
    assert not computed.all() and computed[..., made[1].argmax()].all() and np.isfinite(made[1]).all()


def test_standard_operators_are_those_of_all_logits(graphs: ModelGraphs) -> None:
    """TensorRT's graphs are made of those in float32."""
    made = [to_precision(graphs, "fp32", screened=screened)[0] for screened in (False, True)]
    assert ALL_LOGITS in [tensor.name for tensor in made[1].decoder.inputs]
    for each in made:
        standard_operators(each)
    expected, found = (
        ([tensor.name for tensor in each.decoder.inputs], [node.op for node in each.decoder.nodes]) for each in made
    )
    assert found == expected


def test_a_head_in_integers_that_cannot_be_screened_is_refused(graphs: ModelGraphs, directions: Array) -> None:
    active, blocks, large, added = (in_integers(graphs) for _ in range(4))
    head_of(active).attrs["activation"] = 1
    scale = head_of(blocks).inputs[2].values
    head_of(blocks).inputs[2] = gs.Constant("blocks", np.repeat(scale, 2, axis=0))
    head_of(large).inputs[2] = gs.Constant("large", np.full_like(scale, 1e14))
    head_of(added).inputs[4] = gs.Constant("added", np.ones((1, 1), np.float32))
    for made, problem in (
        (active, "the logits have an activation"),
        (blocks, "the head has several scales in a column"),
        (large, r"weights or biases above 1e\+15, or NaN"),
        (added, "a tensor is added to the logits"),
    ):
        with pytest.raises(PassError, match=problem):
            screen_head(made, directions)


def test_a_head_that_cannot_be_screened_is_refused(graphs: ModelGraphs) -> None:
    with pytest.raises(PassError, match=r"the result of Dyn.*, expected a product .* or int8; export without --screen"):
        screen_head(in_integers(graphs))
    large, added, odd = (to_precision(graphs, "fp32")[0] for _ in range(3))
    head = head_of(large)
    head.inputs[1] = gs.Constant("large", np.full_like(head.inputs[1].values, 1e20))
    with pytest.raises(PassError, match=r"weights or biases above 1e\+15, or NaN"):
        screen_head(large)
    head_of(added).inputs[3] = gs.Constant("added", np.ones((1, 1), np.float32))
    with pytest.raises(PassError, match="a tensor is added to the logits"):
        screen_head(added)
    head = head_of(odd)
    head.inputs[1] = gs.Constant("odd", head.inputs[1].values[:, :-1])
    with pytest.raises(PassError, match="rows of 127 numbers, expected a multiple of 4"):
        screen_head(odd)
