"""The tutorial and the Python how-to are true: their commands run in order, and print what the pages say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tightbeam.deploy.serving.server.triton_server import ServerError, find_server

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
PAGES = (ROOT / "docs" / "tutorial.md", ROOT / "docs" / "how-to" / "python.md")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
VARIES = re.compile(r"(?<=^time).*|[\d.,]+ ?(?:s|seconds|MB|GB|lines/s|tokens/s)\b|\d+\.\d{6,}|\de-\d+")
"""Times, memory and rates, which differ from run to run, and the last digits of scores."""
MINUTES = 15


def blocks(page: Path) -> list[tuple[str, str]]:
    """Language and body of each fenced block: sh and python run, text is what the block before it printed."""
    found = BLOCK.findall(page.read_text("utf-8"))
    assert {language for language, _ in found} <= {"sh", "python", "text"}
    return found


def script(parts: list[tuple[str, str]]) -> str:
    """One bash script of all blocks. Python blocks of a page share one interpreter's state, by running again."""
    lines, python = ["set -e"], ""
    for index, (language, body) in enumerate(parts):
        lines.append(f"printf '\\n@@{index}@@\\n'")
        if language == "sh":
            lines += [body, "set -e"]
        elif language == "python":
            quiet = f"import contextlib, io\nwith contextlib.redirect_stdout(io.StringIO()):\n    exec({python!r})\n"
            lines.append(f"python - <<'END_OF_PYTHON'\n{quiet}{body}END_OF_PYTHON")
            python += body
    return "\n".join(lines) + "\n"


def printed(output: str) -> dict[int, str]:
    """Printed text by the number of its block."""
    parts = re.split(r"^@@(\d+)@@\n", output, flags=re.MULTILINE)
    return {int(index): body for index, body in zip(parts[1::2], parts[2::2], strict=True)}


def without_times(text: str) -> list[str]:
    return [re.sub(r"\s+", " ", VARIES.sub("#", line)).strip() for line in text.splitlines() if line.strip()]


def clone(folder: Path) -> Path:
    """A clone whose virtual environment is that of this process, set up as far as make can see."""
    subprocess.run(["git", "clone", "--quiet", ROOT, folder], check=True)
    environment = folder / ".venv"
    environment.mkdir()
    (environment / "bin").symlink_to(BIN)
    (environment / "triton").mkdir()
    for stamp in (".installed", ".built", "triton/.installed"):
        (environment / stamp).touch()
    return folder


@pytest.mark.slow
def test_pages_print_what_they_say(tmp_path: Path) -> None:
    try:
        find_server()
    except ServerError as error:
        pytest.skip(f"the tutorial serves a model: {error}")
    folder = clone(tmp_path / "tightbeam")
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": "", "PATH": path}
    for page in PAGES:
        parts = blocks(page)
        commands = tmp_path / f"{page.stem}.sh"
        commands.write_text(script(parts), "utf-8")
        done = subprocess.run(
            ["bash", commands], cwd=folder, env=environment, text=True, timeout=MINUTES * 60, check=False,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert done.returncode == 0, f"{page.name}:\n{done.stdout[-3000:]}"
        results = printed(done.stdout)
        for index, (language, body) in enumerate(parts):
            if language == "text":
                found = without_times(results[index - 1])
                missing = [line for line in without_times(body) if line not in found]
                assert not missing, f"{page.name}: not printed: {missing}\nprinted: {found}"
