"""Documents translated by functions of Python, without a model."""

from __future__ import annotations

from collections.abc import Callable

from tightbeam.deploy.documents.format import Format
from tightbeam.deploy.documents.glossary import Glossary
from tightbeam.deploy.documents.known_formats import formats
from tightbeam.deploy.documents.translation import Piece, Rounds, Translated, Translation, Translator, translation

__all__ = ["drive", "translate"]


def drive(rounds: Rounds, function: Callable[[Piece], str | Translation | ValueError]) -> Translated:
    """Run rounds with a function in place of a model. Its texts are translations without an alignment."""
    try:
        pieces = next(rounds)
        while True:
            found = map(function, pieces)
            pieces = rounds.send([Translation(each) if isinstance(each, str) else each for each in found])
    except StopIteration as end:
        made: Translated = end.value
        return made


def translate(
    source: str | bytes,
    kind: str,
    function: Callable[[str], str] = str,
    *,
    most: int = 10_000,
    glossary: Glossary | None = None,
) -> tuple[str, list[str]]:
    """Translate a document by a function of its sentences, for a model of ``most`` characters, and return its text
    and the reports."""
    data = source.encode() if isinstance(source, str) else source
    own: Format = formats()[kind]
    document = own.read(data)
    how = Translator("en", lambda text: len(text) <= most, glossary)
    made = drive(translation(document.passages, how), lambda piece: function(piece.text))
    return document.write(made.texts).decode("utf-8", "surrogateescape"), made.reports
