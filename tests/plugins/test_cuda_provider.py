"""Our graphs and operators in ONNX Runtime's CUDA provider, and the capture of a step, without a GPU.

Stand-ins for CUDA's libraries take the kernels and run nothing. `make cuda-provider` takes minutes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.bundles.cache import BundleCache
from support.checkpoints.families import WHISPER_GENERATION
from support.runtimes.cuda_stand_in import make_stand_in
from tightbeam.deploy import Bundle
from tightbeam.graph_passes import PRESETS

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "cuda-provider"
"""Output of `make cuda-provider`: onnxruntime-gpu in `python`, our library in `library`."""
LIBRARY = BUILD / "library" / "libtightbeam_cuda.so"
PROVIDER = BUILD / "python" / "onnxruntime" / "capi" / "libonnxruntime_providers_cuda.so"
CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"
SIZES = {"Cast", "Concat", "Div", "Gather", "Mul", "Range", "Shape", "Slice", "Squeeze", "Sub", "Unsqueeze"}
"""Operators that may run on the CPU: arithmetic on sizes."""
ON_HOST = {"candidates", "no_repeat_ngram_size", "normalize", "repetition_penalty"}
OURS = {"BeamAttention", "BeamLatentAttention", "LatentAttention", "SourceAttention"}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (LIBRARY.exists() and PROVIDER.exists()), reason="not built: make cuda-provider"),
]
BUNDLES: list[tuple[str, str, dict[str, Any]]] = [
    *(("bart", variant, {}) for variant in PRESETS),
    *((family, variant, {}) for family in ("t5", "marian", "prophetnet", "gpt2") for variant in ("dedup", "el")),
    ("llama", "dedup", {}),
    *(("whisper", variant, {"generation": WHISPER_GENERATION}) for variant in ("dedup", "el", "slim")),
]


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cuda")
    include = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "include"
    make_stand_in(folder, [PROVIDER, LIBRARY], include)
    return folder


def run(bundle: Path, stand_in: Path, log: Path) -> dict[str, Any]:
    path = [
        BUILD / "python",
        ROOT / "tests",
        ROOT / "tools" / "namespace",
        *filter(None, [os.environ.get("PYTHONPATH")]),
    ]
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": os.pathsep.join([str(stand_in), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]),
        "CUDA_STAND_IN_LOG": str(log),
        "PYTHONPATH": os.pathsep.join(map(str, path)),
        "TIGHTBEAM_LIBRARY": str(LIBRARY),
    }
    command = [sys.executable, str(ROOT / "tests" / "support" / "runtimes" / "provider_run.py"), str(bundle)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize(("family", "variant", "arguments"), BUNDLES, ids=[f"{f}-{v}" for f, v, _ in BUNDLES])
def test_a_bundle_runs_on_the_provider(
    bundles: BundleCache,
    stand_in: Path,
    tmp_path: Path,
    family: str,
    variant: str,
    arguments: dict[str, Any],
    precision: str,
) -> None:
    path = bundles(variant, family, precision=precision, **arguments)
    found = run(path, stand_in, tmp_path / "log")
    for graph in ("encoder", "decoder"):
        host = {op for provider, op, _ in found[graph]["nodes"] if provider == CPU}
        assert host <= SIZES, f"the {graph} runs on the CPU: {host - SIZES}"
    on_gpu = {op for provider, op, _ in found["decoder"]["nodes"] if provider == CUDA}
    assert "BeamTopK" in on_gpu
    assert bool(on_gpu & OURS) == (variant != "baseline")
    assert set(found["decoder"]["on_host"]) == ON_HOST
    assert found["encoder"]["on_host"] == []
    if "calls" not in found:
        return
    assert found["captured"]
    scores = found["candidates"][0] // 4  # of each sample as many as twice its beams
    assert found["logits"] == [scores // 2, Bundle.load(path).manifest.sizes.vocabulary]
    step = found["calls"]["captured"]
    assert [call.split()[0] for call in step] == ["cudaMemcpyAsync"] * len(step), "waits, or takes memory"
    back = [int(call.split()[1]) for call in step if call.endswith("DH")]
    assert back == found["candidates"]
    assert 1 <= sum(call.endswith("HD") for call in step) <= 2  # the small inputs, and banned tokens
    assert not any(call.endswith("HH") for call in step)
