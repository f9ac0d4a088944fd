"""Transcription of the recordings that rows of a table name or hold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tightbeam.deploy.errors import InputError
from tightbeam.deploy.inputs.file_lines import FileLine, file_lines, named_files
from tightbeam.deploy.inputs.json_line import read_settings
from tightbeam.deploy.inputs.recordings import run_recordings
from tightbeam.deploy.inputs.result import InputResult
from tightbeam.deploy.inputs.run import finished
from tightbeam.deploy.inputs.windows import run_windows
from tightbeam.deploy.model.model import Model
from tightbeam.deploy.ray.rows import RowSettings

__all__ = ["recordings_of_lines", "recordings_of_values", "run_sound_rows"]


def recordings_of_lines(lines: Sequence[bytes], name: str | None) -> Iterable[Any]:
    """Return the recordings that lines name.

    Parameters
    ----------
    lines
        Names of files, or JSON objects.
    name
        The field of the name, beside which other fields are settings of the row alone; None if lines are not objects.
    """
    names = named_files(lines, "an audio file")
    return names if name is None else file_lines(names, name)


def recordings_of_values(values: Sequence[Any], own: Sequence[Any] | None, field: str | None) -> list[Any]:
    """Return the recordings of a table's column.

    Parameters
    ----------
    values
        Names of files, or contents of files as bytes. Another value becomes an error of its row.
    own
        Settings of each row alone, as `read_settings` takes them; None without such a column.
    field
        The name of that column, for errors.
    """
    found: list[Any] = []
    for row, value in enumerate(values):
        try:
            if not isinstance(value, str | bytes):
                kind = "null" if value is None else type(value).__name__
                raise InputError(f"the recording is {kind}, expected the name or the content of an audio file")
            settings = {} if own is None or field is None else read_settings(own[row], field)
            found.append(FileLine(value, settings) if settings else value)  # type: ignore[arg-type]
        except InputError as error:
            found.append(error)
    return found


def run_sound_rows(
    model: Model, recordings: Iterable[Any], settings: RowSettings, num_beams: int, *, first: int = 1
) -> list[InputResult]:
    """Transcribe recordings, several at a time.

    Parameters
    ----------
    model
        A speech model.
    recordings
        Names of files, contents of files, errors in place of these, or names with their own settings.
    settings
        Settings of all rows.
    num_beams
        The beams of these settings.
    first
        Number of the first row in its file.

    Returns
    -------
    list of InputResult
        One for each row, in their order.

    Raises
    ------
    BundleError
        The GPU failed, so no other row can run.
    """
    together = settings.batch_size if settings.max_rows is None else max(1, settings.max_rows // num_beams)
    how: dict[str, Any] = {"batch_size": together, "settings": settings.generation}
    if model.has_windows:
        done = finished(run_windows(model, recordings, **how))
    else:
        done = finished(run_recordings(model, recordings, **how))
    results = [each.result for each in done]
    for number, result in enumerate(results, start=first):
        result.number = number
    return results
