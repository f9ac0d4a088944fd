"""Passages in another language, sentence by sentence.

The model is not called here. `translation` is a generator: it yields the pieces of text to translate next, the caller
runs all of them together and sends their translations in, which `next_step` does without exceptions. The passages may
belong to several documents.

1. All sentences, cut where they are too long, and the texts inside of markup if the model gives no attention.
2. Sentences whose translation lost a literal, in pieces between their literals, which then stay; and sentences without
   the translation of a term of the glossary, with that term forced.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from tightbeam.deploy.documents.alignment import TokenAlignment, WordAlignment
from tightbeam.deploy.documents.glossary import ForcedWords, Glossary, Term
from tightbeam.deploy.documents.literals import has_words, literals_in, missing_numbers, missing_parts
from tightbeam.deploy.documents.marks import Part, moved_marks, spaced
from tightbeam.deploy.documents.passages import Mark, NewText, Passage
from tightbeam.deploy.documents.sentences import pieces_that_fit, split_sentences

__all__ = ["Piece", "Rounds", "Translated", "Translation", "Translator", "next_step", "translation"]

SHOWN = 60
"""Characters of a sentence that a report quotes."""


@dataclass(frozen=True)
class Piece:
    """A text to translate.

    Attributes
    ----------
    text : str
    forced : tuple
        Token ids of words that its translation has to have, as ``force_words_ids``.
    aligned : bool
        True if its translation should have an alignment, since there is markup inside of it; a search with forced words
        has none.
    """

    text: str
    forced: ForcedWords = ()
    aligned: bool = False


@dataclass(frozen=True)
class Translation:
    """The translation of a piece.

    Attributes
    ----------
    text : str
    alignment : TokenAlignment or None
        The attention of its tokens; None if it was not asked for.
    """

    text: str
    alignment: TokenAlignment | None = None


@dataclass(frozen=True)
class Translator:
    """The properties of a translator that its texts depend on.

    Attributes
    ----------
    language : str
        The language of the texts, such as "en", for the rules of sentences.
    fits : function
        Says whether the model has positions for a text.
    glossary : Glossary or None
    gives_attention : bool
        True if translations can have an alignment.
    """

    language: str
    fits: Callable[[str], bool]
    glossary: Glossary | None = None
    gives_attention: bool = False


@dataclass(frozen=True)
class Translated:
    """Translated passages.

    Attributes
    ----------
    texts : list of NewText
        One for each passage.
    reports_of : list of list of str
        For each passage, what did not come back as it was, or could not be done, with its place.
    """

    texts: list[NewText]
    reports_of: list[list[str]]

    @property
    def reports(self) -> list[str]:
        """The reports of all passages."""
        return [report for reports in self.reports_of for report in reports]


Rounds: TypeAlias = Generator[list[Piece], Sequence[Translation | ValueError], Translated]
"""Yields pieces, takes the translation of each or the reason why there is none, and returns the whole."""


@dataclass
class _Sentence:
    """A sentence of a passage: its characters there, its translation, and what cannot be said of it.

    ``aligned``: there is markup inside of it, which ``parts``, the attention of its translation, is to place. Without
    attention, or with terms that may have to be forced, the texts ``inner`` are translated by themselves.
    """

    passage: int
    begin: int
    end: int
    source: str
    literals: list[str]
    inner: list[str] = field(default_factory=list)
    aligned: bool = False
    terms: list[Term] = field(default_factory=list)
    target: str = ""
    parts: list[TokenAlignment] | None = None
    notes: list[str] = field(default_factory=list)
    failure: str | None = None


def translation(passages: Sequence[Passage], how: Translator) -> Rounds:
    """Translate passages. See `Rounds`."""
    sentences = [own for number, passage in enumerate(passages) for own in _sentences(number, passage, how)]
    layouts = [_layout(own, [own.source], how, own.notes) for own in sentences]
    inner = list(dict.fromkeys(text for own in sentences for text in own.inner))
    results = yield [*(piece for layout in layouts for piece in _pieces(layout)), *map(Piece, inner)]
    whole = len(results) - len(inner)
    _fill(sentences, layouts, results[:whole])
    translations = {
        text: made.text for text, made in zip(inner, results[whole:], strict=True) if isinstance(made, Translation)
    }
    again, layouts = [], []
    for own in sentences:
        lost = missing_parts(own.literals, own.target)
        terms = [term for term in own.terms if not term.is_in(own.target)]
        if not (lost or terms) or own.failure is not None:
            continue
        again.append(own)
        texts = _between(own.literals, own.source) if lost else [own.source]
        layouts.append(_layout(own, texts, how, [], terms))
    if again:
        results = yield [piece for layout in layouts for piece in _pieces(layout)]
        _fill(again, layouts, results, again=True)
    by_passage: list[list[_Sentence]] = [[] for _ in passages]
    for own in sentences:
        by_passage[own.passage].append(own)
    each = list(zip(passages, by_passage, strict=True))
    reports = [[report for own in owns for report in _reports(own, passage.place)] for passage, owns in each]
    joined = [_joined(*both, translations, notes) for both, notes in zip(each, reports, strict=True)]
    return Translated(joined, reports)


def next_step(rounds: Rounds, results: Sequence[Translation | ValueError] | None = None) -> list[Piece] | Translated:
    """Return the next pieces to translate, or the whole at its end.

    Parameters
    ----------
    rounds
        A `translation`.
    results
        The translations of the last pieces; None at the beginning.
    """
    try:
        return next(rounds) if results is None else rounds.send(results)
    except StopIteration as end:
        made: Translated = end.value
        return made


def _sentences(number: int, passage: Passage, how: Translator) -> list[_Sentence]:
    found, begin = [], 0
    for raw in split_sentences(passage.text, how.language):
        core = raw.strip()
        first = begin + raw.index(core)
        end, source = first + len(core), spaced(core)
        begin += len(raw)
        literals = [source[a:b] for a, b in literals_in(source)]
        literals += [spaced(passage.text[a:b]) for a, b in passage.literals if first <= a and b <= end]
        if not source:
            continue
        own = _Sentence(number, first, end, source, literals, target=source)
        if _is_text(own, source):
            own.terms = how.glossary.terms_in(source) if how.glossary else []
            own.aligned = how.gives_attention and any(_is_inside(mark, first, end) for mark in passage.marks)
            own.inner = [
                inner
                for mark in passage.marks
                if (own.terms or not how.gives_attention) and first <= mark.begin < mark.end <= end and mark.closing
                if (inner := spaced(passage.text[mark.begin : mark.end])) != source and _is_text(own, inner)
            ]
        found.append(own)
    return found


def _is_inside(mark: Mark, first: int, end: int) -> bool:
    """True if markup begins or ends inside of a sentence from ``first`` to ``end``."""
    return first < mark.begin < end or first < mark.end < end


def _is_text(own: _Sentence, text: str) -> bool:
    """True if something is to translate in a text."""
    for literal in own.literals:
        text = text.replace(literal, " ")
    return has_words(text)


_EDGES = re.compile(r"^[\s,;:.!?)\]}]+|[\s(\[{]+$")
"""Signs between a literal and the text beside it, which no model translates."""
Layout: TypeAlias = "list[str | Piece]"


def _layout(
    own: _Sentence, texts: Sequence[str], how: Translator, notes: list[str], terms: Sequence[Term] = ()
) -> Layout:
    """Return what a sentence's translation is made of: pieces to translate, and what stays."""
    layout: Layout = []
    for text in texts:
        core = text.strip() if len(texts) == 1 else _EDGES.sub("", text)
        if not core or core in own.literals or not _is_text(own, core):
            layout.append(text)
            continue
        begin = text.index(core)
        layout.append(text[:begin])
        parts = list(pieces_that_fit(core, how.fits))
        if len(parts) > 1:
            notes.append(f"was cut into {len(parts)} parts, since the model has no positions for the whole sentence")
        for place, part in enumerate(parts):
            stripped = part.strip()
            forced = how.glossary.forced(terms, stripped) if how.glossary else ()
            space = " " if place and parts[place - 1][-1:].isspace() else ""
            layout += [space, Piece(stripped, forced, own.aligned and not forced)]
        layout.append(text[begin + len(core) :])
    return layout


