"""Check that a release can be made, and build its files.

    python -m tools.release dist              # check, run `make test`, and build
    python -m tools.release dist --check      # check alone

docs/reference/versions.md has what a version promises; CONTRIBUTING.md has the steps of a release.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from packaging.version import Version as Number

from tightbeam.deploy.bundle.manifest import FORMAT_VERSION
from tightbeam.deploy.console import command_line, say

ROOT = Path(__file__).resolve().parents[1]
VERSION_FILE = "tools/namespace/tightbeam/__init__.py"
BUNDLES = "tests/data/bundle-format-"
CHECKSUMS = "SHA256SUMS"

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def problems(root: Path = ROOT, formats: int = FORMAT_VERSION) -> Iterator[str]:
    """Yield what hinders a release of the commit that is checked out, one line each.

    Parameters
    ----------
    root : Path
        The folder of a git clone.
    formats : int
        The newest version of the bundle format.

    Yields
    ------
    str
    """
    version = version_of(root)
    if not re.fullmatch(r"\d+\.\d+\.\d+(rc\d+)?", version):
        yield f"{VERSION_FILE} has version {version}, expected three numbers such as 1.2.3 or 1.2.3rc1"
        return
    if changed := _git(root, "status", "--porcelain"):
        yield f"the working tree differs from the commit: {changed[0].strip()}; commit it or remove it"
    heading = next((line for line in (root / "CHANGELOG.md").read_text("utf-8").splitlines() if line[:3] == "## "), "")
    if not re.fullmatch(rf"## {re.escape(version)} \(\d{{4}}-\d\d-\d\d\)", heading):
        yield f"CHANGELOG.md begins with {heading!r}, expected '## {version} (YYYY-MM-DD)'; write the date"
    for page in ("README.md", "docs"):
        for line in _git(root, "grep", "-noE", "tightbeam-[0-9][0-9a-z.]*-py3", "--", page):
            path, row, name = line.split(":")
            if name != f"tightbeam-{version}-py3":
                yield f"{path}, line {row}, names a wheel {name}, expected tightbeam-{version}-py3"
    tags = sorted((tag[1:] for tag in _git(root, "tag", "--list", "v[0-9]*")), key=Number)
    here = f"v{version}" in _git(root, "tag", "--points-at", "HEAD")
    newest = tags[-1] if tags else None
    if newest is not None and not here and Number(newest) >= Number(version):
        yield f"{VERSION_FILE} has version {version}, and v{newest} is released; give it a higher one"
    for number in range(1, formats + 1):
        if not _git(root, "ls-files", f"{BUNDLES}{number}/bundle.json"):
            yield f"{BUNDLES}{number} is missing, a bundle of that format; every released format stays readable"
    for tag in tags:
        lost = _git(root, "diff", "--name-only", "--diff-filter=MD", f"v{tag}", "HEAD", "--", f"{BUNDLES}*")
        if lost:
            yield f"{lost[0]} is not what v{tag} had; a bundle of a released format never changes"


def version_of(root: Path = ROOT) -> str:
    """Return the version, which stands in one file alone."""
    match = re.search(r'^__version__ = "(.*)"$', (root / VERSION_FILE).read_text("utf-8"), re.MULTILINE)
    assert match is not None
    return match[1]


def write_checksums(folder: Path) -> Path:
    """Write the SHA-256 of each file of a folder as ``sha256sum --check`` reads it, and return the path."""
    path = folder / CHECKSUMS
    files = sorted(file for file in folder.iterdir() if file != path)
    lines = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files]
    path.write_text("".join(lines))
    return path


@app.command()
def release(
    folder: Annotated[Path, typer.Argument(help="Folder for the files of the release; empty, or it does not exist.")],
    check: Annotated[bool, typer.Option("--check", help="Build nothing and run no test.")] = False,
    tested: Annotated[bool, typer.Option("--tested", help="Do not run make test: it passed for this commit.")] = False,
) -> None:
    """Check that a release can be made, and write its wheels for Linux, its sdist and their checksums to FOLDER."""
    found = list(problems())
    for problem in found:
        say(f"error: {problem}")
    if found:
        raise typer.Exit(1)
    print(f"{version_of()} can be released, if its tests pass")
    if check:
        return
    if folder.exists() and any(folder.iterdir()):
        say(f"error: {folder} has files, expected an empty folder; name another one")
        raise typer.Exit(1)
    if not tested:
        _run("make", "test")
    folder = folder.resolve()
    os.environ["SOURCE_DATE_EPOCH"] = _git(ROOT, "log", "-1", "--format=%ct")[0]  # the time that the files have
    _run(sys.executable, "-m", "build", "--sdist", "--outdir", folder)
    _run(sys.executable, "-m", "tools.wheel", folder)
    _run(sys.executable, "-m", "tools.wheel", folder, "--arm64")
    print(write_checksums(folder))


def _git(root: Path, *arguments: str) -> list[str]:
    """Lines that git prints; an empty list if it fails, as git grep does if nothing matches."""
    return subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True).stdout.splitlines()


def _run(*command: str | Path) -> None:
    if code := subprocess.run(command, cwd=ROOT).returncode:
        say(f"error: {' '.join(map(str, command[-4:]))} failed with code {code}; its output is above")
        raise typer.Exit(1)


if __name__ == "__main__":
    command_line(app, "tools.release")
