"""The progress of a run: inputs, or seconds of sound."""

from __future__ import annotations

from tightbeam.deploy.run_model.progress import RunProgress, progress_bar


def test_inputs_are_counted() -> None:
    bar = progress_bar(hidden=True)
    progress = RunProgress(bar, 1200, done=5)
    (task,) = bar.tasks
    assert (task.completed, task.total, task.fields["counts"]) == (5, 1200, "5/1,200")
    progress.advance(2, 0, "7 lines/s")
    assert (task.completed, task.fields["counts"], task.fields["rates"]) == (7, "7/1,200", "7 lines/s")
    RunProgress(bar, None)
    assert bar.tasks[1].fields["counts"] == "0/?"


def test_seconds_of_sound_are_counted_within_a_recording() -> None:
    bar = progress_bar(hidden=True)
    progress = RunProgress(bar, 1, sound=True)
    (task,) = bar.tasks
    assert (task.total, task.fields["counts"]) == (None, "0/? s of sound")
    progress.on_read(360.0)
    progress.advance(0, 27.5, "")
    assert (task.completed, task.total, task.fields["counts"]) == (27.5, 360, "28/360 s of sound")


def test_recordings_that_are_not_read_yet_have_the_mean_length_of_the_others() -> None:
    bar = progress_bar(hidden=True)
    progress = RunProgress(bar, 6, done=2, sound=True)
    (task,) = bar.tasks
    progress.on_read(10.0)
    progress.on_read(20.0)
    progress.advance(1, 10.0, "")
    assert (task.completed, task.total, task.fields["counts"]) == (10, 60, "10/60 s of sound, 3/6 files")
    for _ in range(2):
        progress.on_read(0)
    progress.advance(3, 30.0, "")
    assert (task.completed, task.total, task.fields["counts"]) == (30, 30, "30/30 s of sound, 6/6 files")
