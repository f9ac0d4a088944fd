"""Run the tests that matter for what changed (`make check`, which lints first).

    python -m tools.check

`TESTS` says which tests matter for a file. A test that has not begun `MOST_S` seconds after the first one is left to
`make test`.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

ROOT = Path(__file__).resolve().parents[1]
MOST_S = 70
HANGS_S = 60
"""A test that takes longer ends its process, and pytest names it."""
NO_TESTS = 5
"""pytest's exit status if every chosen test is slow or needs a GPU."""

END, DEPLOY, PASSES = "tests/end_to_end", "tests/deploy", "tests/graph_passes"
DOCS = ("tests/test_docs.py", "tests/test_reference_pages.py")
TESTS: dict[str, tuple[str, ...]] = {
    "deploy/": (f"{DEPLOY}/test_errors.py", f"{DEPLOY}/test_runner.py"),
    "deploy/audio/": (f"{END}/speech/test_recordings.py",),
    "deploy/bundle/": (f"{DEPLOY}/bundle",),
    "deploy/chat/": (f"{DEPLOY}/chat",),
    "deploy/commands/": (f"{DEPLOY}/commands", "tests/test_imports.py"),
    "deploy/documents/": (f"{DEPLOY}/documents",),
    "deploy/generation/": (f"{DEPLOY}/generation",),
    "deploy/image/": (f"{DEPLOY}/image",),
    "deploy/inputs/": (f"{DEPLOY}/inputs", f"{DEPLOY}/run_model"),
    "deploy/model/": (f"{DEPLOY}/test_runner.py", f"{DEPLOY}/inputs/test_text_input.py"),
    "deploy/ray/": (f"{DEPLOY}/ray",),
    "deploy/run_model/": (f"{DEPLOY}/run_model",),
    "deploy/runtimes/": (f"{DEPLOY}/runtimes", f"{DEPLOY}/scheduling/test_slots.py"),
    "deploy/scheduling/": (f"{DEPLOY}/scheduling",),
    "deploy/search/": (f"{DEPLOY}/search", f"{DEPLOY}/scheduling/test_lanes.py"),
    "deploy/serving/": (f"{DEPLOY}/serving",),
    "deploy/text/": (f"{DEPLOY}/text", f"{DEPLOY}/inputs/test_text_input.py"),
    "deploy/tries/": (f"{DEPLOY}/tries", f"{DEPLOY}/commands/test_trie_command.py"),
    "export/": ("tests/export",),
    "graph_passes/": (f"{PASSES}/test_passes.py", f"{PASSES}/test_kinds.py"),
    "graph_passes/caches/": (f"{PASSES}/test_passes.py", f"{PASSES}/test_kinds.py", f"{PASSES}/test_causal_passes.py"),
    "graph_passes/precision/": (f"{PASSES}/test_lower_precision.py", f"{PASSES}/test_linear.py"),
    "graph_passes/tensorrt/": (f"{PASSES}/test_tensorrt_form.py",),
    "plugins/": ("tests/plugins/test_operators.py", "tests/plugins/test_operator_errors.py"),
    "plugins/kernels/cuda/": ("tests/plugins/test_kernels_on_host.py",),
    "plugins/tensorrt/": ("tests/plugins/test_tensorrt_plugins.py",),
    "tests/conftest.py": (f"{DEPLOY}/test_runner.py",),
    "tests/data/": (f"{END}/test_old_bundles.py",),
    "tools/": ("tests/tools/test_check.py", "tests/tools/test_papers.py", "tests/tools/test_wheel.py"),
    "tools/bench/": ("tests/tools/test_memory.py", "tests/tools/test_pictures.py", "tests/tools/test_peers.py"),
    "tools/cuda_check/": ("tests/tools/test_cuda_check.py",),
    "tools/docs/": DOCS,
    "tools/gpu": ("tests/tools/test_gpu_check.py", "tests/tools/test_gpu_sections.py"),
    "tools/real_check/": ("tests/tools/test_real_check.py",),
    "tools/soak/": ("tests/tools/test_soak.py",),
    "tools/zoo/": ("tests/tools/test_zoo.py", "tests/tools/test_season.py"),
    "docs/": DOCS,
    "README.md": DOCS,
    "CONTRIBUTING.md": DOCS,
    "Makefile": ("tests/test_docs.py", "tests/tools/test_check.py"),
    "pyproject.toml": ("tests/test_imports.py",),
}
"""The tests that matter for a file: the entry with the longest matching beginning of its path counts."""


