"""`make check`: which files changed, which tests matter for them, and the time after which no test begins."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tools import check

AUTHOR = ["-c", "user.name=test", "-c", "user.email=test@example.org"]


def git(folder: Path, *arguments: str) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", *AUTHOR, *arguments]
    subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)


def commit(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).write_text(str(time.time_ns()))
    git(folder, "add", *names)
    git(folder, "commit", "-m", "change")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A repository whose main has two commits."""
    git(tmp_path, "init", "--initial-branch", "main")
    commit(tmp_path, "first.py")
    commit(tmp_path, "second.py")
    return tmp_path


def test_main_is_compared_with_the_commit_before_the_last_one(clone: Path) -> None:
    assert check.changed_files(clone)[1] == ["second.py"]
    (clone / "first.py").write_text("edited")
    (clone / "new.py").touch()
    assert check.changed_files(clone)[1] == ["first.py", "new.py", "second.py"]


def test_a_branch_is_compared_with_where_it_left_main(clone: Path) -> None:
    git(clone, "switch", "--create", "work")
    assert check.changed_files(clone)[1] == []
    commit(clone, "third.py", "fourth.py")
    git(clone, "switch", "main")
    commit(clone, "of_main.py")
    git(clone, "switch", "work")
    git(clone, "rm", "first.py")
    assert check.changed_files(clone)[1] == ["first.py", "fourth.py", "third.py"]


def test_main_is_compared_with_what_was_pushed(clone: Path) -> None:
    git(clone, "update-ref", "refs/remotes/origin/main", "HEAD")
    commit(clone, "third.py")
    commit(clone, "fourth.py")
    assert check.changed_files(clone)[1] == ["fourth.py", "third.py"]


def test_the_longest_beginning_of_a_path_chooses() -> None:
    chosen = check.tests_for(["deploy/search/step.py"])
    assert chosen[-1] == check.TESTS["deploy/search/"][-1] and "tests/deploy/search/test_search.py" in chosen
    assert check.tests_for(["deploy/arrays.py"]) == list(check.TESTS["deploy/"])
    assert check.tests_for(["LICENSE"]) == []


def test_changed_tests_and_namesakes_come_first_and_none_is_named_twice() -> None:
    tests = ["tests/deploy/test_errors.py", "tests/deploy/search/test_callbacks.py", "tests/test_gone.py"]
    chosen = check.tests_for(["deploy/search/warpers.py", *tests])
    assert chosen[:3] == [*tests[:2], "tests/deploy/search/test_warpers.py"]
    assert len(set(chosen)) == len(chosen) > 8
    assert check.tests_for(["plugins/ops/encoder_attention/__init__.py"])[0].endswith("/test_encoder_attention.py")


@pytest.mark.parametrize(
    ("changed", "importer"),
    [
        ("tests/support/searches/driver.py", "tests/deploy/search/test_search.py"),
        ("tests/support/serving/served.py", "tests/deploy/serving/test_server.py"),
    ],
)
def test_tests_that_import_a_changed_file_of_support_matter(changed: str, importer: str) -> None:
    assert importer in check.tests_for([changed])


def test_the_table_names_what_exists() -> None:
    paths = [*check.TESTS, *(name for names in check.TESTS.values() for name in names)]
    assert [path for path in paths if not any(check.ROOT.glob(f"{path}*"))] == []


def test_each_package_of_deploy_has_tests() -> None:
    packages = {f"deploy/{path.parent.name}/" for path in (check.ROOT / "deploy").glob("*/*.py")}
    assert packages - set(check.TESTS) == set()


def test_no_test_begins_after_the_time(monkeypatch: pytest.MonkeyPatch, request: Any) -> None:
    monkeypatch.setattr(check, "start", time.monotonic)
    check.pytest_runtest_setup(request.node)
    monkeypatch.setattr(check, "start", lambda: time.monotonic() - check.MOST_S - 1)
    with pytest.raises(pytest.skip.Exception, match="left to `make test`"):
        check.pytest_runtest_setup(request.node)


def test_nothing_changed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(check, "changed_files", lambda: ("0" * 40, []))
    assert check.main() == 0
    assert capsys.readouterr().out == "check: nothing changed, so no test runs\n"
