"""Subtitles of recordings: SubRip (.srt), WebVTT (.vtt), and a table of segments (.tsv)."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tightbeam.deploy.inputs.output import TextSegment

__all__ = ["FORMATS", "SubtitleWriter", "subtitles"]

FORMATS = ("srt", "vtt", "tsv")
BEGINNINGS = {"vtt": "WEBVTT\n", "tsv": "start\tend\ttext\n"}


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
        parts = [] if self._begun else [BEGINNINGS.get(self._kind, "")]
        self._begun = True
        for cue in (cue for part in segments for cue in _cues(part, self._max_words) if cue.text):
            self._count += 1
            if self._kind == "vtt":
                parts.append(f"\n{_times(cue, '.')}\n{html.escape(cue.text, quote=False)}\n")
            elif self._kind == "tsv":  # milliseconds, as OpenAI's whisper writes them
                end_s = max(cue.start_s, cue.end_s)
                parts.append(f"{round(cue.start_s * 1000)}\t{round(end_s * 1000)}\t{cue.text}\n")
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
