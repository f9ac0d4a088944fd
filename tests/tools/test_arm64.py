"""The wheel for Linux on arm64, under QEMU: every operator's cases, the demo and a tiny Whisper."""

from __future__ import annotations

import json
import pickle
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.audio import RATE_HZ, chirp
from support.bundles.cache import BundleCache
from support.checkpoints.families import WHISPER_GENERATION
from support.commands import MODULE
from support.operators.runs import MODULES, check, run
from tightbeam.export import export_model
from tightbeam.plugins.library import cpu_library
from tools.arm64 import Machine, missing

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "export" / "demo"
PROCESSORS = {"cortex-a72": "baseline", "neoverse-n1": "dotprod", "max": "i8mm"}
"""A processor of QEMU -> the best instruction set that it has."""
SAME_BITS = (
    "QuantizeRows",
    "QuantizedMatMul",
    "DynamicQuantizeMatMul",
    "SplitRowsMatMul",
    "HeadMatMul",
    "SplitRowsHeadMatMul",
    "QuantizedGather",
    "Int4MatMul",
    "Int4Gather",
    "QuantizedBeamAttention",
)
"""Operators whose results are the same bits on every processor."""
OPERATORS = """
import pickle, sys
from support.operators.runs import run
from tightbeam.plugins.instruction_set import instruction_set
from tightbeam.plugins.library import cpu_library
cases = pickle.load(open(sys.argv[1], "rb"))
outputs = [run(name, case, cpu_library()) for name, case in cases]
pickle.dump((instruction_set(), outputs), open(sys.argv[2], "wb"))
"""

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(missing()), reason=missing() or "all is there")]


@pytest.fixture(scope="module")
def machine() -> Machine:
    return Machine()


def test_tag_is_that_of_many_machines(machine: Machine) -> None:
    (wheel,) = (machine.folder / "dist").iterdir()
    tag = re.fullmatch(r"tightbeam-.*-py3-none-manylinux_2_(\d+)_aarch64\.whl", wheel.name)
    assert tag is not None and int(tag[1]) <= 28  # like onnxruntime's own


@pytest.mark.parametrize("processor", PROCESSORS)
def test_operators(machine: Machine, processor: str, tmp_path: Path) -> None:
    """Each case is within the tolerance of its definition; int8 and int4 give this machine's bits."""
    cases = [(name, case) for name, module in MODULES.items() for case in module.cases()]
    given, outputs = tmp_path / "cases", tmp_path / "outputs"
    given.write_bytes(pickle.dumps(cases))
    tests = {"PYTHONPATH": str(ROOT / "tests")}
    done = machine.run("-c", OPERATORS, given, outputs, processor=processor, environment=tests)
    assert done.returncode == 0, done.stderr
    instruction_set, found = pickle.loads(outputs.read_bytes())
    assert instruction_set == PROCESSORS[processor]
    for (name, case), result in zip(cases, found, strict=True):
        check(name, case, result)
        for tensor, array in run(name, case, cpu_library()).items() if name in SAME_BITS else ():
            np.testing.assert_array_equal(result[tensor], array, err_msg=f"{name} {case.name} {tensor}")


def same_results(machine: Machine, *arguments: str | Path) -> None:
    """Assert that run-model writes the same tokens and texts there and here."""
    here = subprocess.run([*MODULE, *arguments, "--json"], capture_output=True, text=True, check=True)
    there = machine.run(*MODULE[1:], *arguments, "--json")
    assert there.returncode == 0, there.stderr
    expected, found = ([json.loads(line) for line in done.stdout.splitlines()] for done in (here, there))
    assert expected and expected[0]["text"]
    for name in ("tokens", "text"):
        assert [record.get(name) for record in found] == [record.get(name) for record in expected]


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_demo(machine: Machine, tmp_path: Path, precision: Any) -> None:
    folder, texts = tmp_path / "demo", tmp_path / "texts.txt"
    export_model(str(DEMO), folder, variant="el", precision=precision)
    texts.write_text("".join((DEMO / "examples.txt").read_text().splitlines(keepends=True)[:3]))
    same_results(machine, folder, texts)


def test_whisper(machine: Machine, bundles: BundleCache, tmp_path: Path) -> None:
    soundfile = pytest.importorskip("soundfile")
    recording = tmp_path / "a.wav"
    soundfile.write(recording, np.round(chirp(0.8) * 32768).astype(np.int16), RATE_HZ)
    folder = bundles("dedup", "whisper", generation=WHISPER_GENERATION, tokenizer=True)
    same_results(machine, folder, recording, "--language", "en", "--num-beams", "3", "--max-new-tokens", "9")
