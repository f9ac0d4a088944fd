"""Subtitles, SubRip (.srt) and WebVTT (.vtt): the text of each cue, with its tags; times and settings stay."""

from __future__ import annotations

import re

from tightbeam.deploy.documents.format import Format, decoded
from tightbeam.deploy.documents.formats._inline import InlineText
from tightbeam.deploy.documents.passages import Document, cut_document, line_numbers
from tightbeam.deploy.errors import InputError

__all__ = ["FORMAT"]

TIME = r"[ \t]*(?:\d{1,4}:)?\d{1,2}:\d{1,2}[,.]\d{1,3}"
TIMES = re.compile(rf"{TIME}[ \t]*-->{TIME}")
LINE = re.compile(r"[^\r\n]*+(?:\r\n|\r|\n|\Z)")
TAG = re.compile(r"<(?P<end>/)?(?P<name>[a-zA-Z]{0,12})[^<>\r\n]{0,200}>|\{\\[^{}\r\n]{0,200}\}")
SPEAKER = re.compile(r"[ \t]*(?:[-\u2013—][ \t]*|[A-Z][A-Z .'-]{0,30}:[ \t]*|>>[ \t]*)(?=\S)")


def read(data: bytes) -> Document:
    """Read subtitles. Each cue is a text; if each of its lines begins with the sign of a speaker, each line is one."""
    source, encode = decoded(data)
    place = line_numbers(source)
    inline = InlineText(source, place)
    cue: list[tuple[int, int, str]] | None = None
    found = False
    for match in LINE.finditer(source):
        begin, line = match.start(), match.group()
        text = line.rstrip("\r\n")
        if TIMES.match(text):
            found = True
            if cue:
                cue.pop()  # the number of this cue, whose empty line is missing
                _add(inline, source, cue)
            cue = []
        elif cue is not None and text.strip():
            cue.append((begin, begin + len(text), line[len(text) :]))
        elif cue is not None:
            _add(inline, source, cue)
            cue = None
    _add(inline, source, cue or [])
    if not found and source.strip():
        raise InputError("the document has no line of times such as 00:00:01,000 --> 00:00:02,500; pass subtitles")
    return cut_document(source, inline.slots, encode)


def _add(inline: InlineText, source: str, cue: list[tuple[int, int, str]]) -> None:
    speakers = len(cue) > 1 and all(SPEAKER.match(source, begin, end) for begin, end, _ in cue)
    for number, (begin, end, _) in enumerate(cue):
        speaker = SPEAKER.match(source, begin, end)
        if number and speakers:
            inline.finish()
        elif number:
            inline.text(cue[number - 1][1], begin, "\n")
        if speaker and (speakers or not number):
            begin = speaker.end()
        for match in TAG.finditer(source, begin, end):
            inline.text(begin, match.start())
            name = (match.group("name") or "").lower()
            if not name:
                inline.point(*match.span())
            elif match.group("end"):
                inline.close(name, *match.span())
            else:
                inline.open(name, *match.span())
            begin = match.end()
        inline.text(begin, end)
    inline.finish(cue[0][2] or "\n" if cue else "\n")


FORMAT = Format("subtitles", (".srt", ".vtt"), read)
