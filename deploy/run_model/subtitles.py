"""Subtitles of recordings: SubRip (.srt) and WebVTT (.vtt)."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from tightbeam.deploy.errors import InputError
from tightbeam.deploy.inputs.output import TextSegment

__all__ = ["FORMATS", "SubtitleFolder", "SubtitleWriter", "subtitles"]

FORMATS = ("srt", "vtt")


@dataclass(frozen=True)
class _Cue:
    """A subtitle: text that is shown from one time to another."""

    start_s: float
    end_s: float
    text: str


def subtitles(segments: Sequence[TextSegment], kind: str, max_words: int | None = None) -> str:
    """Write segments as a file of subtitles.

    Parameters
    ----------
    segments : sequence of TextSegment
        The segments in order. Segments without text are left out.
    kind : str
        One of `FORMATS`.
    max_words : int, optional
        The most words of a subtitle, for segments that have words; by default all words of a segment.

    Returns
    -------
    str
        The content of the file. A subtitle of words is shown from the first word's start to the last word's end.
    """
    return SubtitleWriter(kind, max_words).add(segments)


class SubtitleWriter:
    """Writes the segments of a recording as they are found. The returned texts together are a file of subtitles.

    Parameters
    ----------
    kind, max_words
        Arguments of `subtitles`.
    """

    def __init__(self, kind: str, max_words: int | None = None) -> None:
        self._kind, self._max_words = kind, max_words
        self._count, self._begun = 0, False

    def add(self, segments: Sequence[TextSegment]) -> str:
        """Return the text that further segments add to the file. The first call adds the file's beginning."""
        parts = ["WEBVTT\n"] if self._kind == "vtt" and not self._begun else []
        self._begun = True
        for cue in (cue for part in segments for cue in _cues(part, self._max_words) if cue.text):
            self._count += 1
            if self._kind == "vtt":
                parts.append(f"\n{_times(cue, '.')}\n{html.escape(cue.text, quote=False)}\n")
            else:
                between = "\n" if self._count > 1 else ""
                parts.append(f"{between}{self._count}\n{_times(cue, ',')}\n{cue.text}\n")
        return "".join(parts)


def _cues(part: TextSegment, max_words: int | None) -> Iterator[_Cue]:
    if not part.words:
        yield _Cue(part.start_s, part.end_s, " ".join((part.text or "").split()))
        return
    for first in range(0, len(part.words), max_words or len(part.words)):
        words = part.words[first : first + (max_words or len(part.words))]
        text = "".join(own.word for own in words)
        yield _Cue(words[0].start_s, words[-1].end_s, " ".join(text.split()))


def _times(cue: _Cue, point: str) -> str:
    return f"{_time(cue.start_s, point)} --> {_time(max(cue.start_s, cue.end_s), point)}"


def _time(seconds: float, point: str) -> str:
    milliseconds = round(seconds * 1000)
    return (
        f"{milliseconds // 3_600_000:02}:{milliseconds // 60_000 % 60:02}:{milliseconds // 1000 % 60:02}{point}"
        f"{milliseconds % 1000:03}"
    )


class SubtitleFolder:
    """A folder with a file of subtitles for each recording, named after it.

    Parameters
    ----------
    folder : str
        The folder, made if it is missing.
    kind : str
        One of `FORMATS`.
    force : bool
        Replace existing files.

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
        """Raise InputError, before hours of work, if two recordings have the same file, or a file exists."""
        owners: dict[Path, str] = {}
        for recording in recordings:
            path = self._path(recording)
            if path in owners:
                raise InputError(_shared(path, f"{owners[path]} and {recording}"))
            self._check_free(path)
            owners[path] = recording

    def open(self, recording: str) -> TextIO:
        """Open the file of a recording. Raises InputError if the content of a file would be lost."""
        path = self._path(recording)
        if path in self._written:
            raise InputError(_shared(path, f"{recording} and another recording"))
        self._check_free(path)
        self._written.add(path)
        return path.open("w", encoding="utf-8", newline="\n")

    def _path(self, recording: str) -> Path:
        return self._folder / f"{Path(recording).stem}.{self._kind}"

    def _check_free(self, path: Path) -> None:
        if path.exists() and not self._force:
            raise InputError(f"{path} exists; pass --force to replace it, or another --output")


def _shared(path: Path, recordings: str) -> str:
    return f"{path} would hold the subtitles of {recordings}; rename one, or run it with another --output"
