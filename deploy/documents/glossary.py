"""Terms whose translation is given, which is forced where the source term occurs."""

from __future__ import annotations

import csv
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tightbeam.deploy.errors import InputError, short_repr
from tightbeam.deploy.text.scripts import UNSPACED

__all__ = [
    "FORCED",
    "FORCING_BEAMS",
    "ForcedWords",
    "Glossary",
    "Term",
    "glossary_of_pairs",
    "pairs_of",
    "read_glossary",
    "read_terms",
]

FORCED = "force_words_ids"
FORCING_BEAMS = 4
"""Beams with which words are forced if nobody asks for a number of them."""
ForcedWords: TypeAlias = tuple[tuple[tuple[int, ...], ...], ...]
"""Words as ``force_words_ids``: for each word the token ids of its forms."""
MOST_BYTES, MOST_TERMS, MOST_FORMS, LONGEST = 1 << 22, 10_000, 64, 200
"""Bounds of a glossary: bytes, terms, forms of a term, characters of a form."""
WITHOUT_EDGES = (*UNSPACED, "HANGUL")
"""Scripts in which no space parts a word from the next one or from its particles."""


@dataclass(frozen=True)
class Term:
    """A term and its translation.

    Attributes
    ----------
    source, target : tuple of str
        Its forms in the language of the text and in that of the translation.
    """

    source: tuple[str, ...]
    target: tuple[str, ...]

    @property
    def shown(self) -> str:
        """The term in a report: "house -> Haus|Häuser"."""
        return f"{'|'.join(self.source)} -> {'|'.join(self.target)}"

    def is_in(self, translation: str) -> bool:
        """True if a translation has one of the forms, in any case of letters."""
        return re.search(_pattern(self.target), translation, re.IGNORECASE) is not None


class Glossary:
    """The terms of a file.

    Parameters
    ----------
    terms
        The terms.
    encode
        Returns the token ids of an output text, without special tokens.
    decode
        Returns the text of token ids.
    """

    def __init__(
        self, terms: Sequence[Term], encode: Callable[[str], list[int]], decode: Callable[[Sequence[int]], str]
    ) -> None:
        self._encode, self._decode = encode, decode
        self._by_form: Mapping[str, Term] = {form.casefold(): term for term in terms for form in term.source}
        self._tokens: dict[tuple[Term, bool], tuple[tuple[int, ...], ...]] = {}

    def terms_in(self, text: str) -> list[Term]:
        """Return the terms that occur in a text, in their order, each once; of terms that overlap the longer one."""
        folded = text.casefold()
        forms = [form for form in self._by_form if form in folded]  # a pattern of all would take far longer
        if not forms:
            return []
        matches = re.finditer(_pattern(forms), text, re.IGNORECASE)
        found = (self._by_form.get(match.group().casefold()) for match in matches)
        return list(dict.fromkeys(term for term in found if term is not None))

    def forced(self, terms: Sequence[Term], text: str) -> ForcedWords:
        """Return the words to force for those of ``terms`` that occur in a text, if the tokenizer can write them."""
        own = [term for term in self.terms_in(text) if term in terms]
        words = (self._forms(term, begins=_begins(term, text)) for term in own)
        return tuple(word for word in words if word)

    def _forms(self, term: Term, *, begins: bool) -> tuple[tuple[int, ...], ...]:
        """Return the token ids of the forms of a term's translation. A form that begins another one stands for both."""
        if (term, begins) not in self._tokens:
            forms = [*term.target, *(form[0].upper() + form[1:] for form in term.target if begins)]
            rows = {tuple(row) for form in forms for row in self._rows(form)}
            kept = sorted(row for row in rows if row and not any(row[:end] in rows for end in range(1, len(row))))
            self._tokens[term, begins] = tuple(kept)
        return self._tokens[term, begins]

    def _rows(self, form: str) -> Iterator[list[int]]:
        """Yield the token ids of a form at the beginning of a text and behind a space, if they decode to the form."""
        for given in (form, f" {form}"):
            row = self._encode(given)
            if self._decode(row).strip() == form:
                yield row


def read_glossary(
    data: bytes, name: str, encode: Callable[[str], list[int]], decode: Callable[[Sequence[int]], str]
) -> Glossary:
    """Read a glossary, as `read_terms` does. ``encode`` and ``decode`` are as for `Glossary`. Raises InputError."""
    return Glossary(read_terms(data, name), encode, decode)