def git(*arguments: str, root: Path = ROOT) -> list[str]:
    """Lines that git prints, or an empty list if it fails."""
    return subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True).stdout.splitlines()


def changed_files(root: Path = ROOT) -> tuple[str, list[str]]:
    """List the files that changed.

    Parameters
    ----------
    root : Path
        The folder of a git clone.

    Returns
    -------
    since : str
        The commit that the working tree is compared with: where the branch left ``origin/main``, or else ``main``. On a
        main that has nothing to push it is the commit before the last one.
    files : list of str
        The paths that differ from it, with files that git does not track yet.
    """
    (head,) = git("rev-parse", "HEAD", root=root)
    branch = git("branch", "--show-current", root=root)
    base = git("merge-base", "HEAD", "origin/main", root=root) or git("merge-base", "HEAD", "main", root=root)
    since = next(iter(base), head)
    if since == head and branch == ["main"]:
        since = next(iter(git("rev-parse", "--verify", "--quiet", "HEAD~1", root=root)), head)
    tracked = git("diff", "--name-only", "--no-renames", since, root=root)
    return since, sorted({*tracked, *git("ls-files", "--others", "--exclude-standard", root=root)})


def tests_for(files: list[str], root: Path = ROOT) -> list[str]:
    """Choose the files of tests that matter for files that changed, the most telling first.

    Changed tests come first, then tests that have the name of a changed file, then tests that import a changed file of
    tests/support, and then what `TESTS` says.
    """
    sources = [path for path in files if not is_test(path)]
    chosen = [path for path in files if is_test(path) and (root / path).exists()]
    chosen += [test for path in sources if path.endswith(".py") for test in namesakes(path, root)]
    chosen += [test for path in sources if path.startswith("tests/support/") for test in importers(path, root)]
    for path in sources:
        matching = [prefix for prefix in TESTS if path.startswith(prefix)]
        for name in TESTS[max(matching, key=len)] if matching else ():
            chosen += paths(root, f"{name}/**/test_*.py") if (root / name).is_dir() else [name]
    return list(dict.fromkeys(chosen))


def paths(root: Path, pattern: str) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in root.glob(pattern))


def namesakes(path: str, root: Path) -> list[str]:
    """The tests that have the name of a source file, or of its folder if it is an ``__init__.py``."""
    file = Path(path)
    return paths(root, f"tests/**/test_{file.parent.name if file.stem == '__init__' else file.stem}.py")


def is_test(path: str) -> bool:
    return path.startswith("tests/") and Path(path).name.startswith("test_") and path.endswith(".py")


def importers(path: str, root: Path) -> list[str]:
    """The tests that import a file of tests/support."""
    module = path.removeprefix("tests/").removesuffix(".py").replace("/", ".")
    package, _, name = module.rpartition(".")
    pattern = rf"^ *(from {module} import|from {package} import .*\b{name}\b)"
    return git("grep", "-lE", pattern, "--", "tests/**/test_*.py", root=root)


@functools.cache
def start() -> float:
    """The time of the first test of this process, in seconds."""
    return time.monotonic()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test that would begin too late (this file is a plugin of the pytest that `main` starts)."""
    import pytest

    if time.monotonic() - start() > MOST_S:
        pytest.skip(f"not begun after {MOST_S} s: left to `make test`")


def main() -> int:
    """Run the tests that matter for what changed, and return pytest's exit status."""
    since, files = changed_files()
    if not files:
        print("check: nothing changed, so no test runs")
        return 0
    chosen = tests_for(files)
    print(f"check: {len(files)} file(s) changed since {since[:9]}: {' '.join(files[:8])}{' ...' if files[8:] else ''}")
    if not chosen:
        print("check: no test is chosen for these files (TESTS of tools/check.py); `make test` runs the others")
        return 0
    print(f"check: runs {' '.join(chosen)}")
    print(f"check: left to `make test`: all other tests, and those that have not begun after {MOST_S} s", flush=True)
    options = ["-x", "-q", "-rs", "-n", "2", "--dist", "loadfile", "--no-loadscope-reorder"]
    options += ["-o", f"faulthandler_timeout={HANGS_S}", "-o", "faulthandler_exit_on_timeout=true"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-p", "tools.check", *options, "-m", "not slow and not gpu", *chosen]
    status = subprocess.run(command, cwd=ROOT, env=environment).returncode
    return 0 if status == NO_TESTS else status


if __name__ == "__main__":
    sys.exit(main())
