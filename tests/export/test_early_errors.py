"""Errors that need no torch come before torch is imported, in a process of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.bundles.cache import BundleCache
from support.checkpoints.edits import edit_json
from support.checkpoints.families import CheckpointCache

ROOT = Path(__file__).resolve().parents[2]
RUN = """
import sys
from tightbeam.export.command import main
code = None
try:
    main()
except SystemExit as exit_:
    code = exit_.code
print([name for name in ("torch", "transformers", "onnxruntime") if name in sys.modules], file=sys.stderr)
sys.exit(code)
"""
SEVERAL = """
import json, sys
from tightbeam.export import command
for arguments in json.loads(sys.argv.pop()):
    sys.argv = ["export-model", *arguments]
    try:
        command.main()
    except SystemExit as exit_:
        print("code", exit_.code, file=sys.stderr)
    print([name for name in ("torch", "transformers") if name in sys.modules], file=sys.stderr)
"""


def test_errors_come_before_torch_is_imported(
    checkpoints: CheckpointCache, bundles: BundleCache, tmp_path: Path
) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "notes.txt").write_text("mine")
    bart, led = str(checkpoints("bart")), str(checkpoints("led"))
    names = ("family", "untyped", "cut", "heads", "pickled", "list", "vocabulary")
    edited = {name: checkpoints.copy(tmp_path / name, "bart") for name in names}
    (edited["untyped"] / "config.json").write_text("{}")
    edit_json(edited["family"] / "config.json", model_type="bert")
    edit_json(edited["heads"] / "config.json", decoder_attention_heads=5)
    (edited["cut"] / "config.json").write_text('{"model_type": ')
    (edited["list"] / "generation_config.json").write_text("[]")
    (edited["pickled"] / "model.safetensors").rename(edited["pickled"] / "pytorch_model.bin")
    whisper = checkpoints.copy(tmp_path / "whisper", "whisper")
    (whisper / "preprocessor_config.json").unlink()
    (edited["vocabulary"] / "tokenizer_config.json").write_text("{}")
    texts = tmp_path / "texts.txt"
    texts.write_text("the harbour bridge")
    target = ["--output", str(tmp_path / "out")]
    cases: list[tuple[list[str], str]] = [
        ([bart, "--output", str(tmp_path / "taken")], "exists and is not a bundle, so --force cannot replace it"),
        ([bart, *target, "--variant", "elx"], "variant 'elx' is unknown; expected one of baseline, dedup"),
        ([bart, *target, "--source-cache", "nothing"], "source-cache 'nothing' is unknown"),
        ([bart, *target, "--precision", "int3"], "precision 'int3' is not supported"),
        ([bart, *target, "--memory-limit", "lots"], "'lots' is not an amount of memory"),
        ([bart, *target, "--batch-size", "0"], "batch_size=0 is out of range"),
        ([bart, *target, "--source-length", "65"], "source_length=65 exceeds the model's 64 positions"),
        ([bart, *target, "--max-new-tokens", "64"], "max_new_tokens=64 and the start token exceed"),
        ([bart, *target, "--gflop-s", "3"], "bandwidth, matrix rate and GPU are for --variant auto"),
        (
            [bart, *target, "--precision", "fp16", "--gpu", "H200"],
            "matrix rate and GPU are for --variant auto",
        ),
        ([bart, *target, "--variant", "auto", "--gpu", "H200"], "known in float16, not for --precision fp32; pass"),
        ([bart, *target, "--variant", "auto", "--gpu", "V100"], "no times are known for the GPU 'V100'; expected H200"),
        ([bart, *target, "--gpu", "H200", "--gflop-s", "3"], "gpu has a bandwidth and a matrix rate of its own"),
        ([bart, *target, "--memory-limit", "1kB"], "over the limit of 1,000"),
        ([bart, *target, "--memory-limit", "1kB", "--variant", "auto"], "no variant fits the memory limit"),
        (
            [bart, *target, "--global-tokens", "1"],
            "global_tokens=1 is for LED, whose encoder has weights for",
        ),
        ([led, *target, "--global-tokens", "-1"], "global_tokens=-1 is not a number of tokens; expected 0 (none)"),
        ([led, *target, "--global-tokens", "65"], "global_tokens=65 exceeds the model's 64 source positions; pass few"),
        ([bart, "--dry-run", "--global-tokens", "1"], "bart has none, leave it out"),
        ([str(tmp_path / "nowhere"), *target], "no such folder"),
        (["bart-large-cn", *target], "did you mean bart-large-cnn"),
        ([str(tmp_path / "taken"), *target], "no config.json"),
        ([str(bundles("dedup")), *target], "is a bundle, which export-model wrote; give the checkpoint"),
        ([str(edited["untyped"]), *target], "there is no model_type; supported families"),
        ([str(edited["family"]), *target], "model_type is 'bert'; supported families"),
        ([str(edited["cut"]), *target], "config.json: not readable as JSON"),
        ([str(edited["list"]), *target], "generation_config.json: expected a JSON object"),
        ([str(edited["heads"]), *target], "d_model 36 is not divisible by decoder_attention_heads 5"),
        ([str(edited["pickled"]), *target], "pickled weights are not read"),
        ([str(whisper), *target], "preprocessor_config.json: not readable as JSON"),
        (
            [bart, *target, "--calibration", str(texts), "--variant", "el"],
            "no tokenizer to read calibration texts with",
        ),
        ([str(edited["vocabulary"]), *target], "an incomplete tokenizer (tokenizer_config.json)"),
        ([bart, *target, "--variant", "baseline", "--weight-threshold", "0.1"], "kv-per-beam is not; use --variant"),
        ([str(checkpoints("llama")), *target, "--variant", "el"], "variant el cannot be used with rotary positions"),
    ]
    done = subprocess.run(
        [sys.executable, "-c", SEVERAL, json.dumps([arguments for arguments, _ in cases])],
        capture_output=True,
        text=True,
        cwd=ROOT / "tests",
        timeout=300,
    )
    lines = done.stderr.splitlines()
    assert len(lines) == 3 * len(cases), done.stderr
    for (_, expected), error, code, imported in zip(cases, lines[::3], lines[1::3], lines[2::3], strict=True):
        assert error.startswith("error: ") and expected in error
        assert (code, imported) == ("code 1", "[]"), error
    assert not done.stdout and not (tmp_path / "out").exists()


@pytest.mark.parametrize("options", [["--dry-run", "--bandwidth-gb-s", "9", "--gflop-s", "9"], ["--variant", "elx"]])
def test_a_short_process_imports_no_runtime(checkpoints: CheckpointCache, options: list[str]) -> None:
    arguments = [sys.executable, "-c", RUN, str(checkpoints("bart")), *options]
    done = subprocess.run(arguments, capture_output=True, text=True, cwd=ROOT / "tests", timeout=120)
    assert done.stderr.splitlines()[-1] == "[]", done.stderr
