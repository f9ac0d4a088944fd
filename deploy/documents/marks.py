"""Markup inside a text, moved to the place in its translation where it belongs.

The place is found like this, the first that succeeds:

1. Markup around a whole sentence stays around it.
2. The words inside the markup say by their alignment which words of the translation are theirs.
3. The text inside the markup is translated by itself, and looked for in the sentence's translation.
4. The text inside is looked for as it is, since names stay.
5. The place is at the same share of the sentence's length, between two words.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tightbeam.deploy.documents.alignment import WORD, WordAlignment
from tightbeam.deploy.documents.passages import Mark

__all__ = ["Part", "moved_marks", "spaced"]


@dataclass(frozen=True)
class Part:
    """A sentence in a passage's text, and its translation in the new text.

    Attributes
    ----------
    begin, end : int
        Its characters in the text.
    new_begin, new_end : int
        The characters of its translation in the new text.
    words : WordAlignment or None
        The words of both; None if the model gives no attention.
    """

    begin: int
    end: int
    new_begin: int
    new_end: int
    words: WordAlignment | None = None


def spaced(text: str) -> str:
    """Return a text in one line, with one space between two words."""
    return " ".join(text.split())


def moved_marks(
    text: str, marks: Sequence[Mark], new: str, parts: Sequence[Part], translations: Mapping[str, str]
) -> tuple[tuple[Mark, ...], list[Mark]]:
    """Move marks from a text to its translation.

    Parameters
    ----------
    text, marks
        A passage's.
    new
        The translation.
    parts
        The sentences, in order.
    translations
        Translations of texts inside marks by themselves.

    Returns
    -------
    tuple of Mark
        The marks, nested as before, in the order of the translation.
    list of Mark
        The marks that are left out, whose ends are empty among the moved ones: a mark that needs text and has none, or
        that touches a mark with the same signs, with which Markdown would read it as one.
    """
    inside: list[list[int]] = [[] for _ in marks]  # the marks directly inside each mark
    outermost: list[int] = []
    path = [0] * (1 + max((mark.depth for mark in marks), default=0))  # the last mark of each depth
    for number, mark in enumerate(marks):
        path[mark.depth] = number
        (inside[path[mark.depth - 1]] if mark.depth else outermost).append(number)
    moved: list[Mark] = []
    left_out: list[Mark] = []
    ends: set[tuple[int, str]] = set()  # where markup that needs text ends, and its signs
    waiting = _within(text, marks, outermost, new, parts, translations, 0, len(new))
    while waiting:
        number, begin, end = waiting.pop()
        mark = marks[number]
        opening, closing = mark.opening, mark.closing
        if mark.needs_text and text[mark.begin : mark.end].strip():
            inner = new[begin:end]
            begin += len(inner) - len(inner.lstrip())
            end = begin + len(inner.strip())
            if begin == end or (begin, opening) in ends:
                left_out.append(mark)
                opening = closing = ""
            else:
                ends.add((end, opening))
        if begin == end and not mark.closing and _apart(text, mark.begin) and not new[begin : begin + 1].isspace():
            opening += " "
        moved.append(replace(mark, begin=begin, end=end, opening=opening, closing=closing))
        waiting += _within(text, marks, inside[number], new, parts, translations, begin, end)
    return tuple(moved), left_out


def _apart(text: str, place: int) -> bool:
    """True for a place with space on both sides."""
    return text[place - 1 : place].isspace() and text[place : place + 1].isspace()


def _within(
    text: str,
    marks: Sequence[Mark],
    numbers: Sequence[int],
    new: str,
    parts: Sequence[Part],
    translations: Mapping[str, str],
    low: int,
    high: int,
) -> list[tuple[int, int, int]]:
    """Return number, begin and end of marks inside of others, the last one first; they do not overlap."""
    placed = []
    for number in numbers:
        begin, end = _place(text, marks[number], new, parts, translations)
        is_point = marks[number].begin == marks[number].end
        placed.append((begin, number, begin if is_point else end))
    found = []
    for begin, number, end in sorted(placed):
        begin = min(max(begin, low), high)
        low = min(max(begin, end), high)
        found.append((number, begin, low))
    return found[::-1]


def _place(text: str, mark: Mark, new: str, parts: Sequence[Part], translations: Mapping[str, str]) -> tuple[int, int]:
    inner = text[mark.begin : mark.end]
    begin = mark.begin + len(inner) - len(inner.lstrip())
    end = mark.end - (len(inner) - len(inner.rstrip())) if inner.strip() else mark.end
    near = bisect_right(parts, begin, key=lambda part: part.begin) - 1
    own = parts[near] if near >= 0 and end <= parts[near].end else None
    if own is None or begin == end:
        return _point(text, mark.begin, new, parts, first=True), _point(text, mark.end, new, parts, first=False)
    if (begin, end) == (own.begin, own.end):
        return own.new_begin, own.new_end
    target = new[own.new_begin : own.new_end]
    source = spaced(text[own.begin : own.end])
    before = len(spaced(text[own.begin : begin]) + " ") if begin > own.begin else 0
    if source == target:
        return own.new_begin + before, own.new_begin + before + len(spaced(inner))
    if own.words is not None and (place := own.words.place(begin - own.begin, end - own.begin)) is not None:
        first, last = _part_of_word(text, begin, end, target, place) or _with_signs(text[begin:end], target, *place)
        return own.new_begin + first, own.new_begin + last
    share = before / max(1, len(source))
    for wanted in (translations.get(spaced(inner), ""), spaced(inner)):
        if (found := _find(wanted, target, share)) is not None:
            return own.new_begin + found[0], own.new_begin + found[1]
    starts = [match.start() for match in WORD.finditer(target)] or [0]
    ends = [match.end() for match in WORD.finditer(target)] or [len(target)]
    first = min(starts, key=lambda place: abs(place - share * len(target)))
    wanted_end = first + len(spaced(inner)) / max(1, len(source)) * len(target)
    last = min(
        (place for place in ends if place > first), key=lambda place: abs(place - wanted_end), default=len(target)
    )
    return own.new_begin + first, own.new_begin + last


def _part_of_word(text: str, begin: int, end: int, target: str, place: tuple[int, int]) -> tuple[int, int] | None:
    """Return the place of a part of a word, such as the number of a footnote, that stays in the word's translation;
    None if the markup is around whole words, or the part does not stay."""
    inner = text[begin:end]
    after, before = (text[edge - 1 : edge].isalnum() and text[edge : edge + 1].isalnum() for edge in (begin, end))
    if not (after or before):
        return None
    found = target.rfind(inner, *place) if after else target.find(inner, *place)
    return None if found < 0 else (found, found + len(inner))


def _with_signs(inner: str, target: str, begin: int, end: int) -> tuple[int, int]:
    """Widen a place in a translation by the signs that are at the edges of both texts."""
    words = [match.span() for match in WORD.finditer(inner)] or [(0, len(inner))]  # a sign inside of a word
    ahead, behind = inner[: words[0][0]], inner[words[-1][1] :]
    if target[:begin].endswith(ahead):
        begin -= len(ahead)
    if target[end:].startswith(behind):
        end += len(behind)
    return begin, end


_EDGES = " \t\n.,;:!?\"'«»“”„()[]。、\uff0c\uff01\uff1f"


def _find(wanted: str, target: str, share: float) -> tuple[int, int] | None:
    """Return the place of a text in a translation, that nearest to a share of its length."""
    wanted = wanted.strip(_EDGES) or wanted  # signs alone stay
    if not wanted:
        return None
    edge = r"(?<!\w)", r"(?!\w)"
    pattern = f"{edge[0] if wanted[0].isalnum() else ''}{re.escape(wanted)}{edge[1] if wanted[-1].isalnum() else ''}"
    found = [match.span() for match in re.finditer(pattern, target, re.IGNORECASE)]
    return min(found, key=lambda span: abs(span[0] - share * len(target)), default=None)


def _point(text: str, place: int, new: str, parts: Sequence[Part], *, first: bool) -> int:
    """Return the place of a single point: at the same edge of a sentence, or between two words."""
    if first:
        near = bisect_right(parts, place, key=lambda part: part.end)
    else:
        near = bisect_left(parts, place, key=lambda part: part.begin) - 1
    if not 0 <= near < len(parts):
        return len(new) if first else 0
    part = parts[near]
    if not first and place > part.end:
        return part.new_end
    if place <= part.begin:
        end, new_end = (parts[near - 1].end, parts[near - 1].new_end) if near else (0, 0)
        kept = place >= end and part.begin - end == part.new_begin - new_end  # the space between, in which it stays
        return part.new_begin - (part.begin - place if kept else 0)
    if place == part.end:
        return part.new_end
    if part.words is not None:
        near_word = part.words.before if first else part.words.behind
        if (found := near_word(place - part.begin)) is not None:
            return part.new_begin + found
    target, source = new[part.new_begin : part.new_end], spaced(text[part.begin : part.end])
    before = len(spaced(text[part.begin : place]))
    before += source[before : before + 1] == " " and (text[place - 1].isspace() or first)
    if source == target:
        return part.new_begin + before
    edges = [match.start() if first else match.end() for match in re.finditer(r"\S+", target)] or [len(target)]
    return part.new_begin + min(edges, key=lambda edge: abs(edge - before / len(source) * len(target)))
