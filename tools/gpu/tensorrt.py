"""Section "tensorrt" of gpu_check.py: load and run an engine for compute capability 8.0 on this GPU, and compare its
tokens with the CPU's. The outcome is recorded either way.

TensorRT-RTX has no target for 9.0 (Hopper); its engines for 8.0 are documented for 8.x alone. Each attempt is a process
of its own, since TensorRT may abort it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tools.gpu._process import Found

BUILT_FOR = "80"
SECONDS = 100
BUILD = """
import sys
from pathlib import Path
from tightbeam.export import export_model
from tightbeam.export.tensorrt.build import build_engine
from tightbeam.export.tensorrt.options import EngineOptions
folder, precision, capability = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
if not folder.exists():
    export_model("demo", folder, variant="dedup")
build_engine(
    folder,
    EngineOptions(capabilities=[capability], precision=precision, name=precision, force=True, check=False),
)
"""
RUN = """
import json, sys
import numpy as np
from tightbeam.deploy import Bundle, Runner
from tightbeam.deploy.runtimes.device.cuda import open_device
from tightbeam.deploy.bundle.engine_files import load_engine
from tightbeam.deploy.runtimes.tensorrt import TensorRTRuntime
from tightbeam.plugins.tensorrt.plugin import register_plugins
from tightbeam.plugins.tensorrt.runtime import LoadedGraph
bundle = Bundle.load(sys.argv[1])
device, found = open_device(), register_plugins()
engine = TensorRTRuntime(bundle, load_engine(bundle, sys.argv[2]), device, lambda path: LoadedGraph(found, path))
print(json.dumps({"loads": True}), flush=True)
ids = np.random.default_rng(0).integers(5, bundle.manifest.sizes.source_vocabulary, (4, 40))
settings = {"num_beams": 4, "max_new_tokens": 20, "no_repeat_ngram_size": 3}
tokens = Runner(bundle, engine, None).generate(ids, **settings).sequences
expected = Runner.load(bundle.path).generate(ids, **settings).sequences
same = tokens.shape == expected.shape and bool((tokens == expected).all())
print(json.dumps({"runs": True, "tokens as the CPU's": same}), flush=True)
"""


def run(folder: str, rehearse: bool, seconds: float) -> Iterator[Found]:
    """Try an engine of each precision; a rehearsal checks that it does not load."""
    there, message = _python("from tightbeam.plugins.tensorrt.distribution import load_tensorrt; load_tensorrt()")
    if not there:
        raise SystemExit(f"skipped: {message}")
    bundle = Path(folder, "tensorrt", "demo-dedup")
    bundle.parent.mkdir(exist_ok=True)
    for precision in ("fp32",) if rehearse else ("fp32", "fp16"):
        done, message = _python(BUILD, str(bundle), precision, BUILT_FOR)
        found = {"built": done}
        if done:
            done, message = _python(RUN, str(bundle), precision)
            for line in [line for line in message.splitlines() if line.startswith("{")]:
                found |= json.loads(line)
        cells = {name: found.get(name, False) for name in ("built", "loads", "runs", "tokens as the CPU's")}
        why = "" if done else message.rpartition("\n")[2]
        yield f"A TensorRT engine for compute capability {BUILT_FOR}", {"precision": precision, **cells, "why": why}


def _python(code: str, *arguments: str) -> tuple[bool, str]:
    """Run a program: True if it ended well, and its output, with the last line of its errors if it did not."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False, timeout=SECONDS
        )
    except subprocess.TimeoutExpired:
        return False, f"nothing for {SECONDS} s"
    print(done.stdout, done.stderr, sep="\n", flush=True)
    if done.returncode == 0:
        return True, done.stdout.strip()
    last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    ended = f"ended by signal {-done.returncode}: " if done.returncode < 0 else ""
    return False, f"{done.stdout.strip()}\n{ended}{last}".strip()
