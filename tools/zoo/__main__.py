"""Train every model of the zoo that is not there yet: the two longest recipes at a time, one core each.

python -m tools.zoo
"""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tools.zoo._recipe import ZOO

RECIPES = ("whisper", "llama", "marian")
"""The longest first."""


def main(zoo: Path = ZOO) -> None:
    """Run the recipes whose folders are not there; the exit status says whether one failed."""
    missing = [name for name in RECIPES if not (zoo / name).exists()]
    for name in sorted({*RECIPES} - {*missing}):
        print(f"{zoo / name}: is there; remove it to train it again")
    with ThreadPoolExecutor(max_workers=2) as pool:
        failed = [name for name, status in zip(missing, pool.map(_train, missing), strict=True) if status]
    if failed:
        sys.exit(f"error: not trained: {', '.join(failed)}")


def _train(name: str) -> int:
    return subprocess.run([sys.executable, "-m", f"tools.zoo.{name}"], check=False).returncode


if __name__ == "__main__":
    main()
