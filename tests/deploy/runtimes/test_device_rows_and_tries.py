"""Searches that look at rows of logits, and that follow a trie, on the runtimes of a GPU over plain memory."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.bundles.cache import BundleCache
from support.checkpoints.families import WHISPER_GENERATION
from support.checkpoints.timestamps import written_with_timestamps
from support.operators.cuda_host import FLOATS
from support.references.generate_runs import batch
from support.runtimes import session_in_memory, tensorrt_in_memory
from support.runtimes.comparison import ROWS, TRIES, expect_close, rows_and_tries, some_trie
from support.runtimes.cuda_in_memory import CudaInMemory, expect_nothing_left
from support.slow_cases import slow_unless
from tightbeam.deploy import Bundle, Runner
from tightbeam.deploy.bundle.engine_files import build_command
from tightbeam.deploy.errors import EngineFileError, GenerationError
from tightbeam.deploy.runtimes.base import LOGIT_TYPES, LOGITS
from tightbeam.deploy.runtimes.device.cuda import CudaDevice
from tightbeam.deploy.runtimes.device.graphs import DeviceTensor
from tightbeam.deploy.runtimes.device.logits import DeviceLogits
from tightbeam.deploy.scheduling.scheduler import FinishedSample

Made = tensorrt_in_memory.InMemory | session_in_memory.InMemory
OLD = Path(__file__).resolve().parents[2] / "data" / "bundle-format-1"
DEVICES: dict[str, Callable[[Path], Made]] = {
    "tensorrt": tensorrt_in_memory.in_memory,
    "onnxruntime": session_in_memory.in_memory,
}


@pytest.mark.parametrize(
    ("variant", "device"),
    slow_unless(
        itertools.product(("dedup", "baseline"), DEVICES),
        lambda variant, device: (variant == "dedup") == (device == "onnxruntime"),
    ),
)
def test_whole_batches(bundles: BundleCache, variant: str, device: str) -> None:
    """One after the other on one runtime; samples end at different steps."""
    path = bundles(variant, "bart")
    made, cpu = DEVICES[device](path), Runner.load(path, threads=1)
    for seed, own in enumerate([*rows_and_tries(), {"num_beams": 2, "max_new_tokens": 9}]):
        ids, mask = batch(cpu.manifest.sizes.source_vocabulary, seed, (5, 11, 2, 7))
        expect_close(*(runner.generate(ids, mask, **own) for runner in (made.runner, cpu)))
    assert bool(made.cuda.launches) == (variant == "dedup")


@pytest.mark.parametrize(
    ("kind", "device"),
    slow_unless(
        itertools.product(("words", "rows", "beam scores", "beams", "draws"), DEVICES),
        lambda kind, device: device == "tensorrt" or kind == "words",
    ),
)
def test_samples_that_join(bundles: BundleCache, device: str, kind: str) -> None:
    """Samples of one kind join and leave: the rows that are looked at are those of their slots."""
    path = bundles("dedup", "bart")
    made, cpu = DEVICES[device](path), Runner.load(path, threads=1)
    own = {**TRIES[kind], "trie": some_trie(1)} if kind in TRIES else ROWS[kind]
    generator = np.random.default_rng(5)
    waiting, expected, found, turns = [], [], dict[int, Any](), 0
    for number, length in enumerate((5, 2, 60, 3, 7)):  # the third one outgrows the buffers
        tokens = generator.integers(4, 90, length).tolist()
        asked = {**own, "max_new_tokens": int(generator.integers(3, 9)), "eos_token_id": [2, 17]}
        expected.append(cpu.generate([tokens], **asked))
        waiting.append(made.runner.sample(number, tokens, asked))
    scheduler = made.runner.scheduler(3 * waiting[0].options.num_beams)
    while waiting or scheduler.active:
        if waiting and turns % 2 == 0:
            scheduler.add(waiting.pop(0))
        for ended in scheduler.turn():
            assert isinstance(ended, FinishedSample), ended
            found[ended.number] = ended.result
        turns += 1
    scheduler.close()
    for number, result in enumerate(expected):
        expect_close(found[number], result)
    cuda = made.cuda
    assert cuda.launches
    del made, scheduler, waiting
    expect_nothing_left(cuda)


@pytest.mark.parametrize("device", DEVICES)
def test_a_trie_is_uploaded_once_and_freed_with_it(bundles: BundleCache, device: str) -> None:
    made = DEVICES[device](bundles("dedup", "bart"))
    first, second = some_trie(2), some_trie(7)
    uploads = []
    for trie in (first, first, second):
        before = len(made.cuda.done)
        made.runner.generate([[5, 6, 7]], num_beams=2, max_new_tokens=5, trie=trie)
        uploads.append([work.nbytes for work in made.cuda.done[before:]].count(trie.offsets.nbytes))
    assert uploads == [1, 0, 1]
    trie = some_trie(4)
    held = len(made.cuda.device)
    tensors = made.runtime.trie_arrays(trie)
    assert len(made.cuda.device) == held + 2
    at = tensors["trie_tokens"]
    np.testing.assert_array_equal(made.cuda.array(at.address, at.shape, np.int32), trie.tokens)
    del trie, tensors, at
    gc.collect()
    assert len(made.cuda.device) == held


@pytest.mark.parametrize("device", DEVICES)
def test_a_row_is_copied_where_it_is_looked_at(bundles: BundleCache, device: str) -> None:
    """Beam search alone copies none; each row whose scores are asked for is one copy. The last token is forced."""
    made = DEVICES[device](bundles("dedup", "bart"))
    row = 4 * made.runner.manifest.sizes.vocabulary
    for asked, rows in (({"num_beams": 3}, 0), ({"num_beams": 1, "return_token_scores": True}, 5)):
        before = len(made.cuda.done)
        made.runner.generate([[5, 6, 7]], max_new_tokens=6, min_new_tokens=6, **asked)
        copied = [work.nbytes for work in made.cuda.done[before:] if work.kind == "device to host"]
        assert copied.count(row) == rows


@pytest.mark.parametrize("dtype", FLOATS)
def test_rows_of_every_type(dtype: str) -> None:
    device = CudaDevice(CudaInMemory())
    logits = np.random.default_rng(0).standard_normal((6, 11), np.float32).astype(FLOATS[dtype])
    host, memory = device.allocate_host(logits.nbytes), device.allocate(logits.nbytes)
    host.array((logits.nbytes,), np.uint8)[:] = logits.reshape(-1).view(np.uint8)
    device.upload(memory.address, host.address, logits.nbytes)
    row = device.allocate_host(logits[0].nbytes).array((11,), LOGIT_TYPES[dtype])
    rows = DeviceLogits(device, DeviceTensor(memory, logits.shape, logits.itemsize), row, np.arange(6))
    slots = rows.of_rows(np.array([4, 0, 5]))
    assert (len(rows), len(slots)) == (6, 3)
    for found, place in ((rows[3], 3), (slots[0], 4), (slots[2], 5)):
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, logits[place].astype(np.float32))


SETTINGS_REFUSED: tuple[tuple[dict[str, Any], str], ...] = (
    (
        {"do_sample": True, "top_k": 0},
        "top_k=0 needs all scores of a step, which this decoder does not give; {}, or pass",
    ),
    ({"trie": some_trie(0)}, "cannot be used: this decoder was made before its search head could take tries; {}"),
)


@pytest.mark.parametrize(("settings", "message"), SETTINGS_REFUSED, ids=["rows", "trie"])
def test_older_engines_refuse_them(bundles: BundleCache, settings: dict[str, Any], message: str) -> None:
    path = bundles("dedup", "bart")
    entry = tensorrt_in_memory.engine_entry(Bundle.load(path))
    inputs, outputs = entry.decoder.inputs, entry.decoder.outputs
    older = {
        "inputs": tuple(tensor for tensor in inputs if not tensor.name.startswith("trie_")),
        "outputs": tuple(tensor for tensor in outputs if tensor.name != LOGITS),
    }
    entry = entry.model_copy(update={"decoder": entry.decoder.model_copy(update=older)})
    runner = tensorrt_in_memory.in_memory(path, entry).runner
    with pytest.raises(GenerationError) as caught:
        runner.generate([[5, 6]], **settings)
    assert message.format(build_command(runner.bundle, entry, replaces="made-up")) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("settings", "message"), SETTINGS_REFUSED, ids=["rows", "trie"])
@pytest.mark.parametrize("device", DEVICES)
def test_older_bundles_refuse_them(device: str, settings: dict[str, Any], message: str) -> None:
    runner = DEVICES[device](OLD).runner
    again = {"onnxruntime": "export the model again", "tensorrt": "export the model again, then build the engine again"}
    with pytest.raises(GenerationError) as caught:
        runner.generate([[5, 6]], **settings)
    assert message.format(again[device]) in str(caught.value)


def test_an_engine_with_logits_of_another_form(bundles: BundleCache) -> None:
    path = bundles("dedup", "bart")
    entry = tensorrt_in_memory.engine_entry(Bundle.load(path))
    for change in ({"dtype": "int64"}, {"shape": ("R", "vocabulary")}, {"shape": (101,)}):
        outputs = tuple(
            tensor.model_copy(update=change if tensor.name == LOGITS else {}) for tensor in entry.decoder.outputs
        )
        decoder = entry.decoder.model_copy(update={"outputs": outputs})
        with pytest.raises(EngineFileError, match="in its graphs: 'logits'"):
            tensorrt_in_memory.in_memory(path, entry.model_copy(update={"decoder": decoder}))


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
def test_timestamps(bundles: BundleCache, device: str, tmp_path: Path) -> None:
    path = written_with_timestamps(bundles("dedup", "whisper", generation=WHISPER_GENERATION), tmp_path)
    made, cpu = DEVICES[device](path), Runner.load(path, threads=1)
    assert cpu.log_mel is not None
    features = np.random.default_rng(1).standard_normal((3, cpu.log_mel.mels, cpu.log_mel.frames), np.float32)
    for asked in ({}, {"num_beams": 3}, {"num_beams": 4, "no_repeat_ngram_size": 2}):
        found, expected = (
            runner.generate_from_features(features, return_timestamps=True, **asked) for runner in (made.runner, cpu)
        )
        assert (expected.sequences > 55).any()
        expect_close(found, expected)
