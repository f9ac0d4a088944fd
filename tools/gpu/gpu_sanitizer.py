"""Section "sanitizer" of gpu_check.py: compute-sanitizer over our kernels, which it slows down a hundredfold."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from gpu_results import Results, skip

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
SECONDS = 70
"""For each tool. The tests are those of every case of every operator in float16, as many as there is time for."""
CHOSEN = "test_cases and float16"
ERRORS = re.compile(r"ERROR SUMMARY: (\d+) error")
COLUMNS = ("tool", "errors", "seconds")


def main(
    output: Annotated[Path, typer.Option(help="Where the results go.")],
    rehearse: Annotated[bool, typer.Option("--rehearse", help="Without a GPU, which it needs.")] = False,
) -> None:
    results = Results(output)
    found = shutil.which("compute-sanitizer")
    if found is None:
        skip("compute-sanitizer is not on the PATH; it comes with the CUDA toolkit")
    if rehearse:
        skip("compute-sanitizer needs a GPU; on the host shim AddressSanitizer stands for it (CUDA_SHIM_FLAGS)")
    bad = 0
    for tool in TOOLS:
        # Without conftest.py, and so without torch, whose own kernels it would look at too.
        tests = ["-m", "pytest", "--noconftest", "-x", "-q", "-m", "gpu", "-k", CHOSEN, "tests/test_kernels_on_gpu.py"]
        command = [found, "--tool", tool, "--error-exitcode", "86", sys.executable, *tests]
        start = time.monotonic()
        try:
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=SECONDS)
            said = done.stdout + done.stderr
        except subprocess.TimeoutExpired as error:
            said = "".join(part.decode(errors="replace") for part in (error.stdout, error.stderr) if part)
            results.note(f"{tool}: stopped after {SECONDS} s")
        print(said, flush=True)
        errors = sum(int(count) for count in ERRORS.findall(said))
        told = "" if ERRORS.search(said) else " (it told no sum)"
        errors += said.count("========= Invalid") + said.count("========= Race reported") if told else 0
        results.row("compute-sanitizer", COLUMNS, (tool, f"{errors}{told}", f"{time.monotonic() - start:.0f}"))
        bad += errors
    if bad:
        raise SystemExit(f"error: {bad} errors")


if __name__ == "__main__":
    typer.run(main)
