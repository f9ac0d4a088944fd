"""Each operator's function body against numpy in float64, on random, odd and adversarial shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tightbeam.plugins import DOMAIN, IR_VERSION, OPERATORS, OPSET, functions
from tolerance import assert_close

Shape = tuple[str, Any, int]

SIGNATURES: dict[str, tuple[tuple[Shape, ...], tuple[Shape, ...]]] = {
    "NGramBlock": (
        (
            ("scores", np.float32, 2),
            ("history", np.int64, 2),
            ("lengths", np.int64, 1),
            ("ngram_size", np.int64, 0),
        ),
        (("blocked", np.float32, 2),),
    ),
    "LatentAttention": (
        (("query", np.float32, 3), ("states", np.float32, 3), ("mask", np.bool_, 2)),
        (("output", np.float32, 3),),
    ),
    "BeamAttention": (
        (
            ("query", np.float32, 4),
            ("key", np.float32, 4),
            ("value", np.float32, 4),
            ("key_cache", np.float32, 4),
            ("value_cache", np.float32, 4),
            ("ancestry", np.int32, 3),
            ("lengths", np.int32, 1),
        ),
        (("output", np.float32, 4), ("key_cache_out", np.float32, 4), ("value_cache_out", np.float32, 4)),
    ),
    "BeamTopK": (
        (
            ("logits", np.float32, 2),
            ("beam_scores", np.float32, 2),
            ("history", np.int64, 2),
            ("lengths", np.int32, 1),
            ("banned", np.int64, 2),
            ("normalize", np.bool_, 0),
            ("repetition_penalty", np.float32, 0),
            ("no_repeat_ngram_size", np.int64, 0),
            ("candidates", np.int64, 1),
        ),
        (("scores", np.float32, 2), ("beams", np.int64, 2), ("tokens", np.int64, 2)),
    ),
}
_sessions: dict[str, ort.InferenceSession] = {}


def run(name: str, *arrays: Any, **attributes: float) -> list[Any]:
    """One node of the operator, through its function body, on ONNX Runtime; all dimensions dynamic."""
    key = f"{name} {attributes}"
    inputs, outputs = SIGNATURES[name]
    if key not in _sessions:
        node = onnx.helper.make_node(
            name, [n for n, _, _ in inputs], [n for n, _, _ in outputs], domain=DOMAIN, **attributes
        )

        def info(shape: Shape) -> onnx.ValueInfoProto:
            kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(shape[1]))
            return onnx.helper.make_tensor_value_info(shape[0], kind, [f"{shape[0]}{i}" for i in range(shape[2])])

        graph = onnx.helper.make_graph([node], name, list(map(info, inputs)), list(map(info, outputs)))
        opsets = [onnx.helper.make_opsetid("", OPSET), onnx.helper.make_opsetid(DOMAIN, 1)]
        model = onnx.helper.make_model(graph, opset_imports=opsets, functions=functions({name}), ir_version=IR_VERSION)
        onnx.checker.check_model(model)
        options = ort.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = 1
        _sessions[key] = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    feeds = {n: np.asarray(a, dtype=dtype) for (n, dtype, _), a in zip(inputs, arrays, strict=True)}
    return list(_sessions[key].run(None, feeds))


def softmax(scores: Any) -> Any:
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def block_ngrams(scores: Any, history: Any, lengths: Any, n: int) -> Any:
    """The definition, token by token."""
    blocked = scores.copy()
    for row, length in enumerate(lengths):
        tokens = list(history[row, :length])
        for end in range(n - 1, length) if n > 0 else ():
            if tokens[end - n + 1 : end] == tokens[length - n + 1 : length]:
                blocked[row, tokens[end]] = -np.inf
    return blocked


def attend(query: Any, keys: Any, values: Any, mask: Any, scale: float, dtype: type) -> Any:
    """Plain attention in one precision: query [..., Q, K], keys [..., N, K], values [..., N, V], mask [..., 1, N]."""
    query, keys, values = (np.asarray(array, dtype=dtype) for array in (query, keys, values))
    scores = dtype(scale) * (query @ np.swapaxes(keys, -1, -2))
    return softmax(np.where(mask, scores, dtype(-np.inf))) @ values


def check_attention(found: Any, *arguments: Any) -> None:
    assert_close(found, attend(*arguments, np.float64), attend(*arguments, np.float32))


def test_every_operator_has_a_signature_here() -> None:
    assert SIGNATURES.keys() == OPERATORS.keys()


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 5),
    width=st.integers(1, 24),
    vocabulary=st.integers(1, 4),
    n=st.integers(0, 26),
    seed=st.integers(0, 2**31),
)
def test_ngram_block_equals_its_definition(rows: int, width: int, vocabulary: int, n: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    history = generator.integers(0, vocabulary, (rows, width))
    lengths = generator.integers(1, width + 1, rows)
    scores = generator.standard_normal((rows, vocabulary)).astype(np.float32)
    (found,) = run("NGramBlock", scores, history, lengths, n)
    np.testing.assert_array_equal(found, block_ngrams(scores, history, lengths, n))


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_ngram_block_has_no_limit_of_length(n: int) -> None:
    generator = np.random.default_rng(n)
    history = generator.integers(0, 7, (3, 4000))
    scores = generator.standard_normal((3, 50)).astype(np.float32)
    lengths = np.array([4000, 1025, 1])
    (found,) = run("NGramBlock", scores, history, lengths, n)
    np.testing.assert_array_equal(found, block_ngrams(scores, history, lengths, n))
    assert np.isinf(found[0]).any()


@settings(max_examples=40, deadline=None)
@given(
    batch=st.integers(1, 3),
    queries=st.integers(1, 9),
    source=st.integers(1, 20),
    width=st.integers(1, 17),
    seed=st.integers(0, 2**31),
)
def test_latent_attention(batch: int, queries: int, source: int, width: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    query = generator.standard_normal((batch, queries, width)).astype(np.float32)
    states = generator.standard_normal((batch, source, width)).astype(np.float32)
    mask = generator.random((batch, source)) < 0.6
    mask[np.arange(batch), generator.integers(0, source, batch)] = True
    states[~mask] = 1e6  # what is masked must not reach the output
    (found,) = run("LatentAttention", query, states, mask, scale=0.25)
    values = np.where(mask[:, :, None], states, 0)
    check_attention(found, query, states, values, mask[:, None, :], 0.25)


@settings(max_examples=60, deadline=None)
@given(
    batch=st.integers(1, 3),
    beams=st.integers(1, 4),
    groups=st.integers(1, 3),
    shared=st.integers(1, 3),
    steps=st.integers(1, 7),
    key_width=st.integers(1, 9),
    value_width=st.integers(1, 9),
    seed=st.integers(0, 2**31),
)
def test_beam_attention(
    batch: int, beams: int, groups: int, shared: int, steps: int, key_width: int, value_width: int, seed: int
) -> None:
    """A whole generation with beams reordered at random, samples of different lengths, MHA, GQA and MQA."""
    generator = np.random.default_rng(seed)
    rows, heads = batch * beams, groups * shared
    capacity = steps + 2
    late = generator.integers(0, steps, batch)  # a sample that started this many steps later
    key_cache = generator.standard_normal((rows, groups, capacity, key_width)).astype(np.float32) * 1e3
    value_cache = generator.standard_normal((rows, groups, capacity, value_width)).astype(np.float32) * 1e3
    own: list[list[list[tuple[Any, Any]]]] = [[[] for _ in range(beams)] for _ in range(batch)]
    ancestry = np.zeros((batch, beams, steps), dtype=np.int32)
    for step in range(steps):
        lengths = np.maximum(step + 1 - late, 1).astype(np.int32)
        query = generator.standard_normal((rows, heads, 1, key_width)).astype(np.float32)
        key = generator.standard_normal((rows, groups, 1, key_width)).astype(np.float32)
        value = generator.standard_normal((rows, groups, 1, value_width)).astype(np.float32)
        for b in range(batch):
            position = lengths[b] - 1
            parents = generator.integers(0, beams, beams) if position else np.arange(beams)
            ancestry[b, :, :position] = ancestry[b, parents, :position]
            ancestry[b, :, position] = np.arange(beams)
            own[b] = [list(own[b][parent][:position]) for parent in parents]
            for m in range(beams):
                own[b][m].append((key[b * beams + m, :, 0], value[b * beams + m, :, 0]))
        T = int(lengths.max())
        found, key_cache, value_cache = run(
            "BeamAttention", query, key, value, key_cache, value_cache, ancestry[:, :, :T], lengths, scale=0.5
        )
        for b in range(batch):
            for m in range(beams):
                row = b * beams + m
                keys = np.repeat(np.stack([k for k, _ in own[b][m]], axis=1), shared, axis=0)  # (H, T, K)
                values = np.repeat(np.stack([v for _, v in own[b][m]], axis=1), shared, axis=0)
                check_attention(found[row], query[row], keys, values, True, 0.5)


def test_beam_attention_writes_one_row_in_place() -> None:
    generator = np.random.default_rng(0)
    new = [generator.standard_normal((4, 2, 1, 3)).astype(np.float32) for _ in range(3)]
    caches = [generator.standard_normal((4, 2, 6, 3)).astype(np.float32) for _ in range(2)]
    before = [cache.copy() for cache in caches]
    run("BeamAttention", *new, *caches, np.zeros((2, 2, 3)), [3, 2], scale=1.0)
    binding = _sessions["BeamAttention {'scale': 1.0}"].io_binding()
    values = [ort.OrtValue.ortvalue_from_numpy(cache) for cache in caches]
    small = {"ancestry": np.zeros((2, 2, 3), np.int32), "lengths": np.array([3, 2], np.int32)}
    for name, array in [*zip(("query", "key", "value"), new, strict=True), *small.items()]:
        binding.bind_cpu_input(name, array)
    for name, value in zip(("key_cache", "value_cache"), values, strict=True):
        binding.bind_ortvalue_input(name, value)
        binding.bind_ortvalue_output(f"{name}_out", value)
    binding.bind_output("output", "cpu")
    _sessions["BeamAttention {'scale': 1.0}"].run_with_iobinding(binding)
    for cache, old, row in zip(caches, before, new[1:], strict=True):
        expected = old.copy()
        expected[:2, :, 2] = row[:2, :, 0]
        expected[2:, :, 1] = row[2:, :, 0]
        np.testing.assert_array_equal(cache, expected)


@settings(max_examples=80, deadline=None)
@given(
    batch=st.integers(1, 3),
    beams=st.integers(1, 4),
    width=st.integers(1, 12),
    extra=st.integers(0, 30),
    per_beam=st.integers(2, 4),
    n=st.integers(0, 4),
    entries=st.integers(0, 3),
    normalize=st.booleans(),
    penalty=st.sampled_from([0.5, 1.0, 1.7]),
    seed=st.integers(0, 2**31),
)
def test_beam_top_k(
    batch: int,
    beams: int,
    width: int,
    extra: int,
    per_beam: int,
    n: int,
    entries: int,
    normalize: bool,
    penalty: float,
    seed: int,
) -> None:
    generator = np.random.default_rng(seed)
    rows, candidates = batch * beams, per_beam * beams
    vocabulary = candidates + extra
    logits = (4 * generator.standard_normal((rows, vocabulary))).astype(np.float32)
    beam_scores = generator.standard_normal((batch, beams)).astype(np.float32)
    history = generator.integers(0, vocabulary, (rows, width))
    lengths = generator.integers(1, width + 1, batch)
    banned = generator.integers(-1, vocabulary, (rows, entries))
    found, found_beams, found_tokens = run(
        "BeamTopK", logits, beam_scores, history, lengths, banned, normalize, penalty, n, [candidates]
    )

    scores = logits.astype(np.float64)
    if normalize:
        scores = scores - scores.max(1, keepdims=True)
        scores = scores - np.log(np.exp(scores).sum(1, keepdims=True))
    row_lengths = np.repeat(lengths, beams)
    for row in range(rows):
        seen = np.unique(history[row, : row_lengths[row]])
        own = scores[row, seen]
        scores[row, seen] = np.where(own < 0, own * penalty, own / penalty)
    scores = block_ngrams(scores, history, row_lengths, n)
    for row in range(rows):
        scores[row, banned[row][banned[row] >= 0]] = -np.inf
    total = (scores.reshape(batch, beams, vocabulary) + beam_scores[:, :, None]).reshape(batch, -1)
    expected = -np.sort(-total, axis=1)[:, :candidates]
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(np.isfinite(found), finite)
    np.testing.assert_allclose(found[finite], expected[finite], rtol=1e-5, atol=1e-5)
    picked = np.take_along_axis(total, found_beams * vocabulary + found_tokens, axis=1)
    np.testing.assert_allclose(picked[finite], expected[finite], rtol=1e-5, atol=1e-5)
    for sample in range(batch):
        chosen = set(zip(found_beams[sample].tolist(), found_tokens[sample].tolist(), strict=True))
        assert len(chosen) == candidates


def test_beam_top_k_puts_the_lower_beam_and_token_first_among_equals() -> None:
    logits = np.zeros((2, 6), dtype=np.float32)
    arguments = (logits, np.zeros((1, 2)), np.zeros((2, 1)), [1], np.zeros((2, 0)), False, 1.0, 0, [4])
    scores, beams, tokens = run("BeamTopK", *arguments)
    assert beams.tolist() == [[0, 0, 0, 0]]
    assert tokens.tolist() == [[0, 1, 2, 3]]
    assert scores.tolist() == [[0, 0, 0, 0]]
