"""Tokenizers of a bundle: codecs, and panics of the tokenizers library as errors of one line."""

from __future__ import annotations

import gc
import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from support.bundles.cache import BundleCache
from support.checkpoints.families import SENTENCES, CheckpointCache
from support.memory import clear_peak, memory_bytes
from support.serving.triton_requests import ids_request, text_request
from support.serving.triton_requests import run as run_requests
from tightbeam.deploy import BundleError, InputError, Runner
from tightbeam.deploy.bundle.reader import Bundle
from tightbeam.deploy.text.tokenizer import _TokenizersCodec, load_codec

LONG = "the harbour bridge " * 40
IDS = np.array([[5, 6, 7, 2], [8, 9, 2, 1]])
MASK = np.array([[1, 1, 1, 1], [1, 1, 1, 0]])


@pytest.fixture(scope="module")
def bundle(bundles: BundleCache) -> Path:
    return bundles("el", tokenizer=True)


@pytest.fixture(scope="module")
def runner(bundle: Path) -> Runner:
    return Runner.load(bundle, threads=1)


def test_codec_equals_the_checkpoints_tokenizer(runner: Runner, checkpoints: CheckpointCache) -> None:
    tokenizer = AutoTokenizer.from_pretrained(checkpoints(tokenizer=True))
    for text in (*SENTENCES, "naïve café", "a\0b", "  two  blanks ", "</s> <pad> <unk>", "x" * 50):
        ids = list(tokenizer(text).input_ids)
        assert runner.encode(text) == (ids, False)
        assert runner.decode(ids) == tokenizer.decode(ids, skip_special_tokens=True)
    cut, was_cut = runner.encode(LONG, truncate=True)
    assert was_cut and len(cut) == 64
    assert cut == tokenizer(LONG, truncation=True, max_length=64).input_ids
    assert cut[-1] == tokenizer.eos_token_id
    assert runner.encode(SENTENCES[0], truncate=True) == (tokenizer(SENTENCES[0]).input_ids, False)


def test_truncation_to_many_lengths_keeps_one_copy(bundle: Path) -> None:
    """A client chooses the length, and a large tokenizer has tens of megabytes."""
    codec = _TokenizersCodec(str(bundle / "tokenizer" / "tokenizer.json"))
    whole = codec.encode(LONG)
    for length in (64, 5, 30, len(whole) + 1, 64):
        cut = codec.truncate(LONG, length)
        assert len(cut) == min(length, len(whole)) and cut[:2] == whole[:2] and cut[-1] == whole[-1]
    reached = gc.get_referents(codec.__dict__)
    reached += [item for holder in reached if isinstance(holder, dict) for item in holder.values()]
    assert len([item for item in reached if isinstance(item, Tokenizer)]) == 2
    assert codec.encode(LONG) == whole


def test_truncation_takes_no_memory_for_ids_that_do_not_exist(bundle: Path, tmp_path: Path) -> None:
    """A tokenizer that is written out lists all ids below its largest."""
    described = json.loads((bundle / "tokenizer" / "tokenizer.json").read_text())
    vocabulary = described["model"]["vocab"]
    vocabulary[next(reversed(vocabulary))] = 2**26
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(described))
    codec = _TokenizersCodec(str(path))
    clear_peak()
    before = memory_bytes("VmHWM")
    codec.truncate(LONG, 8)
    assert memory_bytes("VmHWM") - before < 2**25  # a list of 32-bit ids has 2**28


def test_truncation_and_padding_in_tokenizer_json_are_ignored(bundle: Path, tmp_path: Path) -> None:
    """Checkpoints carry the last settings of their author; transformers overrides them at each call."""
    tokenizer = Tokenizer.from_file(str(bundle / "tokenizer" / "tokenizer.json"))
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=200)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    codec, plain = (_TokenizersCodec(str(folder / "tokenizer.json")) for folder in (tmp_path, bundle / "tokenizer"))
    assert 3 < len(codec.encode(SENTENCES[0])) < 200
    assert codec.encode(SENTENCES[0]) == plain.encode(SENTENCES[0])
    assert codec.truncate(LONG, 64) == plain.truncate(LONG, 64)
    assert codec.encode(LONG) == plain.encode(LONG)