def read_terms(data: bytes, name: str) -> list[Term]:
    """Read the terms of a glossary: a term and its translation in each line, between them a tab or a comma.

    Parameters
    ----------
    data
        The content of the file. ``|`` parts the forms of a term, in both columns. Empty lines, and lines that begin
        with ``#``, are left out.
    name
        The file's name, for errors.

    Returns
    -------
    list of Term

    Raises
    ------
    InputError
        The file is not such a table, or too large.
    """
    if len(data) > MOST_BYTES:
        raise InputError(f"{name} has more than {MOST_BYTES:,} bytes, which no glossary needs; pass a smaller one")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{name} is not UTF-8 (byte {error.start}); convert it") from None
    terms: list[Term] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        terms.append(_term(line, f"line {number} of {name}"))
        if len(terms) > MOST_TERMS:
            raise InputError(f"{name} has more than {MOST_TERMS:,} terms; pass the terms of one subject")
    if not terms:
        raise InputError(f"{name} has no term; expected lines such as house,Haus|Häuser")
    return terms


def glossary_of_pairs(
    pairs: Sequence[Sequence[str]], encode: Callable[[str], list[int]], decode: Callable[[Sequence[int]], str]
) -> Glossary:
    """Make a glossary of pairs of a term and its translation, whose forms ``|`` parts.

    Parameters
    ----------
    pairs
        Pairs of texts, at least one.
    encode, decode
        As for `Glossary`.

    Raises
    ------
    InputError
        A pair has no term or no translation, too many forms, or too long ones.
    """
    return Glossary([_of_columns(pair, f"pair {place}") for place, pair in enumerate(pairs, start=1)], encode, decode)


def pairs_of(given: object) -> list[tuple[str, str]]:
    """Return the pairs of a mapping, or of a list of pairs, of terms and their translations.

    Raises InputError if it is neither, or has too many terms.
    """
    pairs = list(given.items()) if isinstance(given, Mapping) else given
    expected = 'pass the name of a file, {"house": "Haus|Häuser"}, or [("house", "Haus|Häuser")]'
    if not isinstance(pairs, (list, tuple)):
        raise InputError(f"glossary={short_repr(given)} is not a list of terms; {expected}")
    if len(pairs) > MOST_TERMS:
        raise InputError(f"the glossary has more than {MOST_TERMS:,} terms; pass the terms of one subject")
    for place, pair in enumerate(pairs, start=1):
        if not isinstance(pair, (list, tuple)) or len(pair) != 2 or not all(isinstance(each, str) for each in pair):
            raise InputError(f"pair {place} of the glossary is {short_repr(pair)}, not two texts; {expected}")
    return [(source, target) for source, target in pairs]


def _term(line: str, place: str) -> Term:
    columns = line.split("\t") if "\t" in line else next(csv.reader([line], skipinitialspace=True))
    if len(columns) != 2:
        raise InputError(
            f"{place} has {len(columns)} columns, expected a term and its translation with a tab or a comma between "
            f"them, such as house,Haus|Häuser; mend {short_repr(line)}"
        )
    return _of_columns(columns, place)


def _of_columns(columns: Sequence[str], place: str) -> Term:
    source, target = (
        tuple(dict.fromkeys(form.strip() for form in column.split("|") if form.strip())) for column in columns
    )
    if not source or not target:
        raise InputError(f"{place} has an empty column; expected a term and its translation, such as house,Haus|Häuser")
    if max(len(source), len(target)) > MOST_FORMS or max(map(len, source + target)) > LONGEST:
        raise InputError(
            f"{place} has more than {MOST_FORMS} forms, or one of more than {LONGEST} characters; shorten it"
        )
    return Term(source, target)


def _pattern(forms: Sequence[str]) -> str:
    """Return a pattern of forms as whole words, the longest first."""
    longest_first = sorted(forms, key=len, reverse=True)
    return "|".join(f"{_edge(form[0], '(?<!')}{re.escape(form)}{_edge(form[-1], '(?!')}" for form in longest_first)


def _edge(sign: str, look: str) -> str:
    return rf"{look}\w)" if sign.isalnum() and not unicodedata.name(sign, "").startswith(WITHOUT_EDGES) else ""


def _begins(term: Term, text: str) -> bool:
    """True if a term begins a text."""
    start = re.match(rf"\W*(?:{_pattern(term.source)})", text, re.IGNORECASE)
    return start is not None
