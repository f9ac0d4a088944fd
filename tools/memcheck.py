"""Run the operator tests under valgrind; fail for every error with the native library in a stack.

    python tools/memcheck.py LIBRARY [pytest argument ...]

Reports about Python and ONNX Runtime alone do not count. valgrind has no AVX-512, so the kernels for AVX2 run.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path


def errors_of(report: Path, library: Path) -> list[str]:
    """The errors of the library in valgrind's XML report: kind and innermost frames of each."""
    found = []
    for error in ElementTree.parse(report).getroot().iter("error"):
        frames = list(error.iter("frame"))
        if any(frame.findtext("obj") == str(library) for frame in frames):
            names = [frame.findtext("fn") or "?" for frame in frames[:8]]
            what = error.findtext("what") or error.findtext("xwhat/text")
            found.append(f"{error.findtext('kind')}: {what}\n    " + "\n    ".join(names))
    return found


def main(library: Path, arguments: list[str]) -> int:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        valgrind = ["valgrind", "--quiet", "--error-limit=no", "--leak-check=full", "--xml=yes", f"--xml-file={report}"]
        # Python's own allocator would hide what is read outside of a block.
        environment = os.environ | {"PYTHONMALLOC": "malloc", "TIGHTBEAM_LIBRARY": str(library)}
        ran = subprocess.run([*valgrind, sys.executable, "-m", "pytest", *arguments], env=environment)
        errors = errors_of(report, library)
    print("\n".join(errors) or f"valgrind: no error with {library.name} in its stack")
    return 1 if errors else ran.returncode


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]).resolve(), sys.argv[2:]))
