"""The guard of int8: a product whose rows have an outlier keeps 15 bits of them, or float32; the bundle says so."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
import pytest
from rich.console import Console, RenderableType

from support.bundles.cache import BundleCache
from support.checkpoints.families import CheckpointCache
from support.passes.runs import sessions
from tightbeam.deploy import Bundle
from tightbeam.deploy.bundle.manifest import DivergenceEntry, ParityReport, QuantizedEntry
from tightbeam.export import ExportError, export_model, pipeline
from tightbeam.export.accuracy import precision_error
from tightbeam.export.accuracy.compare import TIMES, Times
from tightbeam.export.accuracy.precision_error import measure_rounding_pair, speed_note
from tightbeam.export.accuracy.product_guard import (
    ALLOWED,
    Rounded,
    forms_of,
    limit,
    measure_products,
    rounded_matrices,
    same_bits,
)
from tightbeam.export.options import ExportOptions
from tightbeam.export.tables import describe_products, inexact_options
from tightbeam.graph_passes import ModelGraphs, Sizes, to_precision
from tightbeam.graph_passes.precision.sites import BITS, Site, sites

X, Y, R = 1024, 48, 40
SIZES = Sizes(D=X, H=1, G=1, K=X, V=X, L=1, vocabulary=Y, source_vocabulary=Y, max_source=8, max_target=8)


def rows_and_matrix(outlier: float) -> tuple[Any, Any]:
    """Rows of which one column is larger by a factor, and a matrix that undoes it: the same products for any factor."""
    generator = np.random.default_rng(0)
    rows = generator.standard_normal((R, X)).astype(np.float32)
    matrix = generator.standard_normal((X, Y)).astype(np.float32)
    rows[:, 7] *= outlier
    matrix[7] /= outlier
    return rows, matrix


def product_graphs(matrix: Any) -> ModelGraphs:
    """Two graphs of one product each; the decoder's reads the transposed matrix, as logits do, and embeds with it."""
    x, y = (gs.Variable(name, np.float32, ["R", size]) for name, size in (("x", X), ("y", Y)))
    encoder = gs.Graph([gs.Node("MatMul", "product", {}, [x, gs.Constant("W", matrix)], [y])], [x], [y], opset=23)
    tokens, table = gs.Variable("tokens", np.int64, ["R"]), gs.Constant("E", np.ascontiguousarray(matrix.T))
    z, e = (gs.Variable(name, np.float32, ["R", size]) for name, size in (("z", Y), ("e", X)))
    nodes = [
        gs.Node("Gather", "embedding", {"axis": 0}, [table, tokens], [e]),
        gs.Node("Gemm", "logits", {"transB": 1}, [x.copy(), table], [z]),
    ]
    decoder = gs.Graph(nodes, [tokens, nodes[1].inputs[0]], [e, z], opset=23)
    return ModelGraphs(encoder, decoder, SIZES)


@pytest.mark.parametrize(("outlier", "form"), [(1.0, "int8"), (20.0, "w8a16"), (800.0, "fp32")])
def test_an_outlier_decides_the_form(outlier: float, form: str, tmp_path: Path) -> None:
    rows, matrix = rows_and_matrix(outlier)
    graphs = product_graphs(matrix)
    found = sites(graphs)
    assert [site.name for site in found] == ["encoder.product", "decoder.embedding", "decoder.logits"]
    entries = measure_products(found, {"encoder.product": rows, "decoder.logits": rows})
    product, embedding, logits = entries
    assert product.kept == logits.kept == form
    assert product.int8 == pytest.approx(logits.int8)
    assert product.fp32 is not None and product.fp32 < 1e-6 and product.fp16 is not None
    assert (product.reason == "") == (form == "int8")
    # Both read one matrix: bytes for both forms below float32.
    assert embedding.kept == ("fp32" if form == "fp32" else "int8") and embedding.embedding
    assert embedding.reason == ("it shares the matrix of decoder.logits" if form == "fp32" else "")
    assert all(form == "fp32" or getattr(entry, form) <= ALLOWED for entry in entries)

    quantized, _ = to_precision(graphs, "int8", forms_of(entries))
    operators = [node.op for node in quantized.encoder.nodes]
    assert operators == [{"int8": "DynamicQuantizeMatMul", "w8a16": "SplitRowsMatMul", "fp32": "Linear"}[form]]
    encoder, decoder = sessions(quantized, tmp_path)
    exact = rows.astype(np.float64) @ matrix
    expected = getattr(product, form)
    assert expected <= ALLOWED
    tokens = np.arange(R, dtype=np.int64)
    embedded, scores = decoder.run(None, {"x": rows, "tokens": tokens})
    for output in (encoder.run(None, {"x": rows})[0], scores):
        ratio = np.square(output - exact).mean(axis=1) / np.square(exact).mean(axis=1)
        assert np.sqrt(ratio.mean()) == pytest.approx(expected, rel=1e-3 if form != "fp32" else 1)
    assert np.abs(embedded - matrix.T[:R]).max() <= np.abs(matrix).max() / 253