def _pieces(layout: Layout) -> list[Piece]:
    return [each for each in layout if isinstance(each, Piece) and each.text]


def _fill(
    sentences: Sequence[_Sentence],
    layouts: Sequence[Layout],
    results: Sequence[Translation | ValueError],
    *,
    again: bool = False,
) -> None:
    """Put the translations of pieces into their sentences. A sentence without one stays as it is."""
    made = iter(results)
    for own, layout in zip(sentences, layouts, strict=True):
        parts = [next(made) if isinstance(each, Piece) and each.text else _kept(each) for each in layout]
        error = next((each for each in parts if isinstance(each, ValueError)), None)
        if error is not None and again:
            own.notes.append(f"was not translated again with what it has to have: {error}")
            continue
        if error is not None:
            own.failure = str(error)
            continue
        found = [part for part in parts if isinstance(part, Translation)]
        each = zip(found, layout, strict=True)
        own.target = spaced("".join(part.text.strip() if isinstance(at, Piece) else part.text for part, at in each))
        aligned = [part.alignment for part in found if part.alignment is not None]
        own.parts = aligned if own.aligned and len(aligned) == len(found) else None


def _kept(part: str | Piece) -> Translation:
    """Return a part that stays as it is."""
    text = part if isinstance(part, str) else ""
    return Translation(text, TokenAlignment.of_same(text))


