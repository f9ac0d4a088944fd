"""The CPU library in several versions of ONNX Runtime: the oldest that it supports, and later ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from support.operators.runs import MODULES, check, model_of, outputs_of
from tightbeam.plugins.library import cpu_library

VERSIONS = {
    "1.18.0": ["numpy<2"],  # the oldest with all of the API that the adapter uses
    "1.24.1": ["numpy"],  # shapes of nodes with optional inputs are not inferred before 1.25
    "1.27.0": ["numpy"],
}
"""Version -> other packages that it needs. Every other test runs in the installed version."""
TOO_OLD = "1.17.3"
OPSET = 17

SCRIPT = """
import sys
import numpy as np
import onnxruntime as ort

library, folder = sys.argv[1:]
options = ort.SessionOptions()
options.register_custom_ops_library(library)
with open(folder + "/names") as names:
    for line in names:
        name, *outputs = line.split()
        session = ort.InferenceSession(f"{folder}/{name}.onnx", options, providers=["CPUExecutionProvider"])
        with np.load(f"{folder}/{name}.npz") as inputs:
            results = session.run(outputs, dict(inputs))
        np.savez(f"{folder}/{name}.out.npz", **dict(zip(outputs, results)))
"""


def environment_with(version: str, others: list[str], folder: Path) -> Path:
    """The Python interpreter of a new environment with this version of ONNX Runtime."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = folder / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", f"onnxruntime=={version}", *others], check=True)
    return python


@pytest.fixture(scope="module")
def library() -> Path:
    path = cpu_library()
    if path is None:
        pytest.skip("the library was not built")
    return path


@pytest.mark.slow
@pytest.mark.skipif(sys.version_info >= (3, 13), reason="the oldest versions have no wheels for this Python")
@pytest.mark.parametrize("version", VERSIONS)
def test_operators_under_another_onnxruntime(version: str, library: Path, tmp_path: Path) -> None:
    lines = []
    for name, module in MODULES.items():
        for index, case in enumerate(module.cases()):
            outputs = outputs_of(name, case)
            model = model_of(name, case.inputs, case.attributes, outputs, with_function=False)
            model.opset_import[0].version = OPSET
            (tmp_path / f"{name}-{index}.onnx").write_bytes(model.SerializeToString())
            np.savez(tmp_path / f"{name}-{index}.npz", **case.inputs)
            lines.append(" ".join([f"{name}-{index}", *outputs]))
    (tmp_path / "names").write_text("\n".join(lines))

    python = environment_with(version, VERSIONS[version], tmp_path / "venv")
    subprocess.run([python, "-c", SCRIPT, library, tmp_path], check=True)

    for name, module in MODULES.items():
        for index, case in enumerate(module.cases()):
            with np.load(tmp_path / f"{name}-{index}.out.npz") as found:
                check(name, case, dict(found))


@pytest.mark.slow
@pytest.mark.skipif(sys.version_info >= (3, 13), reason="the oldest versions have no wheels for this Python")
def test_a_version_too_old_is_refused_in_one_line(library: Path, tmp_path: Path) -> None:
    python = environment_with(TOO_OLD, ["numpy<2"], tmp_path)
    script = f"import onnxruntime as ort; ort.SessionOptions().register_custom_ops_library({str(library)!r})"
    ran = subprocess.run([python, "-c", script], capture_output=True, text=True)
    assert ran.returncode != 0
    assert f"tightbeam: needs ONNX Runtime 1.18 or newer, this is {TOO_OLD}" in ran.stderr