def heads_graphs(matrices: Any) -> ModelGraphs:
    """A decoder of products by head, as attention over states has them: x [R, H, X] -> z [R, H, Y]."""
    H, X, Y = matrices.shape
    x, z = gs.Variable("x", np.float32, ["R", H, X]), gs.Variable("z", np.float32, ["R", H, Y])
    turned, products = gs.Variable("turned"), gs.Variable("products")
    nodes = [
        gs.Node("Transpose", "before", {"perm": [1, 0, 2]}, [x], [turned]),
        gs.Node("MatMul", "product", {}, [turned, gs.Constant("W", matrices)], [products]),
        gs.Node("Transpose", "after", {"perm": [1, 0, 2]}, [products], [z]),
    ]
    e, y = gs.Variable("e", np.float32, ["R"]), gs.Variable("y", np.float32, ["R"])
    encoder = gs.Graph([gs.Node("Identity", "none", {}, [e], [y])], [e], [y], opset=23)
    return ModelGraphs(encoder, gs.Graph(nodes, [x], [z], opset=23), SIZES)


@pytest.mark.parametrize(("outlier", "form"), [(1.0, "int8"), (20.0, "w8a16"), (2000.0, "fp32")])
def test_the_worst_head_decides_for_all(outlier: float, form: str, tmp_path: Path) -> None:
    made = [rows_and_matrix(factor) for factor in (1.0, outlier, 1.0)]
    rows, matrices = (np.stack(part, axis=axis) for part, axis in zip(zip(*made, strict=True), (1, 0), strict=True))
    graphs = heads_graphs(matrices)
    (site,) = sites(graphs)
    (entry,) = measure_products([site], {site.name: rows.reshape(R, -1)})
    assert (entry.shape, entry.kept) == ((3, X, Y), form)

    quantized, _ = to_precision(graphs, "int8", forms_of([entry]))
    operators = {"int8": ["HeadMatMul"], "w8a16": ["SplitRowsHeadMatMul"], "fp32": ["Transpose", "MatMul", "Transpose"]}
    assert [node.op for node in quantized.decoder.nodes] == operators[form]
    (found,) = sessions(quantized, tmp_path)[1].run(None, {"x": rows})
    exact = np.einsum("rhx,hxy->rhy", rows.astype(np.float64), matrices)
    ratio = np.square(found - exact).mean(axis=2) / np.square(exact).mean(axis=2)
    assert np.sqrt(ratio.mean()) == pytest.approx(getattr(entry, form), rel=1e-3 if form != "fp32" else 1)


def test_matrices_that_are_not_finite_are_no_sites() -> None:
    _, matrix = rows_and_matrix(1.0)
    matrix[3, 5] = np.nan
    assert sites(product_graphs(matrix)) == []


def test_one_bad_row_counts_though_it_is_small() -> None:
    """An error over all numbers would be that of the large rows alone."""
    rows, matrix = rows_and_matrix(500.0)
    rows[1:, 7] /= 500.0
    matrix[7] = 0
    rows[1:] *= 1000.0
    site = Site("encoder.product", gs.Node("MatMul"), gs.Constant("W", matrix), False, gs.Variable("x"))
    (entry,) = measure_products([site], {"encoder.product": rows})
    assert entry.kept == "w8a16"


def tied(table: Any) -> list[Site]:
    """An embedding and logits that read one matrix [vocabulary, X]."""
    shared = gs.Constant("E", table)
    return [
        Site("embedding", gs.Node("Gather"), shared, True, None),
        Site("logits", gs.Node("Gemm"), shared, True, gs.Variable("x")),
    ]


@pytest.mark.parametrize(("outlier", "forms"), [(20, ("int8", "w8a16")), (800, ("fp32", "fp32"))])
def test_a_shared_matrix_is_stored_once(outlier: float, forms: tuple[str, str]) -> None:
    """The logits' rows have an outlier. Bytes serve both readers, and so does float32 if one needs it."""
    generator = np.random.default_rng(1)
    table = generator.standard_normal((Y, 576)).astype(np.float32)
    rows = generator.standard_normal((R, 576)).astype(np.float32)
    rows[:, 7] *= outlier
    table[:, 7] /= outlier
    embedding, logits = measure_products(tied(table), {"logits": rows})
    assert (embedding.kept, logits.kept) == forms
    assert embedding.int8 is not None and logits.int8 is not None and embedding.int8 < ALLOWED < logits.int8
    assert embedding.reason == ("" if forms[0] == "int8" else "it shares the matrix of logits")
    assert re.fullmatch(r"int8 errs by \d+\.\d%, 3% is allowed(; w8a16 errs by \d\.\d%)?", logits.reason)


