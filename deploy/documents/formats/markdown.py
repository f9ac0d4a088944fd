"""Markdown (CommonMark, tables, strikethrough), read by markdown-it-py: headings, paragraphs, items and cells.

Code, addresses of links, images, HTML blocks, definitions of links and the metadata before the text stay.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tightbeam.deploy.documents.format import Format, decoded
from tightbeam.deploy.documents.formats._inline import InlineText
from tightbeam.deploy.documents.passages import Document, cut_document, line_numbers
from tightbeam.deploy.documents.sentences import INSTALL
from tightbeam.deploy.errors import InputError

__all__ = ["FORMAT"]

METADATA = re.compile(r"---[ \t]*\n(?s:.*?)\n(?:---|\.\.\.)[ \t]*(?:\n|\Z)")
HTML_TAG = re.compile(r"<(?P<end>/)?(?P<name>[a-zA-Z][\w-]{0,20})")


Found: TypeAlias = tuple[str, int, int, list[Any], int]
"""Name of a rule, begin and end of what it found, tokens that it made, and where the text of a link ends."""
Event: TypeAlias = tuple[int, int, str, str, str]
"""Begin and end, kind, name and closing of markup in a text."""
MOST = 8000
"""Characters of a text with markup: markdown-it-py's time grows with their square if brackets are never closed."""


@dataclass
class _Spans:
    """The findings of markdown-it-py's rules in one text, by the place at which each begins.

    Attributes
    ----------
    state : StateInline or None
        The state whose places count; others are of texts inside images.
    found : list of Found
    """

    state: Any = None
    found: list[Found] = field(default_factory=list)


def read(data: bytes) -> Document:
    """Read Markdown. Raises InputError if markdown-it-py is missing."""
    source, encode = decoded(data)
    spans = _Spans()
    parser = _parser(spans)
    inline = InlineText(source, line_numbers(source))
    lines = [match.span() for match in re.finditer(r"[^\r\n]*(?:\r\n|\r|\n|\Z)", source)]
    metadata = METADATA.match(source.replace("\r\n", "\n"))
    skipped = metadata.group().count("\n") if metadata else 0
    body = source[lines[skipped][0] :] if skipped < len(lines) else ""
    env: dict[str, Any] = {}
    cell = (-1, 0)  # the line of the last cell of a table, and where it ends
    before = ""
    notes: list[str] = []
    for token in parser.parse(body, env):
        in_cell, before = before in ("th_open", "td_open"), token.type
        if token.type != "inline" or not token.content.strip() or token.map is None:
            continue
        first = skipped + token.map[0]
        after = cell[1] if in_cell and cell[0] == first else 0
        placed = _lines_of(source, lines, first, token.content, after, is_cell=in_cell)
        if placed is None or len(token.content) > MOST:
            why = "is not in the file as it is" if placed is None else f"has more than {MOST:,} characters"
            notes.append(f"line {first + 1}: the text {why}, and is left")
            continue
        if in_cell:
            cell = first, placed[-1][1]
        spans.state, spans.found = None, []
        parser.inline.parse(token.content, parser, env, [])
        _add(inline, source, token.content, placed, spans.found)
    return cut_document(source, inline.slots, encode, notes=notes)


def _parser(spans: _Spans) -> Any:
    """Return a parser whose rules of inline markup write down what they find where."""
    try:
        from markdown_it import MarkdownIt
    except ImportError:
        raise InputError(f"Markdown documents need markdown-it-py, which is missing; {INSTALL}") from None
    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    for rule in parser.inline.ruler.__rules__:
        if rule.name != "text":
            rule.fn = _recording(rule.name, rule.fn, spans)
    parser.inline.ruler.__cache__ = None
    parser.core.ruler.disable("inline")  # texts are read one by one, after the blocks
    return parser


def _recording(name: str, rule: Callable[[Any, bool], bool], spans: _Spans) -> Callable[[Any, bool], bool]:
    def run(state: Any, silent: bool) -> bool:
        begin, count = state.pos, len(state.tokens)
        spans.state = state if spans.state is None else spans.state
        if not rule(state, silent):
            return False
        if not silent and state is spans.state:
            label = state.md.helpers.parseLinkLabel(state, begin, True) if name == "link" else -1
            spans.found.append((name, begin, state.pos, state.tokens[count:], label))
        return True

    return run


