"""Subtitles of recordings: SubRip (.srt) and WebVTT (.vtt)."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from pathlib import Path

from tightbeam.deploy.errors import InputError
from tightbeam.deploy.text.output import TextSegment

__all__ = ["FORMATS", "SubtitleFolder", "subtitles"]

FORMATS = ("srt", "vtt")


def subtitles(segments: Sequence[TextSegment], kind: str) -> str:
    """Write segments as a file of subtitles.

    Parameters
    ----------
    segments : sequence of TextSegment
        In order; those without text are left out.
    kind : str
        One of `FORMATS`.

    Returns
    -------
    str
        The content of the file.
    """
    shown = [(part, " ".join((part.text or "").split())) for part in segments]
    shown = [(part, text) for part, text in shown if text]
    if kind == "vtt":
        cues = (f"{_times(part, '.')}\n{html.escape(text, quote=False)}\n" for part, text in shown)
        return "\n".join(["WEBVTT\n", *cues])
    cues = (f"{number}\n{_times(part, ',')}\n{text}\n" for number, (part, text) in enumerate(shown, start=1))
    return "\n".join(cues)


def _times(part: TextSegment, point: str) -> str:
    return f"{_time(part.start_s, point)} --> {_time(max(part.start_s, part.end_s), point)}"


def _time(seconds: float, point: str) -> str:
    milliseconds = round(seconds * 1000)
    return (
        f"{milliseconds // 3_600_000:02}:{milliseconds // 60_000 % 60:02}:{milliseconds // 1000 % 60:02}{point}"
        f"{milliseconds % 1000:03}"
    )


class SubtitleFolder:
    """A folder that gets a file for each recording, called as the recording is.

    Parameters
    ----------
    folder : str
        Made where it is not there.
    kind : str
        One of `FORMATS`.
    force : bool
        Replace files.

    Raises
    ------
    InputError
        The folder cannot be made.
    """

    def __init__(self, folder: str, kind: str, *, force: bool) -> None:
        self._folder, self._kind, self._force = Path(folder), kind, force
        self._written: set[Path] = set()
        try:
            self._folder.mkdir(exist_ok=True)
        except OSError as error:
            reason = (error.strerror or "").lower()
            raise InputError(f"cannot make the folder {folder}: {reason}; pass another --output") from None

    def check(self, recordings: Iterable[str]) -> None:
        """Raise InputError, before hours of work, where two of ``recordings`` have one file, or a file is there."""
        owners: dict[Path, str] = {}
        for recording in recordings:
            path = self._path(recording)
            if path in owners:
                raise InputError(_shared(path, f"{owners[path]} and {recording}"))
            self._check_free(path)
            owners[path] = recording

    def write(self, recording: str, segments: Sequence[TextSegment]) -> None:
        """Write the subtitles of a recording. Raises InputError for a file that would be lost."""
        path = self._path(recording)
        if path in self._written:
            raise InputError(_shared(path, f"{recording} and another recording"))
        self._check_free(path)
        self._written.add(path)
        path.write_text(subtitles(segments, self._kind), encoding="utf-8")

    def _path(self, recording: str) -> Path:
        return self._folder / f"{Path(recording).stem}.{self._kind}"

    def _check_free(self, path: Path) -> None:
        if path.exists() and not self._force:
            raise InputError(f"{path} exists; pass --force to replace it, or another --output")


def _shared(path: Path, recordings: str) -> str:
    return f"{path} would hold the subtitles of {recordings}; rename one, or run it with another --output"
