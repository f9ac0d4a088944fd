"""Documents as passages of text, and everything between them, which stays as it is."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

__all__ = ["Document", "Mark", "NewText", "Passage", "Slot", "cut_document", "line_numbers"]


@dataclass(frozen=True)
class Mark:
    """Markup inside a passage, such as a pair of tags. Two marks of a passage are nested or apart.

    Attributes
    ----------
    begin, end : int
        The characters of the passage's text that it encloses; equal for markup without content.
    opening, closing : str
        The markup before and behind them, as the file has it.
    depth : int
        The number of marks around it.
    """

    begin: int
    end: int
    opening: str
    closing: str = ""
    depth: int = 0

    @property
    def needs_text(self) -> bool:
        """True if both ends look the same, such as Markdown's ``**``: they are markup only around a text."""
        return self.opening != "" and self.opening == self.closing


@dataclass(frozen=True)
class Passage:
    """A text that is translated by itself: a paragraph, a heading, an item of a list, a subtitle.

    Attributes
    ----------
    text : str
        The text without markup. A line break in it is one that an editor wrapped.
    place : str
        Where it stands, for reports: "line 12".
    marks : tuple of Mark
        The markup inside it, outer marks before inner ones.
    literals : tuple of (int, int)
        Characters from and to which the text stays as it is, such as code.
    """

    text: str
    place: str
    marks: tuple[Mark, ...] = ()
    literals: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class NewText:
    """The text that takes the place of a passage's, with its marks moved to where they now belong."""

    text: str
    marks: tuple[Mark, ...] = ()


@dataclass(frozen=True)
class Document:
    """A document that was read.

    Attributes
    ----------
    passages : sequence of Passage
    write : function
        Returns the bytes of the document with other texts, one for each passage. With the passages' own texts these
        are the bytes that were read.
    notes : sequence of str
        Parts that stay as they are because they could not be read, each with its place.
    """

    passages: Sequence[Passage]
    write: Callable[[Sequence[NewText]], bytes]
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Slot:
    """The place of a passage in the text of a file.

    Attributes
    ----------
    begin, end : int
        The characters that the passage takes.
    passage : Passage
    newline : str
        What a line break of the passage is in the file: the break, and what its lines begin with ("\\n> ").
    """

    begin: int
    end: int
    passage: Passage
    newline: str = "\n"


def cut_document(
    source: str,
    slots: Sequence[Slot],
    encode: Callable[[str], bytes],
    escape: Callable[[str], str] = str,
    notes: Sequence[str] = (),
) -> Document:
    """Return the document of a file that is text.

    Parameters
    ----------
    source
        The content of the file.
    slots
        The passages, in order.
    encode
        Makes bytes of the content.
    escape
        Writes text so that no character of it is markup.
    notes
        The document's.
    """

    def write(texts: Sequence[NewText]) -> bytes:
        parts, end = [], 0
        for slot, new in zip(slots, texts, strict=True):
            parts.append(source[end : slot.begin])
            same = (new.text, new.marks) == (slot.passage.text, slot.passage.marks)
            parts.append(source[slot.begin : slot.end] if same else _marked(new, escape).replace("\n", slot.newline))
            end = slot.end
        return encode("".join([*parts, source[end:]]))

    return Document([slot.passage for slot in slots], write, notes)


def _marked(new: NewText, escape: Callable[[str], str]) -> str:
    """Return a text with its marks."""
    parts: list[str] = []
    open_marks: list[Mark] = []
    done = 0

    def go_to(place: int) -> None:
        nonlocal done
        parts.append(escape(new.text[done:place]))
        done = place

    for mark in new.marks:
        while open_marks and open_marks[-1].depth >= mark.depth:
            go_to(open_marks[-1].end)
            parts.append(open_marks.pop().closing)
        go_to(mark.begin)
        parts.append(mark.opening)
        open_marks.append(mark)
    while open_marks:
        go_to(open_marks[-1].end)
        parts.append(open_marks.pop().closing)
    go_to(len(new.text))
    return "".join(parts)


def line_numbers(source: str) -> Callable[[int], str]:
    """Return a function of a character's place that names its line: "line 12"."""
    breaks = [place for place, sign in enumerate(source) if sign == "\n"]
    return lambda place: f"line {bisect_right(breaks, place - 1) + 1}"