def _between(literals: Sequence[str], source: str) -> list[str]:
    """Cut a text at its literals, which are parts of their own."""
    longest_first = sorted(set(literals), key=len, reverse=True)
    return re.split(f"({'|'.join(map(re.escape, longest_first))})", source)


def _reports(own: _Sentence, place: str) -> list[str]:
    about = f"{place}: {_quoted(own.source)}"
    if own.failure is not None:
        return [f"{about} was not translated: {own.failure}"]
    notes = [f"{about} {note}" for note in own.notes]
    notes += [f"{about} lost {part}" for part in missing_parts(own.literals, own.target)]
    notes += [f"{about} lost the number {number}" for number in missing_numbers(own.source, own.target)]
    notes += [f"{about} lacks {term.shown} of the glossary" for term in own.terms if not term.is_in(own.target)]
    return notes


def _quoted(text: str) -> str:
    return f'"{text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"}"'


def _joined(
    passage: Passage, sentences: Sequence[_Sentence], translations: Mapping[str, str], reports: list[str]
) -> NewText:
    """Join the translated sentences of a passage, and move its marks. Those that are left out are reported."""
    if all(own.target == own.source for own in sentences):
        return NewText(passage.text, passage.marks)
    parts: list[Part] = []
    new, end = "", 0
    for own in sentences:
        gap = passage.text[end : own.begin]
        new += gap if "\n" not in gap or not parts else " "
        words = None
        if own.parts is not None:
            words = WordAlignment(passage.text[own.begin : own.end], own.target, own.parts)
        parts.append(Part(own.begin, own.end, len(new), len(new) + len(own.target), words))
        new += own.target
        end = own.end
    new += passage.text[end:]
    marks, left_out = moved_marks(passage.text, passage.marks, new, parts, translations)
    for mark in left_out:
        about = f"{passage.place}: {_quoted(spaced(passage.text[mark.begin : mark.end]))}"
        reports.append(f"{about} lost its markup {mark.opening}, which has no place in the translation")
    return NewText(_wrapped(new, passage.text), marks)


def _wrapped(new: str, text: str) -> str:
    """Break a text into lines no longer than those of another one, if that has several. No character is added."""
    lines = text.strip().split("\n")
    if len(lines) == 1:
        return new
    width, signs = max(map(len, lines)), list(new)
    begin, last = 0, -1
    for place, sign in enumerate([*signs, " "]):
        if sign == "\n":
            begin, last = place + 1, -1
        elif sign == " ":
            if place - begin > width and last >= begin:
                signs[last], begin = "\n", last + 1
            last = place
    return "".join(signs)
