"""The display of an export's steps, on a terminal and elsewhere, and what is counted within them."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from support.bundles import traces
from support.checkpoints.families import ONE_LAYER, CheckpointCache
from tightbeam.export import export_model, pipeline
from tightbeam.export.counts import count, counted, watched
from tightbeam.export.progress import STEPS, ShownSteps, show_steps


def test_without_a_terminal_a_step_is_a_line_with_its_time(capsys: pytest.CaptureFixture[str]) -> None:
    with show_steps() as steps:
        for step in STEPS:
            steps.begin(step)
            assert capsys.readouterr().err.endswith(step)  # a log shows what runs now
            steps.count("layers", 1, 2)
            steps.end()
            assert re.fullmatch(r"  0\.\d s\n", capsys.readouterr().err)
    assert list(steps.seconds) == list(STEPS)


def test_a_step_that_fails_has_no_time_and_ends_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyError), show_steps() as steps:
        steps.begin(STEPS[0])
        steps.begin(STEPS[1])
        raise KeyError
    assert re.fullmatch(rf"{STEPS[0]}  0\.\d s\n{STEPS[1]}\n", capsys.readouterr().err)
    assert list(steps.seconds) == [STEPS[0]]


def test_a_terminal_shows_what_is_counted() -> None:
    out = io.StringIO()
    steps = ShownSteps(Console(file=out, force_terminal=True, width=120, color_system=None))
    steps.begin("tracing")
    for done in range(3):
        steps.count("layers captured", done, 30)
    assert steps._bars is not None
    steps._bars.refresh()
    steps.count("converting", 0, 0)
    steps._bars.refresh()
    steps.close(failed=False)
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", out.getvalue())
    assert "2 of 30 layers captured" in shown and "converting" in shown
    assert re.search(r"tracing +━+ 0:00:00 *\n$", shown)


def test_counts_reach_the_one_who_watches() -> None:
    seen: list[tuple[str, int, int]] = []
    with watched(lambda *counts: seen.append(counts)):
        assert list(counted("ab", "letters")) == ["a", "b"]
        count("resting")
    count("for nobody")
    assert seen == [("letters", 0, 2), ("letters", 1, 2), ("letters", 2, 2), ("resting", 0, 0)]


@pytest.mark.slow
def test_an_export_counts_within_its_steps(
    checkpoints: CheckpointCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "trace", traces.trace)  # one that other tests have not made
    seen: dict[str, list[tuple[str, int, int]]] = {}
    step = ""

    def begin(name: str) -> None:
        nonlocal step
        step = name
        seen[step] = []

    export_model(
        checkpoints("bart", **ONE_LAYER),
        tmp_path / "out",
        variant="kcache",
        precision="int8",
        on_step=begin,
        on_count=lambda *counts: seen[step].append(counts),
    )
    last = {name: dict((what, (done, total)) for what, done, total in counts) for name, counts in seen.items()}
    inputs = 4
    assert last["generating with torch"] == {f"searches of {inputs} inputs": (3, 3)}
    assert last["tracing"]["layers captured"] == (1, 1)
    assert any(what.startswith("converting ") for what in last["tracing"])
    assert last["measuring attention"]["layers measured, source cache"] == (1, 1)
    done, total = last["measuring products"]["matrices measured in int8"]
    assert done == total > 10
    assert last["comparing with float32"]["steps compared"] == (2 * 16 + 2 * 5 * 5,) * 2
    assert last["comparing with torch"]["sequences compared"] == (3 * inputs,) * 2