def test_a_matrix_of_4_bits_has_them_for_all_readers_or_none() -> None:
    """The logits' rows have an outlier, whose weights are lost in the second case. The embedding bears both."""
    generator = np.random.default_rng(1)
    table = generator.standard_normal((Y, 576)).astype(np.float32)
    rows = generator.standard_normal((R, 576)).astype(np.float32)
    rows[:, 7] *= 100
    found = tied(table)
    int4 = rounded_matrices(found, {}, in_int4=True).int4  # rounded to the nearest
    for form in ("w4a16", "int8"):
        embedding, logits = measure_products(found, {"logits": rows}, Rounded(int4=int4))
        assert int4["embedding"] is int4["logits"]
        assert BITS[embedding.kept] == BITS[logits.kept] and embedding.kept == form
        assert (embedding.allowed, logits.allowed) == (limit(embedding.kept), limit(logits.kept))
        assert embedding.reason == ("" if form == "w4a16" else "it shares the matrix of logits")
        int4["logits"].integers[7] = 0
    assert re.match(r"w4a16 errs by \d+\.\d%, 20% is allowed", logits.reason)


def test_readers_that_agree_on_no_bits_have_float32() -> None:
    """8 bits would serve the first, and 4 the second, whose 8 bits were not measured or are NaN."""
    assert same_bits([{"int8": 0.01, "w8a16": 0.01}, {"w4a16": 0.1, "int8": None}]) == ["fp32", "fp32"]
    assert same_bits([{"w4a16": 0.1, "int8": 0.01}, {"w4a16": 0.1}]) == ["w4a16", "w4a16"]
    assert same_bits([{"w4a16": 0.1, "int8": 0.01}], 8) == ["int8"]


def test_rows_of_nan_alone_are_no_measurement() -> None:
    rows, matrix = rows_and_matrix(1.0)
    site = Site("encoder.product", gs.Node("MatMul"), gs.Constant("W", matrix), False, gs.Variable("x"))
    (entry,) = measure_products([site], {"encoder.product": np.full_like(rows, np.nan)})
    assert (entry.kept, entry.int8, entry.w8a16) == ("fp32", None, None)
    assert entry.reason == "int8 errs by no finite number, 3% is allowed; w8a16 errs by no finite number"


@pytest.mark.parametrize("dead", [0.0, 1e-45, 1e-33])
def test_dead_tokens_of_an_embedding_do_not_count(dead: float) -> None:
    """Tokens that training never met are zeros, or what weight decay leaves: below the normal numbers of float32."""
    table = np.random.default_rng(1).standard_normal((Y, X)).astype(np.float32)
    (alive,) = measure_products(tied(table[1::2])[:1], {})
    table[::2] = dead
    (entry,) = measure_products(tied(table)[:1], {})
    assert entry.kept == "int8" and entry.int8 == pytest.approx(alive.int8)


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_numbers_beyond_a_precision_are_no_error(bad: float) -> None:
    rows, matrix = rows_and_matrix(1.0)
    rows[0, 0], rows[1] = bad, 0  # the row is left out; in float16 the next is infinite
    rows[2] *= 1e6
    site = Site("encoder.product", gs.Node("MatMul"), gs.Constant("W", matrix), False, gs.Variable("x"))
    (entry,) = measure_products([site], {"encoder.product": rows})
    assert entry.kept == "int8" and entry.fp16 is None
    zeros = {"encoder.product": np.zeros_like(rows)}
    assert measure_products([site], zeros)[0].int8 == 0


def test_the_report_counts_what_is_not_in_int8() -> None:
    rows, matrix = rows_and_matrix(20.0)
    good = rows_and_matrix(1.0)
    place = gs.Node("MatMul"), gs.Constant("W", matrix), False, gs.Variable("x")
    other = gs.Node("MatMul"), gs.Constant("V", good[1]), False, gs.Variable("x")
    entries = measure_products([Site("a", *place), Site("b", *other)], {"a": rows, "b": good[0]})
    said = "of 2 products and embeddings 1 have rows of 16 bits (--verbose shows the errors)"
    assert describe_products(entries, (), 0.05) == said
    assert describe_products(entries[1:], (), 0.05) == ""
    measured = DivergenceEntry(divergence=0.02, int8=1, w8a16=1, fp32=0, bytes=9)
    moved = "int8 moves the distribution of the next token by 0.02 nats on the calibration inputs (2% of perplexity)"
    known = "Q8_0, as llama.cpp writes it, would move it by 0.05"
    assert describe_products(entries, (measured,), 0.05) == f"{said}; {moved}; {known}"
    assert describe_products(entries, (measured,), None) == f"{said}; {moved}"


