"""Markup inside a text, moved to the place in its translation where it belongs.

A bundle gives no alignment of a text's words, so the place is found like this, the first that succeeds:

1. Markup around a whole sentence stays around it.
2. The text inside the markup is translated by itself, and looked for in the sentence's translation.
3. The text inside is looked for as it is, since names stay.
4. The place is at the same share of the sentence's length, between two words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

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
    """

    begin: int
    end: int
    new_begin: int
    new_end: int


def spaced(text: str) -> str:
    """Return a text in one line, with one space between two words."""
    return " ".join(text.split())


def moved_marks(
    text: str, marks: Sequence[Mark], new: str, parts: Sequence[Part], translations: Mapping[str, str]
) -> tuple[Mark, ...]:
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
        The marks in their order, nested as before.
    """
    moved: list[Mark] = []
    around: list[Mark] = []  # the moved marks around the present one, and
    done = [0]  # for each depth where the last mark ends
    for mark in marks:
        del around[mark.depth :], done[mark.depth + 1 :]
        low, high = done[mark.depth], around[-1].end if around else len(new)
        begin, end = _place(text, mark, new, parts, translations)
        begin = min(max(begin, low), high)
        placed = replace(mark, begin=begin, end=min(max(end, begin), high) if mark.closing else begin)
        moved.append(placed)
        around.append(placed)
        done[mark.depth] = placed.end
        done.append(placed.begin)
    return tuple(moved)


def _place(text: str, mark: Mark, new: str, parts: Sequence[Part], translations: Mapping[str, str]) -> tuple[int, int]:
    inner = text[mark.begin : mark.end]
    begin = mark.begin + len(inner) - len(inner.lstrip())
    end = mark.end - (len(inner) - len(inner.rstrip())) if inner.strip() else mark.end
    own = next((part for part in parts if part.begin <= begin and end <= part.end), None)
    if own is None or not mark.closing or begin == end:
        return _point(text, mark.begin, new, parts, first=True), _point(text, mark.end, new, parts, first=False)
    if (begin, end) == (own.begin, own.end):
        return own.new_begin, own.new_end
    target = new[own.new_begin : own.new_end]
    source = spaced(text[own.begin : own.end])
    before = len(spaced(text[own.begin : begin]) + " ") if begin > own.begin else 0
    if source == target:
        return own.new_begin + before, own.new_begin + before + len(spaced(inner))
    share = before / max(1, len(source))
    for wanted in (translations.get(spaced(inner), ""), spaced(inner)):
        if (found := _find(wanted, target, share)) is not None:
            return own.new_begin + found[0], own.new_begin + found[1]
    starts = [match.start() for match in _WORD.finditer(target)] or [0]
    ends = [match.end() for match in _WORD.finditer(target)] or [len(target)]
    first = min(starts, key=lambda place: abs(place - share * len(target)))
    wanted_end = first + len(spaced(inner)) / max(1, len(source)) * len(target)
    last = min(
        (place for place in ends if place > first), key=lambda place: abs(place - wanted_end), default=len(target)
    )
    return own.new_begin + first, own.new_begin + last


_WORD = re.compile(r"\w(?:[\w'\u2019.-]*\w)?")
_EDGES = " \t\n.,;:!?\"'«»“”„()[]。、\uff0c\uff01\uff1f"


def _find(wanted: str, target: str, share: float) -> tuple[int, int] | None:
    """Return the place of a text in a translation, that nearest to a share of its length."""
    wanted = wanted.strip(_EDGES)
    if not wanted:
        return None
    edge = r"(?<!\w)", r"(?!\w)"
    pattern = f"{edge[0] if wanted[0].isalnum() else ''}{re.escape(wanted)}{edge[1] if wanted[-1].isalnum() else ''}"
    found = [match.span() for match in re.finditer(pattern, target, re.IGNORECASE)]
    return min(found, key=lambda span: abs(span[0] - share * len(target)), default=None)


def _point(text: str, place: int, new: str, parts: Sequence[Part], *, first: bool) -> int:
    """Return the place of a single point: at the same edge of a sentence, or between two words."""
    own: Callable[[Part], bool] = (
        (lambda part: place < part.end) if first else (lambda part: part.begin < place <= part.end)
    )
    part = next((part for part in parts if own(part)), None)
    if part is None:
        behind = [part for part in parts if part.end <= place]
        if first or not behind:
            return len(new) if first else 0
        return behind[-1].new_end
    if place <= part.begin:
        return part.new_begin
    if place == part.end:
        return part.new_end
    target, source = new[part.new_begin : part.new_end], spaced(text[part.begin : part.end])
    before = len(spaced(text[part.begin : place]))
    before += source[before : before + 1] == " " and (text[place - 1].isspace() or first)
    if source == target:
        return part.new_begin + before
    edges = [match.start() if first else match.end() for match in _WORD.finditer(target)] or [len(target)]
    return part.new_begin + min(edges, key=lambda edge: abs(edge - before / len(source) * len(target)))
