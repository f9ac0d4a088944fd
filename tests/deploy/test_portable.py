"""Bundles are written and run without the parts of Python that Windows lacks.

This is not Windows: paths, files that are open and processes behave as they do here.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIKE_WINDOWS = """
import ctypes, mmap, os, shutil, signal, sys, tempfile, threading
import asyncio, multiprocessing, pathlib, socket, subprocess, zipfile
import numpy, onnxruntime  # which ask for the system themselves
for module in ("fcntl", "resource", "pwd", "grp", "termios"):
    sys.modules[module] = None
for owner, names in {
    os: "fork sched_getaffinity killpg getuid geteuid O_CLOEXEC O_NONBLOCK pidfd_open pread",
    signal: "SIGKILL SIGPROF SIGHUP setitimer pthread_sigmask",
    mmap: "MADV_DONTNEED PROT_READ",
}.items():
    for name in names.split():
        delattr(owner, name)
real_open, real_library = os.open, ctypes.CDLL
def open_no_folder(path, flags, *rest, **named):
    if os.path.isdir(path):
        raise PermissionError(13, "Permission denied", str(path))
    return real_open(path, flags, *rest, **named)
os.open, shutil._use_fd_functions = open_no_folder, False
class CDLL(real_library):
    def __init__(self, name, *rest, **named):
        if name is None:
            raise TypeError("bad argument type")
        super().__init__(name, *rest, **named)
ctypes.CDLL = CDLL
"""


def run(code: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run code where Python has what it has on Windows."""
    return subprocess.run(
        [sys.executable, "-c", LIKE_WINDOWS + code, *arguments], capture_output=True, text=True, cwd=ROOT
    )


def test_a_bundle_runs() -> None:
    code = "from tightbeam.deploy.commands.run_model import main; main()"
    done = run(code, ROOT / "tests" / "data" / "bundle-format-2", "--prompt", "the harbour bridge")
    assert (done.returncode, done.stdout) == (0, "dge night fouary wasary bridge\n"), done.stderr


def test_a_folder_is_written_and_replaced(tmp_path: Path) -> None:
    code = """
from pathlib import Path
from tightbeam.deploy.bundle.atomic_dir import write_folder
made = Path(sys.argv[1], "made")
old, fresh = (Path(sys.argv[1], f".made.partial-{name}") for name in ("old", "fresh"))
old.mkdir(), fresh.mkdir(), os.utime(old, (0, 0))
for text in ("first", "second"):
    write_folder(made, lambda folder: (folder / "file").write_text(text), force=True)
print((made / "file").read_text(), *sorted(path.name for path in made.parent.iterdir()))
"""
    done = run(code, tmp_path)
    assert done.stdout == "second .made.partial-fresh made\n", done.stderr


def test_what_windows_cannot_do_is_said_in_one_line() -> None:
    code = """
from tightbeam.deploy.chat.template import ChatTemplate
from tightbeam.deploy.serving.dispatch.worker_process import WorkerProcess
for refused in (lambda: WorkerProcess(None), lambda: ChatTemplate("{{ messages }}", {}).check()):
    try:
        refused()
    except Exception as error:
        print(error)
"""
    done = run(code)
    serving, template = done.stdout.splitlines()
    assert serving == "serving needs Linux or macOS, and this is Windows; use WSL, run-model or Runner", done.stderr
    assert "this system (Windows) has no limits for it" in template