def _lines_of(
    source: str, lines: list[tuple[int, int]], first: int, content: str, after: int, *, is_cell: bool
) -> list[tuple[int, int]] | None:
    """Return where each line of a content is in the file; None if it is not there as it is."""
    placed = []
    for number, text in enumerate(content.split("\n")):
        begin, end = lines[first + number] if first + number < len(lines) else (0, 0)
        stripped = text.strip()
        place = source.find(stripped, max(begin, after), end) if is_cell else source.rfind(stripped, begin, end)
        if place < 0 or not stripped:
            return None
        placed.append((place, place + len(stripped)))
    return placed


def _add(
    inline: InlineText,
    source: str,
    content: str,
    placed: list[tuple[int, int]],
    found: list[Found],
) -> None:
    """Add the text and the markup of a content."""
    starts, at = [], 0
    for line, (begin, _) in zip(content.split("\n"), placed, strict=True):
        starts.append((at, at + len(line), begin - (len(line) - len(line.lstrip()))))
        at += len(line) + 1

    def place(index: int) -> int:
        """Return the place in the file of a character of the content."""
        start, end, begin = next(each for each in reversed(starts) if each[0] <= index)
        return begin + min(index, end) - start

    newline = source[placed[0][1] : placed[1][0]] if len(placed) > 1 else "\n"
    events = sorted(_events(content, found), key=lambda event: (event[0], event[1]))
    done = 0
    for begin, end, kind, name, closing in events:
        if begin < done:
            continue
        _text(inline, content, place, done, begin)
        where = place(begin), place(end) if end < len(content) else placed[-1][1]
        if kind == "open":
            inline.open(name, *where, closing)
        elif kind == "close":
            inline.close(name, *where)
        elif kind == "literal":
            inline.text(*where, content[begin:end], literal=True)
        elif kind == "point":
            inline.point(*where)
        else:
            inline.finish(newline)
        done = end
    _text(inline, content, place, done, len(content))
    inline.finish(newline)


def _text(inline: InlineText, content: str, place: Callable[[int], int], begin: int, end: int) -> None:
    raw = content[begin:end]
    if not inline.begun:
        begin += len(raw) - len(raw.lstrip())
        raw = raw.lstrip()
    if raw:
        inline.text(place(begin), place(end - 1) + 1, re.sub(r"[ \t]*\n[ \t]*", "\n", raw))


def _events(content: str, found: list[Found]) -> Iterator[Event]:
    """Yield begin, end, kind, name and closing of the markup in a content."""
    for name, begin, end, tokens, label in found:
        made = tokens[-1].type if tokens else ""
        if name == "link":
            closing = content[label:end]
            if closing in ("]", "[]") or closing == "][]":  # the text is the name of the link's definition
                closing = f"][{content[begin + 1 : label]}]"
            yield begin, begin + 1, "open", f"link{begin}", closing
            yield label, end, "close", f"link{begin}", ""
        elif name == "newline" and made == "hardbreak":
            start = begin
            while start and content[start - 1] == " ":
                start -= 1
            yield start, end, "break", "", ""
        elif name == "escape":
            yield begin, end, "break" if made == "hardbreak" else "literal", "", ""
        elif name == "entity" or (name in ("backticks", "autolink") and made not in ("", "text")):
            yield begin, end, "literal", "", ""
        elif name == "image":
            yield begin, end, "point", "", ""
        elif name == "html_inline":
            tag = HTML_TAG.match(content, begin)
            if tag is None or content[begin:end].endswith("/>") or tag.group("name").lower() in ("br", "img", "wbr"):
                yield begin, end, "point", "", ""
            else:
                yield begin, end, "close" if tag.group("end") else "open", f"<{tag.group('name').lower()}", ""
        elif name in ("emphasis", "strikethrough"):
            yield from _delimiters(name, begin, end, tokens)


def _delimiters(name: str, begin: int, end: int, tokens: list[Any]) -> Iterator[Event]:
    """Yield what opens or closes something in a run of delimiters, each token of which stands for one sign, or for two
    of strikethrough. Of two tokens of ``**`` one has the kind."""
    size = 2 if name == "strikethrough" else 1
    at = begin + (end - begin) % size
    for token in tokens[len(tokens) - (end - begin) // size :]:
        kind = token.type.removesuffix("_open").removesuffix("_close")
        first, last = at, at + size
        if token.type == "strong_open":
            first -= 1
        elif token.type == "strong_close":
            last += 1
        if token.type != "text":
            yield first, last, "open" if token.nesting > 0 else "close", kind, ""
        at += size


FORMAT = Format("markdown", (".md", ".markdown", ".mdown"), read)
