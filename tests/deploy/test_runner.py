"""The runner in Python: ids, masks, texts, and repeated use."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from support.bundles.cache import BundleCache
from support.checkpoints.families import SENTENCES
from tightbeam.deploy import Bundle, BundleError, GenerationError, InputError, Runner, SearchResult
from tightbeam.deploy.runtimes.onnxruntime_cpu import OnnxRuntimeCpu
from tightbeam.deploy.search import NullCallback

LONG = "the harbour bridge " * 40
IDS = np.array([[5, 6, 7, 2], [8, 9, 2, 1]])
MASK = np.array([[1, 1, 1, 1], [1, 1, 1, 0]])


@pytest.fixture(scope="module")
def bundle(bundles: BundleCache) -> Path:
    return bundles("el", tokenizer=True)


@pytest.fixture(scope="module")
def runner(bundle: Path) -> Runner:
    return Runner.load(bundle, threads=1)


def same(one: SearchResult, other: SearchResult) -> None:
    np.testing.assert_array_equal(one.sequences, other.sequences)
    assert (one.scores is None) == (other.scores is None)
    if one.scores is not None:
        np.testing.assert_array_equal(one.scores, other.scores)


# Ids and masks


@pytest.mark.parametrize(
    ("ids", "part"),
    [
        ([5, 6, 2], "int64 [3], expected integers [B, N]"),
        ([[[5, 2]]], "int64 [1, 1, 2]"),
        (5, "int64 []"),
        ([[5.0, 2.0]], "float64 [1, 2]"),
        ([[True, False]], "bool [1, 2]"),
        ("a town", "expected integers"),
        (None, "expected integers"),
        ([["5"]], "expected integers"),
        ([[10**30]], "expected integers"),
        ([[5, 2], [5, "6", 2]], "row 1 of input_ids holds str, expected integers"),
        ([[5, 2], [5.0]], "row 1 of input_ids holds float"),
        ([[5, 2], [True]], "row 1 of input_ids holds bool"),
        ([[5, 2], [[5]]], "row 1 of input_ids holds list"),
        ([[5, 2], []], "row 1 of input_ids is empty"),
        ([[5, 2], [101]], "row 1 of input_ids: token id 101 is outside the vocabulary; expected 0 to 100"),
        ([[5] * 65, [5]], "row 0 of input_ids: 65 token ids are more than the model's 64 positions"),
        ([[5, 2], 5], "rows of different lengths"),
        ([], "is empty, [0]"),
        ([[]], "is empty, [1, 0]"),
        (np.zeros((0, 4), np.int64), "is empty, [0, 4]"),
        ([[5, -1]], "holds -1, which is outside the vocabulary; expected 0 to 100"),
        ([[5, 101]], "holds 101, which is outside the vocabulary"),
        (np.array([[2**63]], np.uint64), "outside the vocabulary"),
        ([[5] * 65], "65 positions, more than the model's 64"),
    ],
)
def test_invalid_ids_are_refused(runner: Runner, ids: Any, part: str) -> None:
    with pytest.raises(InputError) as caught:
        runner.generate(ids, max_new_tokens=2)
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("mask", "part"),
    [
        ([1, 1, 1, 1], "is [4], expected [2, 4]"),
        (np.ones((4, 2)), "is [4, 2], expected [2, 4]"),
        (np.ones((1, 4)), "is [1, 4]"),
        ([[1, 1], [1]], "rows of different lengths"),
        (np.full((2, 4), 2), "other values than 0 and 1"),
        (-MASK, "other values"),
        (MASK * 0.5, "other values"),
        (np.full((2, 4), np.nan), "other values"),
        (MASK.astype(str), "other values"),
        (np.array([[1, 1, 1, 1], [0, 0, 0, 0]]), "sample 1 has no token"),
    ],
)
def test_invalid_masks_are_refused(runner: Runner, mask: Any, part: str) -> None:
    with pytest.raises(InputError) as caught:
        runner.generate(IDS, mask, max_new_tokens=2)
    assert part in str(caught.value)


def test_ids_of_any_integer_type_and_layout(runner: Runner) -> None:
    expected = runner.generate(IDS, MASK, num_beams=3, max_new_tokens=6)
    assert expected.sequences.dtype == np.int64
    assert expected.scores is not None and expected.scores.dtype == np.float32
    same(runner.generate(IDS.tolist(), MASK.tolist(), num_beams=3, max_new_tokens=6), expected)
    for dtype in (np.int32, np.uint8, np.int16):
        same(runner.generate(IDS.astype(dtype), MASK.astype(dtype), num_beams=3, max_new_tokens=6), expected)
    for dtype in (np.bool_, np.float32):
        same(runner.generate(IDS, MASK.astype(dtype), num_beams=3, max_new_tokens=6), expected)
    wide = np.full((4, 8), 99)
    wide[::2, ::2] = IDS
    same(runner.generate(wide[::2, ::2], np.asfortranarray(MASK), num_beams=3, max_new_tokens=6), expected)
    big_endian = IDS.astype(">i8")
    same(runner.generate(big_endian, MASK, num_beams=3, max_new_tokens=6), expected)


RAGGED = [[5, 6, 7, 8, 9, 2], [8, 2], [11, 12, 2]]


@pytest.mark.parametrize("num_beams", [1, 3])
def test_rows_of_different_lengths_give_what_each_gives_alone(runner: Runner, num_beams: int) -> None:
    settings = {"num_beams": num_beams, "num_return_sequences": num_beams, "max_new_tokens": 8, "min_new_tokens": 8}
    for rows in (RAGGED, tuple(map(tuple, RAGGED)), [np.array(row) for row in RAGGED], list(map(torch.tensor, RAGGED))):
        found = runner.generate(rows, **settings)
        for sample, row in enumerate(rows):
            alone = runner.generate([row], **settings)
            np.testing.assert_array_equal(found.of(sample, num_beams).sequences, alone.sequences)
            if num_beams > 1:
                np.testing.assert_allclose(found.of(sample, num_beams).scores, alone.scores, rtol=1e-5)
    with pytest.raises(InputError, match="attention_mask is for rows of one length; leave it out"):
        runner.generate(RAGGED, [[1, 1], [1, 1], [1, 1]], **settings)


SEES_PADDING: tuple[dict[str, Any], ...] = (
    {"max_new_tokens": 6},
    {"max_length": 12},
    {"max_length": 14, "min_length": 10},
    {"max_new_tokens": 6, "no_repeat_ngram_size": 2},
    {"max_new_tokens": 6, "repetition_penalty": 1.5},
)


@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize("settings", SEES_PADDING, ids=str)
def test_prompts_of_different_lengths_give_what_each_gives_alone(
    bundles: BundleCache, settings: dict[str, Any], num_beams: int
) -> None:
    runner = Runner.load(bundles("dedup", "gpt2"), threads=1)
    pad = runner.options().pad_token_id
    prompts = [[5, 6, 7, 8, 9, 12], [8], [11, 12, 13], [20, 21, 22]]
    settings = {**settings, "num_beams": num_beams, "num_return_sequences": num_beams}
    found = runner.generate(prompts, **settings)
    for sample, prompt in enumerate(prompts):
        alone = runner.generate([prompt], **settings)
        padding, length = 6 - len(prompt), alone.sequences.shape[1]
        rows = found.of(sample, num_beams)
        assert (rows.sequences[:, :padding] == pad).all()
        np.testing.assert_array_equal(rows.sequences[:, padding : padding + length], alone.sequences)
        assert np.isin(rows.sequences[:, padding + length :], [pad, runner.options().eos_token_ids[0]]).all()
        if num_beams > 1:
            np.testing.assert_allclose(rows.scores, alone.scores, rtol=1e-5)


@pytest.mark.parametrize("limit", [{"max_new_tokens": 3}, {"max_length": 9, "repetition_penalty": 1.3}])
def test_callback_of_prompts_of_different_lengths(bundles: BundleCache, limit: dict[str, Any]) -> None:
    runner = Runner.load(bundles("dedup", "gpt2"), threads=1)
    finished: dict[int, SearchResult] = {}

    class Recording(NullCallback):
        def on_finished(self, sample: int, result: SearchResult) -> None:
            finished[sample] = result

    prompts = [[5, 6], [7]]
    runner.generate(prompts, callback=Recording(), **limit)
    assert sorted(finished) == [0, 1]
    for sample, prompt in enumerate(prompts):
        np.testing.assert_array_equal(finished[sample].sequences, runner.generate([prompt], **limit).sequences)


def test_repr_names_bundle_model_and_runtime(runner: Runner, bundle: Path) -> None:
    about = f"({str(bundle)!r}, model={runner.manifest.model!r}, family='bart', variant='el', precision='fp32'"
    assert repr(runner) == f"Runner{about}, runtime=OnnxRuntimeCpu)"
    assert repr(runner.bundle) == f"Bundle{about})"


def test_a_folder_is_loaded_by_load() -> None:
    folder: Any = "bundle"
    with pytest.raises(TypeError, match=r"call Runner\.load\(path\)"):
        Runner(folder)


def test_inputs_are_not_changed(runner: Runner) -> None:
    ids, mask = IDS.copy(), MASK.copy()
    runner.generate(ids, mask, num_beams=2, max_new_tokens=4)
    np.testing.assert_array_equal(ids, IDS)
    np.testing.assert_array_equal(mask, MASK)


@pytest.mark.parametrize("variant", ["el", "dedup", "baseline"])
def test_a_runner_can_be_used_again(bundles: BundleCache, variant: str) -> None:
    """Buffers are used again when the shape is the same; what an earlier batch left there must not show."""
    folder = bundles(variant, tokenizer=True)
    generator = np.random.default_rng(0)
    other = generator.integers(3, 101, (2, 4))
    large = generator.integers(3, 101, (5, 30))
    runner = Runner.load(folder, threads=1)
    settings = {"num_beams": 4, "max_new_tokens": 30, "num_return_sequences": 2}
    first = runner.generate(IDS, MASK, **settings)
    kept = first.sequences.copy()
    runner.generate(other, min_new_tokens=30, **settings)  # the same shape, the cache filled to its end
    same(runner.generate(IDS, MASK, **settings), first)
    runner.generate(large, num_beams=2, max_new_tokens=50, min_new_tokens=50)
    same(runner.generate(IDS, MASK, **settings), first)
    runner.generate(IDS, MASK, num_beams=1, max_new_tokens=30)
    same(runner.generate(IDS, MASK, **settings), first)
    same(Runner.load(folder, threads=2).generate(IDS, MASK, **settings), first)
    np.testing.assert_array_equal(first.sequences, kept)  # nor is an earlier result overwritten


def test_an_error_leaves_the_runner_usable(runner: Runner) -> None:
    first = runner.generate(IDS, MASK, max_new_tokens=5)
    for bad in ({"input_ids": [[500]]}, {"input_ids": IDS, "num_beams": 0}):
        with pytest.raises((InputError, GenerationError)):
            runner.generate(**bad)
    same(runner.generate(IDS, MASK, max_new_tokens=5), first)


# Loading


@pytest.mark.parametrize("threads", [0, -1, 10**12, 100_000, 1.5, "2", True])
def test_bad_threads(bundle: Path, threads: Any) -> None:
    with pytest.raises(InputError, match="is not a number of threads; pass 1 to 1024, or None"):
        Runner.load(bundle, threads=threads)


@pytest.mark.parametrize("device", ["tpu", "", None, 0, ["cpu"]])
def test_bad_device(bundle: Path, device: Any) -> None:
    with pytest.raises(InputError, match="is not supported; pass one of cpu"):
        Runner.load(bundle, device=device)


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"max_source": 60_000}, "cannot run the encoder"),
        ({"source_vocabulary": 60_000}, "cannot run the encoder"),
        ({"vocabulary": 60_000, "max_target": 60_000}, "cannot run the decoder"),
    ],
)
def test_sizes_that_the_graphs_do_not_have(bundle: Path, tmp_path: Path, change: dict[str, int], part: str) -> None:
    copy = Path(shutil.copytree(bundle, tmp_path / "copy"))
    data = json.loads((copy / "bundle.json").read_text("utf-8"))
    data["sizes"].update(change)
    (copy / "bundle.json").write_text(json.dumps(data), "utf-8")
    with pytest.raises(BundleError) as caught:
        ids = [[50_000]] if "source_vocabulary" in change else [[5] * 100] if "max_source" in change else [[5]]
        settings = {"max_new_tokens": 200, "min_new_tokens": 200} if "vocabulary" in change else {"max_new_tokens": 3}
        Runner.load(copy, threads=1).generate(ids, **settings)
    assert part in str(caught.value) and "\n" not in str(caught.value)


# Texts


@pytest.mark.parametrize(
    ("texts", "part"),
    [
        ("a small town", "one string, expected a list of strings; pass [text]"),
        ({"a": "a small town"}, "texts is dict, expected a list of strings; pass [text]"),
        (b"a town", "texts is bytes, expected a list of strings; pass [text]"),
        (["a town", 5], "text 1: a text is int, expected str"),
        ([None], "text 0: a text is NoneType"),
        ([b"a town"], "text 0: a text is bytes"),
        (["a town", ""], "text 1: empty text"),
        ([" \n\t\u3000"], "text 0: empty text"),
        (["half \ud83d a character"], "text 0: text holds half a character"),
        (["a town", LONG], "text 1: text of "),
        ([LONG], "longer than the model's 64 positions; shorten it, or cut it with --truncate (truncate=True)"),
    ],
    ids=range(11),
)
def test_invalid_texts_are_refused(runner: Runner, texts: Any, part: str) -> None:
    with pytest.raises(InputError) as caught:
        runner.generate_text(texts, max_new_tokens=2)
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("batch_size", [0, -1, 2.5, "8", True, 2**70])
def test_bad_batch_size(runner: Runner, batch_size: Any) -> None:
    with pytest.raises(InputError, match="batch_size"):
        runner.generate_text(["a town"], batch_size=batch_size)
    with pytest.raises(InputError, match="max_rows"):
        runner.scheduler(batch_size)


def test_settings_are_checked_even_without_texts(runner: Runner) -> None:
    assert runner.generate_text([]) == []
    with pytest.raises(GenerationError, match="num_beems"):
        runner.generate_text([], num_beems=4)


def test_texts_come_back_in_order_and_batches_do_not_matter(runner: Runner) -> None:
    alone = [runner.generate_text([text], num_beams=2, num_return_sequences=2) for text in SENTENCES]
    for batch_size in (1, 3, 8):
        together = runner.generate_text(SENTENCES, batch_size=batch_size, num_beams=2, num_return_sequences=2)
        assert together == [text for pair in alone for text in pair]


# The serving machine

SERVING = """
import sys
for name in ("torch", "transformers", "onnx", "onnx_graphsurgeon", "onnx_ir", "onnxscript", "safetensors"):
    sys.modules[name] = None
