"""HTML: the texts of its elements, with inline tags inside them.

No parser that rewrites the file would keep its bytes, so the file is cut into tags, comments and text by one expression
each, as the HTML standard's tokenizer cuts it. It takes time in proportion to the length, whatever the file has.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator

from tightbeam.deploy.documents.format import Format, decoded
from tightbeam.deploy.documents.formats._inline import InlineText
from tightbeam.deploy.documents.passages import Document, cut_document, line_numbers

__all__ = ["FORMAT", "has_tags", "read_html"]

TOKEN = re.compile(
    r"""
    <!--(?:>|->|(?s:.*?)(?:-->|--!>|\Z))                                            # a comment
    | <(?P<end>/)?(?P<name>[a-zA-Z][^\s/>]*+)
      (?:[^>=]++|=\s*+(?:"[^"]*+(?:"|\Z)|'[^']*+(?:'|\Z))?+)*+(?:>|\Z)              # a tag
    | <[!?/][^>]*+(?:>|\Z)                                                          # a declaration
    """,
    re.VERBOSE,
)
RAW = ("script", "style", "xmp", "iframe", "noembed", "noframes", "textarea")
"""Elements whose content is plain text, which stays as it is."""
KEPT = ("pre", "code", "kbd", "samp", "var", "math", "svg", "template")
"""Elements whose content stays."""
INLINE = frozenset(
    "a abbr acronym b bdi bdo big cite code data del dfn em font i ins kbd label mark q s samp small span strike "
    "strong sub sup time tt u var".split()
)
POINTS = frozenset(("img", "wbr", "embed"))
"""Inline elements without content. All other elements end a text."""
IN_TEXTS = INLINE | POINTS | frozenset("br div h1 h2 h3 h4 h5 h6 hr li ol p pre table td th tr ul".split())
"""Elements by which a text that may be HTML is known."""
MOST_ATTRIBUTES = 2000
"""Characters of a tag in which NO is looked for."""
NO = re.compile(r"""\stranslate\s*+=\s*+["']?no\b|\sclass\s*+=\s*+["']?(?:[^"'>]*\s)?notranslate\b""", re.IGNORECASE)


LONG_REFERENCE = re.compile(r"&#[0-9]{100,};?")
"""A reference by more digits than the number of any character has."""


def read(data: bytes) -> Document:
    """Read HTML. Scripts, styles, code and what is marked with translate=no stay."""
    source, encode = decoded(data)
    return read_html(source, line_numbers(source), encode)


def has_tags(text: str) -> bool:
    """True for a text with a tag of HTML that may stand in a text. Neither ``<name>`` nor ``a <b`` has one."""
    tags = (match for match in TOKEN.finditer(text) if match.group().endswith(">"))
    return any((match.group("name") or "").lower() in IN_TEXTS for match in tags)


def read_html(source: str, place: Callable[[int], str], encode: Callable[[str], bytes] = str.encode) -> Document:
    """Return the document of HTML, or of a piece of it.

    Parameters
    ----------
    source
        The content.
    place
        Names the line of a character.
    encode
        Makes bytes of the content.
    """
    inline = InlineText(source, place)
    for token in _tokens(source):
        name, begin, end, kind = token
        if kind == "text":
            _add_text(inline, source, begin, end)
        elif kind == "literal":
            inline.text(begin, end, _unescaped(source[begin:end]), literal=True)
        elif kind == "point":
            inline.point(begin, end)
        elif kind == "open":
            inline.open(name, begin, end)
        elif kind == "close":
            inline.close(name, begin, end)
        else:
            inline.finish()
    inline.finish()
    return cut_document(source, inline.slots, encode, lambda text: html.escape(text, quote=False))


def _add_text(inline: InlineText, source: str, begin: int, end: int) -> None:
    raw = source[begin:end]
    inline.text(begin, end, _unescaped(raw) if "&" in raw else None)


def _unescaped(raw: str) -> str:
    """Return a text without references to characters. Python refuses to read thousands of digits of one."""
    return html.unescape(LONG_REFERENCE.sub("\N{REPLACEMENT CHARACTER}", raw))


def _tokens(source: str) -> Iterator[tuple[str, int, int, str]]:
    """Yield name, begin, end and kind of each part: text, literal, point, open, close, break."""
    place = 0
    while place < len(source):
        match = TOKEN.search(source, place)
        if match is None:
            yield "", place, len(source), "text"
            return
        if place < match.start():
            yield "", place, match.start(), "text"
        place = match.end()
        name = (match.group("name") or "").lower()
        if not name:
            yield "", *match.span(), "point" if match.group().startswith("<!--") else "break"
            continue
        is_end, empty = match.group("end") is not None, match.group().endswith("/>")
        if not is_end and (name in RAW or name in KEPT or NO.search(match.group()[:MOST_ATTRIBUTES])) and not empty:
            inner = place
            place = _end_of(source, place, name, nested=name not in RAW)
            if name not in INLINE:
                yield name, match.start(), place, "break"
                continue
            yield name, *match.span(), "open"
            closing = source.rfind("<", inner, place) if place > inner else place
            closing = closing if closing >= 0 and source[closing : closing + 2] == "</" else place
            if "<" in source[inner:closing]:
                yield "", inner, closing, "point"
            elif inner < closing:
                yield "", inner, closing, "literal"
            yield name, closing, place, "close"
            continue
        kind = "point" if name in POINTS else "break"
        if name in INLINE:
            kind = "close" if is_end else "open"
        yield name, *match.span(), kind


def _end_of(source: str, place: int, name: str, *, nested: bool) -> int:
    """Return the place behind the end of an element, or the end of the file."""
    depth = 1
    for match in re.compile(rf"<(/?){re.escape(name)}(?=[\s/>])[^>]*+(?:>|\Z)", re.IGNORECASE).finditer(source, place):
        depth += -1 if match.group(1) else nested
        if not depth:
            return match.end()
    return len(source)


FORMAT = Format("html", (".html", ".htm", ".xhtml"), read)
