"""The display of an export's steps where there is no terminal."""

from __future__ import annotations

import re
import time

import pytest

from tightbeam.export import progress
from tightbeam.export.progress import STEPS, show_steps


def test_a_step_has_a_line_and_a_long_one_more(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "SIGN_OF_LIFE_S", 0.01)
    shown = ""
    with show_steps() as show:
        show(STEPS[0])
        show(STEPS[2])
        while f"still {STEPS[2]}" not in shown:
            time.sleep(0.01)
            shown += capsys.readouterr().err
    assert [line for line in shown.splitlines() if "still" not in line] == [STEPS[0], STEPS[2]]
    assert re.search(rf"^still {STEPS[2]}, after 0 s$", shown, re.MULTILINE)


def test_steps_are_shown_once_and_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    with show_steps() as show:
        for step in STEPS:
            show(step)
    assert capsys.readouterr().err.splitlines() == list(STEPS)