def test_a_note_where_int8_is_not_faster() -> None:
    assert speed_note("int8", Times((2.0, 1.0), (0.03, 0.02))) == ""
    assert speed_note("int8", Times((2.0, 1.0), (0.03, 0.0412))) == (
        "int8 is not faster than float32 on this machine: a step takes 41.2 ms, and 30 ms in float32"
    )
    said = speed_note("int8", Times((0.001, 0.001), (0.03, 0.04)))
    assert said.endswith(
        ": the encoding of a batch takes 1 ms, and 1 ms in float32; a step takes 40 ms, and 30 ms in float32"
    )


@pytest.mark.parametrize(
    ("precision", "cache_precision", "fix"),
    [("fp32", "int8", "leave --cache-precision int8 out"), ("int8", None, "leave --precision int8 out")],
)
def test_scores_without_a_number_name_the_options_that_made_them(
    bundles: BundleCache,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    precision: str,
    cache_precision: str | None,
    fix: str,
) -> None:
    """Only products in int8 are timed: nothing reads the times of the others."""
    commands: list[list[str]] = []

    def compared(command: list[str], *_: Any) -> subprocess.CompletedProcess[bytes]:
        commands.append(command)
        return subprocess.CompletedProcess(command, 0, b'{"error": Infinity, "steps": 4, "differing": 4}', b"")

    monkeypatch.setattr(precision_error, "run_counted", compared)
    manifest = Bundle.load(bundles("dedup", precision=precision, cache_precision=cache_precision)).manifest
    said = rf"^in this precision the model's scores are NaN or infinite: [^\n]+; {fix}$"
    with pytest.raises(ExportError, match=said):
        measure_rounding_pair(tmp_path, manifest, inexact_options(manifest))
    assert (TIMES in commands[0]) == (precision == "int8")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_differing": 0.02}, "max_differing is for inexact bundles, "),
        (
            {"max_differing": 0.02, "precision": "int8", "check": False},
            "max_differing needs the comparison with torch; ",
        ),
        ({"max_differing": 2.0, "precision": "int8"}, "max_differing=2 is not a share; "),
        ({"max_differing": float("nan"), "precision": "int8"}, "max_differing=nan is not a share; "),
    ],
)
def test_a_share_that_cannot_be_held(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ExportError, match=rf"^{said}[^\n]+$"):
        ExportOptions(**options)
    ExportOptions(max_differing=0.0, weight_threshold=0.01)
    ExportOptions(max_differing=0.0, cache_precision="int8")


@pytest.mark.parametrize("check", [True, False])
def test_what_no_runner_would_load_is_refused_before_it_is_compared(
    checkpoints: CheckpointCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check: bool
) -> None:
    def spoiled(*given: Any) -> tuple[QuantizedEntry, ...]:
        first, *others = measure_products(*given)
        return first.model_copy(update={"kept": "w8a16", "w8a16": None}), *others

    monkeypatch.setattr(pipeline, "measure_products", spoiled)
    monkeypatch.setattr(pipeline, "compare", lambda *_: pytest.fail("the bundle is compared"))
    said = r"^[^\n]+ is kept as w8a16, whose error None is not allowed; there is no new bundle: please report [^\n]+$"
    with pytest.raises(ExportError, match=said) as caught:
        export_model(checkpoints("bart"), tmp_path / "bundle", precision="int8", check=check)
    assert "--no-check" not in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("limit", "refused"), [(0.2, True), pytest.param(0.25, False, marks=pytest.mark.slow)])
def test_too_many_differing_sequences_leave_no_bundle(
    checkpoints: CheckpointCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: float, refused: bool
) -> None:
    parity = ParityReport(samples=4, settings=3, tokens=9, ties=0, differing=3, max_score_error=0.1)
    monkeypatch.setattr(pipeline, "compare", lambda *_: parity)
    shown: list[RenderableType] = []
    target = tmp_path / "bundle"
    arguments: dict[str, Any] = {"precision": "int8", "max_differing": limit, "on_table": shown.append}
    if not refused:
        assert export_model(checkpoints("bart"), target, **arguments).manifest.parity == parity
        assert not shown
        return
    said = (
        r"^3 of 12 sequences differ from torch's, 25\.0%, over max_differing of 20\.0%; "
        r"there is no new bundle: lower --max-divergence, leave --precision int8 out, or raise --max-differing$"
    )
    with pytest.raises(ExportError, match=said):
        export_model(checkpoints("bart"), target, **arguments)
    assert not list(tmp_path.iterdir())
    console = Console(width=80, record=True)
    console.print(*shown)
    text = console.export_text()
    assert "decoder.tie_embeddings" in text and "…" not in text