def test_both_kinds_of_tokenizer_agree(bundle: Path, tmp_path: Path, runner: Runner) -> None:
    copy = Path(shutil.copytree(bundle, tmp_path / "copy"))
    data = json.loads((copy / "bundle.json").read_text("utf-8"))
    assert data["tokenizer"]["kind"] == "tokenizers"
    data["tokenizer"]["kind"] = "transformers"
    (copy / "bundle.json").write_text(json.dumps(data), "utf-8")
    other = Runner.load(copy, threads=1)
    for text in SENTENCES:
        assert other.encode(text) == runner.encode(text)
        assert other.decode(other.encode(text)[0]) == runner.decode(runner.encode(text)[0])
    assert other.encode(LONG, truncate=True) == runner.encode(LONG, truncate=True)


def test_transformers_tokenizer_without_transformers(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = Path(shutil.copytree(bundle, tmp_path / "copy"))
    data = json.loads((copy / "bundle.json").read_text("utf-8"))
    data["tokenizer"]["kind"] = "transformers"
    (copy / "bundle.json").write_text(json.dumps(data), "utf-8")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(BundleError, match=r"needs the transformers package.*pip install transformers"):
        Runner.load(copy, threads=1)


def test_no_tokenizer(bundles: BundleCache, bundle: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(bundle, tmp_path / "copy"))
    data = json.loads((copy / "bundle.json").read_text("utf-8"))
    (copy / "bundle.json").write_text(json.dumps({**data, "tokenizer": None}), "utf-8")
    runner = Runner.load(copy, threads=1)
    assert load_codec(runner.bundle) is None
    for act in (lambda: runner.generate_text(["a town"]), lambda: runner.encode("a town"), lambda: runner.decode([5])):
        with pytest.raises(InputError, match=r"has no tokenizer, since its checkpoint has none; pass token ids"):
            act()
    assert runner.generate(IDS, MASK, max_new_tokens=2).sequences.shape[0] == 2


# A tokenizer.json that makes the tokenizers library panic, which is no Exception in Python

PANICS: dict[str, dict[str, Any]] = {
    "load": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},
    "encode": {
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "<missing>", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {},
        }
    },
    "decode": {
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"Regex": ".+"}, "content": "a"},
                {"type": "Strip", "content": "a", "start": 9, "stop": 9},
            ],
        }
    },
}


def broken_tokenizer(bundle: Path, folder: Path, panic: str) -> Path:
    """A copy of a bundle, whole by its checksums, with a tokenizer.json that panics when it is used so."""
    copy = Path(shutil.copytree(bundle, folder))
    file, manifest = copy / "tokenizer" / "tokenizer.json", copy / "bundle.json"
    file.write_text(json.dumps({**json.loads(file.read_text("utf-8")), **PANICS[panic]}), "utf-8")
    data = json.loads(manifest.read_text("utf-8"))
    (entry,) = (entry for entry in data["tokenizer"]["files"] if entry["file"] == "tokenizer/tokenizer.json")
    entry.update(bytes=file.stat().st_size, sha256=hashlib.sha256(file.read_bytes()).hexdigest())
    manifest.write_text(json.dumps(data), "utf-8")
    return copy


def run_model(*arguments: object) -> tuple[int, list[str]]:
    """The exit code of run-model and its own lines on standard error, without those of the library's panic."""
    command = [sys.executable, "-m", "tightbeam.deploy.commands.run_model", *map(str, arguments)]
    done = subprocess.run(command, input=b"a town\na river\n", capture_output=True, timeout=120)
    lines = done.stderr.decode().splitlines()
    assert not any("Traceback" in line for line in lines), done.stderr.decode()
    return done.returncode, [line for line in lines if line.startswith("error: ")]


