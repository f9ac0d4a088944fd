"""Plain text: paragraphs between blank lines, with their indentation, and lists."""

from __future__ import annotations

import re

from tightbeam.deploy.documents.format import Format, decoded
from tightbeam.deploy.documents.passages import Document, Passage, Slot, cut_document, line_numbers

__all__ = ["FORMAT"]

LINE = re.compile(r"[^\r\n]+|\r\n|[\r\n]")
ENDED = re.compile(r"[.!?\u2026\u3002\uff01\uff1f][\"'\u2019\u201d\u00bb)\]]*\Z")
"""The end of a sentence, with what closes behind it."""
ITEM = re.compile(r"(?:[-*+•◦▪‣\u2013—·]|\(?(?:\d{1,3}|[a-zA-Z])[.)])[ \t]+(?=\S)")


def read(data: bytes) -> Document:
    """Read a text. A line goes on in the next one if that line's first word had no room in it, unless all lines end a
    sentence each."""
    source, encode = decoded(data)
    place = line_numbers(source)
    slots: list[Slot] = []
    for paragraph in _paragraphs(source):
        width = max(end - begin for begin, end in paragraph)
        apart = all(ENDED.search(source[begin:end]) for begin, end in paragraph)
        group = [paragraph[0]]
        for begin, end in paragraph[1:]:
            word = re.match(r"\S+", source[begin:end])
            full = not apart and group[-1][1] - group[-1][0] + 1 + len(word.group() if word else "") > width
            gaps = {
                source[first[1] : second[0]] for first, second in zip(group, [*group[1:], (begin, end)], strict=True)
            }
            if full and len(gaps) == 1 and not ITEM.match(source, begin):
                group.append((begin, end))
                continue
            slots.append(_slot(source, group, place(group[0][0])))
            group = [(begin, end)]
        slots.append(_slot(source, group, place(group[0][0])))
    return cut_document(source, slots, encode)


def _paragraphs(source: str) -> list[list[tuple[int, int]]]:
    """Return the lines of each paragraph, from and to which characters, without the space around them."""
    found: list[list[tuple[int, int]]] = [[]]
    empty = True
    for match in LINE.finditer(source):
        line = match.group()
        if text := line.strip():
            begin = match.start() + line.index(text)
            found[-1].append((begin, begin + len(text)))
            empty = False
        elif line[0] in "\r\n":
            if empty and found[-1]:
                found.append([])
            empty = True
    return [lines for lines in found if lines]


def _slot(source: str, lines: list[tuple[int, int]], place: str) -> Slot:
    (begin, end), *rest = lines
    item = ITEM.match(source, begin, end)
    begin = item.end() if item else begin
    newline = source[end : rest[0][0]] if rest else "\n"
    text = "\n".join(source[first:last] for first, last in [(begin, end), *rest])
    return Slot(begin, rest[-1][1] if rest else end, Passage(text, place), newline)


FORMAT = Format("text", (".txt", ".text"), read)
