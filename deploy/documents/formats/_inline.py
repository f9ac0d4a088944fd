"""Passages with markup inside, made of what a parser finds from left to right."""

from __future__ import annotations

from collections.abc import Callable

from tightbeam.deploy.documents.passages import Mark, Passage, Slot

__all__ = ["InlineText"]

MOST_OPEN = 64
"""The most markup inside markup; what is deeper stays where it is put, but is not moved as a pair."""


class InlineText:
    """Collects text and markup into passages. All places are characters of the file, and ascend.

    Parameters
    ----------
    source
        The content of the file.
    place
        Names the line of a character.
    """

    def __init__(self, source: str, place: Callable[[int], str]) -> None:
        self.slots: list[Slot] = []
        self._source, self._place = source, place
        self._open: list[tuple[str, str, str]] = []  # name, opening, closing if it is known
        self._clear()

    @property
    def begun(self) -> bool:
        """True if something was added since the last passage."""
        return self._begin is not None

    def _clear(self) -> None:
        self._text = ""
        self._literals: list[tuple[int, int]] = []
        self._marks: list[Mark] = []
        self._stack: list[int] = []  # the marks that are open, by their index
        self._begin: int | None = None
        self._end = 0
        for _, _, closing in self._open:  # they began in an earlier passage
            self._push("", closing)

    def _push(self, opening: str, closing: str) -> None:
        self._stack.append(len(self._marks))
        self._marks.append(Mark(len(self._text), -1, opening, closing, len(self._stack) - 1))

    def _take(self, begin: int, end: int) -> None:
        self._begin = begin if self._begin is None else self._begin
        self._end = end

    def text(self, begin: int, end: int, shown: str | None = None, *, literal: bool = False) -> None:
        """Add text. ``shown`` is what a reader sees of it; a literal stays as it is."""
        raw = self._source[begin:end] if shown is None else shown
        if self._begin is None and not raw.strip():
            return
        if self._begin is None and shown is None and not literal:
            begin += len(raw) - len(raw.lstrip())
            raw = raw.lstrip()
        if literal:
            self._literals.append((len(self._text), len(self._text) + len(raw)))
        self._take(begin, end)
        self._text += raw

    def open(self, name: str, begin: int, end: int, closing: str = "") -> None:
        """Add the beginning of markup; ``closing`` is its end, if it does not come as it is in the file."""
        if len(self._open) == MOST_OPEN:
            self.point(begin, end)
            return
        self._take(begin, end)
        opening = self._source[begin:end]
        self._push(opening, closing)
        self._open.append((name, opening, closing))

    def close(self, name: str, begin: int, end: int) -> None:
        """Add the end of the last markup of a name. Markup that is still open inside it ends here, too."""
        place = next((place for place in reversed(range(len(self._open))) if self._open[place][0] == name), None)
        if place is None:
            self.point(begin, end)
            return
        self._take(begin, end)
        while len(self._open) > place:
            last = len(self._open) == place + 1
            own, (_, _, closing) = self._stack.pop(), self._open.pop()
            mark = self._marks[own]
            raw = closing or self._source[begin:end] if last else ""
            self._marks[own] = Mark(mark.begin, len(self._text), mark.opening, raw, mark.depth)

    def point(self, begin: int, end: int) -> None:
        """Add markup without content."""
        self._take(begin, end)
        place = len(self._text)
        self._marks.append(Mark(place, place, self._source[begin:end], "", len(self._stack)))

    def finish(self, newline: str = "\n") -> None:
        """End the passage. ``newline`` is what a line break in it is in the file."""
        for own in self._stack:
            mark = self._marks[own]
            self._marks[own] = Mark(mark.begin, len(self._text), mark.opening, "", mark.depth)
        if self._begin is not None and self._text.strip():
            passage = Passage(self._text, self._place(self._begin), tuple(self._marks), tuple(self._literals))
            self.slots.append(Slot(self._begin, self._end, passage, newline))
        self._clear()
