"""The checks before a release, and the checksums of its files."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tools import release

AUTHOR = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
FILES = {
    release.VERSION_FILE: '__version__ = "1.2.0"\n',
    "CHANGELOG.md": "# Changelog\n\n## 1.2.0 (2026-11-27)\n\n## 1.1.0 (2026-10-01)\n",
    "docs/install.md": "pip install tightbeam-1.2.0-py3-none-any.whl\n",
    f"{release.BUNDLES}1/bundle.json": "{}",
    f"{release.BUNDLES}2/bundle.json": "{}",
}


def git(root: Path, *arguments: str) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    subprocess.run(["git", *AUTHOR, *arguments], cwd=root, env=environment, check=True, capture_output=True)


def write(root: Path, name: str, text: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


def committed(root: Path, name: str, text: str) -> None:
    write(root, name, text)
    git(root, "commit", "--all", "-m", "change")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone that can be released, with 1.1.0 before it."""
    git(tmp_path, "init")
    for name, text in FILES.items():
        write(tmp_path, name, text)
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "first")
    git(tmp_path, "tag", "v1.1.0")
    return tmp_path


def test_a_release_may_be_made_before_its_tag_and_after(clone: Path) -> None:
    assert list(release.problems(clone, 2)) == []
    git(clone, "tag", "v1.2.0")
    assert list(release.problems(clone, 2)) == []


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda root: committed(root, release.VERSION_FILE, '__version__ = "1.2"\n'), "expected three numbers"),
        (lambda root: write(root, "notes.txt", ""), "notes.txt; commit it or remove it"),
        (
            lambda root: committed(root, "CHANGELOG.md", "## 1.2.0 (not released)\n"),
            "CHANGELOG.md begins with '## 1.2.0 (",
        ),
        (
            lambda root: committed(root, "docs/install.md", "\ntightbeam-1.1.0-py3-none-any.whl\n"),
            "docs/install.md, line 2, names a wheel tightbeam-1.1.0-py3, expected tightbeam-1.2.0-py3",
        ),
        (lambda root: git(root, "tag", "v1.10.0"), "v1.10.0 is released; give it a higher one"),
        (
            lambda root: git(root, "rm", "-r", f"{release.BUNDLES}2") or git(root, "commit", "-m", "change"),
            f"{release.BUNDLES}2 is missing",
        ),
        (
            lambda root: committed(root, f"{release.BUNDLES}1/bundle.json", "[]"),
            f"{release.BUNDLES}1/bundle.json is not what v1.1.0 had",
        ),
    ],
)
def test_what_hinders_a_release_is_said(clone: Path, change: Callable[[Path], object], problem: str) -> None:
    change(clone)
    found = list(release.problems(clone, 2))
    assert problem in found[0], found


def test_a_version_that_is_released_is_not_released_again(clone: Path) -> None:
    git(clone, "tag", "v1.2.0")
    committed(clone, "docs/install.md", "more\n")
    (found,) = release.problems(clone, 2)
    assert "v1.2.0 is released" in found


def test_checksums_are_what_sha256sum_checks(tmp_path: Path) -> None:
    (tmp_path / "a.whl").write_bytes(b"wheel")
    (tmp_path / "b.tar.gz").write_bytes(b"sdist")
    release.write_checksums(release.write_checksums(tmp_path).parent)  # twice: it leaves itself out
    done = subprocess.run(["sha256sum", "--check", release.CHECKSUMS], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "a.whl: OK\nb.tar.gz: OK\n"
    assert done.returncode == 0
