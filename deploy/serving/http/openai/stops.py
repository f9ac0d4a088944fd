"""Texts without the stop string that ended them, as OpenAI gives them; ``model.generate`` gives it too."""

from __future__ import annotations

from collections.abc import Sequence

from tightbeam.deploy.inputs.output import Output

__all__ = ["StoppedText", "texts_of"]


def texts_of(output: Output, stops: Sequence[str]) -> list[str]:
    """Return the texts of an output up to their first stop string."""
    reasons: Sequence[str] = output.finish_reasons or [""] * len(output.sequences)
    return [
        before_stop(text, stops) if reason == "stop_string" else text
        for text, reason in zip(output.texts or [], reasons, strict=True)
    ]


def before_stop(text: str, stops: Sequence[str]) -> str:
    """Return a text up to the first stop string; all of it if it has none, since the string began in the prompt."""
    return text[: min((place for stop in stops if (place := text.find(stop)) >= 0), default=len(text))]


class StoppedText:
    """Gives a text piece by piece, but no piece that may belong to a stop string.

    Parameters
    ----------
    stops
        The stop strings.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._text, self._given = "", 0

    def add(self, piece: str) -> str:
        """Add a piece of the text, and return what is certain now and was not given before."""
        self._text += piece
        return self._give(self._certain())

    def rest(self, text: str) -> str:
        """Return what was not given of the whole ``text``, which has no stop string any more."""
        self._text = text
        return self._give(len(text))

    def _certain(self) -> int:
        text = self._text
        end = len(before_stop(text, self._stops))
        if end < len(text):
            return end
        longest = max(map(len, self._stops), default=0)
        for start in range(max(0, end - longest + 1), end):
            if any(stop.startswith(text[start:]) for stop in self._stops):
                return start
        return end

    def _give(self, end: int) -> str:
        piece, self._given = self._text[self._given : end], max(self._given, end)
        return piece
