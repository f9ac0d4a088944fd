"""PO files of gettext, read by polib: entries without a translation get one; the others, and all comments, stay.

A text with tags of HTML is a piece of HTML: its tags are moved, and a line break of HTML ends a text.
"""

from __future__ import annotations

from collections.abc import Sequence

from tightbeam.deploy.documents.format import Format, decoded
from tightbeam.deploy.documents.formats.html import has_tags, read_html
from tightbeam.deploy.documents.passages import Document, NewText, Passage
from tightbeam.deploy.documents.sentences import INSTALL
from tightbeam.deploy.errors import InputError, first_line

__all__ = ["FORMAT"]

MOST_ENTRIES = 100_000
"""Bound on the entries of a file."""
MOST_LINES = 4096
"""Bound on the lines of an entry. polib joins them one by one: 100,000 took 2.6 s, 200,000 took 12 s."""


def read(data: bytes) -> Document:
    """Read a PO file. Raises InputError for one that polib cannot read, or if polib is missing."""
    source, _ = decoded(data)
    try:
        import polib
    except ImportError:
        raise InputError(f"PO documents need polib, which is missing; {INSTALL}") from None
    if source.count("msgid") > 3 * MOST_ENTRIES:
        raise InputError(f"the document has more than {MOST_ENTRIES:,} entries; cut it into several")
    _check_lines(source)
    try:
        file = polib.pofile(f"{source.rstrip()}\n", wrapwidth=78)
    except (OSError, ValueError, IndexError, KeyError) as error:
        raise InputError(f"the document is no PO file ({first_line(error)}); mend it, or pass another format") from None
    entries = [entry for entry in file if not entry.translated() and not entry.obsolete and not entry.fuzzy]
    read_texts = []
    for entry in entries:
        texts = [entry.msgid, entry.msgid_plural] if entry.msgid_plural else [entry.msgid]
        read_texts.append([_read_text(text, f"line {entry.linenum}") for text in texts])
    passages = [passage for each in read_texts for own in each for passage in own.passages]

    def write(texts: Sequence[NewText]) -> bytes:
        left = iter(texts)
        for entry, each in zip(entries, read_texts, strict=True):
            first, *more = (own.write([next(left) for _ in own.passages]).decode() for own in each)
            if more:
                (plural,) = more
                forms = sorted(entry.msgstr_plural) or [0, 1]
                entry.msgstr_plural = {number: plural if number else first for number in forms}
            else:
                entry.msgstr = first
        return f"{file}\n".encode()

    return Document(passages, write)


def _read_text(text: str, place: str) -> Document:
    """Read a text of an entry."""
    if has_tags(text):
        return read_html(text, lambda _: place)
    return Document([Passage(text, place)], lambda texts: texts[0].text.encode())


def _check_lines(source: str) -> None:
    """Raise InputError if an entry, which ends at an empty line or before the next ``msgid``, has too many lines."""
    begin = 0
    for number, line in enumerate(source.split("\n")):
        if not line.strip():
            begin = number + 1
        elif line.startswith(("msgid ", "#~ msgid ")):
            begin = number
        elif number - begin >= MOST_LINES:
            raise InputError(f"line {begin + 1} begins an entry of more than {MOST_LINES:,} lines; shorten it")


FORMAT = Format("po", (".po", ".pot"), read)