from tightbeam.deploy import Runner
runner = Runner.load(sys.argv[1], threads=1)
print(*runner.generate_text(sys.argv[2:], num_beams=3, no_repeat_ngram_size=2, max_new_tokens=8), sep="\\n")
"""


@pytest.mark.parametrize("variant", ["el", "dedup", "baseline"])
def test_run_without_the_build_machines_packages(bundles: BundleCache, runner: Runner, variant: str) -> None:
    folder = bundles(variant, tokenizer=True)
    done = subprocess.run([sys.executable, "-c", SERVING, str(folder), *SENTENCES], capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stderr == b""
    expected = runner.generate_text(SENTENCES, num_beams=3, no_repeat_ngram_size=2, max_new_tokens=8)
    assert done.stdout.decode().splitlines() == expected


@pytest.mark.parametrize("variant", ["baseline", "dedup", "el"])
def test_threads_take_turns_on_one_runner(bundles: BundleCache, variant: str) -> None:
    runner = Runner.load(bundles(variant, "bart"), threads=1)
    inputs = [np.random.default_rng(seed).integers(3, 90, (2, 5)) for seed in range(8)]
    settings = {"num_beams": 3, "max_new_tokens": 6}
    alone = [runner.generate(ids, **settings).sequences.tolist() for ids in inputs]
    with ThreadPoolExecutor(4) as pool:
        together = pool.map(lambda ids: runner.generate(ids, **settings).sequences.tolist(), inputs * 3)
        assert list(together) == alone * 3


def test_two_decodings_at_once_share_no_buffer(bundles: BundleCache) -> None:
    engine = OnnxRuntimeCpu(Bundle.load(bundles("dedup", "bart")), threads=1)
    ids, mask = np.full((1, 4), 7), np.ones((1, 4), dtype=np.int64)
    first = engine.begin(ids, mask, 2, 5, 4)
    kept = first._caches
    assert engine.begin(ids, mask, 2, 5, 4)._caches is not kept
    first.close()
    assert engine.begin(ids, mask, 2, 5, 4)._caches is kept


def test_public_names_alone_are_listed(runner: Runner) -> None:
    assert set(dir(runner)) == {name for name in {*vars(Runner), *vars(runner)} if not name.startswith("_")}
    assert {"generate_text", "load", "model", "cache_bytes"} <= set(dir(runner))


@pytest.mark.parametrize("path", [None, 3, b"bundle", ["bundle"]])
def test_a_path_of_another_type_is_refused(path: Any) -> None:
    with pytest.raises(InputError) as caught:
        Runner.load(path)
    expected = f"the bundle is {type(path).__name__}, expected the path of its folder; pass a str or a Path"
    assert str(caught.value) == expected