def test_panic_when_the_tokenizer_is_loaded(bundle: Path, tmp_path: Path) -> None:
    broken = broken_tokenizer(bundle, tmp_path / "b", "load")
    with pytest.raises(BundleError, match=r"the tokenizer in .* cannot be read: .*charsmap") as caught:
        Runner.load(broken, threads=1)
    assert "\n" not in str(caught.value)
    code, errors = run_model(broken)
    assert code == 1 and len(errors) == 1 and "cannot be read: " in errors[0]


def test_panic_when_the_tokenizer_encodes(bundle: Path, tmp_path: Path) -> None:
    broken = broken_tokenizer(bundle, tmp_path / "b", "encode")
    runner = Runner.load(broken, threads=1)
    reason = r"the tokenizer cannot encode this text \(no entry found for key\); pass another text or token ids"
    with pytest.raises(InputError, match=reason):
        runner.encode("a town")
    codec = load_codec(runner.bundle)
    assert codec is not None
    with pytest.raises(InputError, match=reason):
        codec.truncate(LONG, 8)
    with pytest.raises(InputError, match="text 0: " + reason):
        runner.generate_text(["a town"], max_new_tokens=2)
    log = run_requests(runner, [text_request(0, "a town"), ids_request(1, [5, 6, 2], max_new_tokens=2)])
    assert "the tokenizer cannot encode this text" in log.refusals()[0].message
    assert len(log.outputs(1)) == 1
    code, errors = run_model(broken, "--max-new-tokens", 2)
    assert code == 1 and len(errors) == 3
    assert "standard input, line 2: the tokenizer cannot encode this text" in errors[1]


def test_panic_when_the_tokenizer_decodes(bundle: Path, tmp_path: Path) -> None:
    broken = broken_tokenizer(bundle, tmp_path / "b", "decode")
    runner = Runner.load(broken, threads=1)
    with pytest.raises(BundleError, match=r"the tokenizer cannot decode these tokens \(.*\); restore") as caught:
        runner.decode([5, 6])
    assert "\n" not in str(caught.value)
    log = run_requests(runner, [text_request(0, "a town", max_new_tokens=2)], stream=True)
    assert "the tokenizer cannot decode these tokens" in log.refusals()[0].message
    assert not log.refusals()[0].client_error
    code, errors = run_model(broken, "--max-new-tokens", 2)
    assert code == 1 and len(errors) == 3
    assert all(f"line {n + 1}: the tokenizer cannot decode these tokens" in errors[n] for n in range(2))


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit])
def test_interruptions_pass_through_the_codec(
    bundle: Path, monkeypatch: pytest.MonkeyPatch, interruption: type[BaseException]
) -> None:
    codec = _TokenizersCodec(str(bundle / "tokenizer" / "tokenizer.json"))

    class Interrupted:
        def encode(self, text: str) -> None:
            raise interruption

    monkeypatch.setattr(codec, "_tokenizer", Interrupted())
    with pytest.raises(interruption):
        codec.encode("a town")


@pytest.mark.parametrize("times, nested", [(1, False), (1, True), (2, False), (48, True)])
def test_a_template_that_repeats_the_text_is_refused(bundle: Path, tmp_path: Path, times: int, nested: bool) -> None:
    """The tokenizers library needs n ** 48 steps to cut a text of n pieces."""
    opened = Bundle.load(Path(shutil.copytree(bundle, tmp_path / "bundle")))
    path = opened.path / "tokenizer" / "tokenizer.json"
    state = json.loads(path.read_text())
    text = {"Sequence": {"id": "A", "type_id": 0}}
    template = {"type": "TemplateProcessing", "single": [text] * times, "pair": [text], "special_tokens": {}}
    state["post_processor"] = {"type": "Sequence", "processors": [template]} if nested else template
    path.write_text(json.dumps(state))
    if times == 1:
        codec = load_codec(opened)
        assert codec is not None and len(codec.truncate(LONG, 5)) == 5
    else:
        with pytest.raises(BundleError, match=f"repeats the text {times} times, expected once"):
            load_codec(opened)
