"""Word documents (.docx), read by python-docx: paragraphs of the body, of tables, headers and footers.

Runs, which have the formatting of a paragraph's parts, are moved like inline tags, but for those formatted as its
longest run. Paragraphs with links, fields, changes, images or notes are left, and named.
"""

from __future__ import annotations

import copy
import io
import zipfile
from collections.abc import Iterator, Sequence
from typing import Any

from tightbeam.deploy.documents.format import Format, check_size
from tightbeam.deploy.documents.passages import Document, Mark, NewText, Passage
from tightbeam.deploy.documents.sentences import INSTALL
from tightbeam.deploy.errors import InputError, first_line

__all__ = ["FORMAT"]

MOST_UNPACKED, MOST_PARTS = 1 << 27, 4096
"""Bounds of the archive: bytes of all its parts as they are unpacked, and parts."""
MOST_TAGS = 1 << 21
"""Tags of all parts: each takes memory, and a paragraph or run some 0.03 ms."""
ALLOWED = ("pPr", "r", "bookmarkStart", "bookmarkEnd", "proofErr", "permStart", "permEnd")
"""Parts of a paragraph whose text is translated."""
MOST_RUNS = 1000
"""Runs of a paragraph; of more it is left."""
READ = 1 << 16
"""Bytes of a part that are read at a time. A declaration of entities is looked for in the first ones."""


def read(data: bytes) -> Document:
    """Read a Word document. Raises InputError for another file, for one that unpacks to too much, or for entities."""
    try:
        import docx
    except ImportError:
        raise InputError(f"Word documents need python-docx, which is missing; {INSTALL}") from None
    _check(data)
    try:
        file = docx.Document(io.BytesIO(data))
        paragraphs = list(_paragraphs(file))
    except Exception as error:  # of zipfile, lxml and python-docx
        raise InputError(f"the document is no Word document ({first_line(error)}); save it as .docx again") from None
    kept: list[tuple[Any, Passage]] = []
    notes = []
    for number, paragraph in enumerate(paragraphs, start=1):
        place = f"paragraph {number}"
        passage = _passage(paragraph, place)
        if passage is not None and passage.text.strip():
            kept.append((paragraph, passage))
        elif passage is None and paragraph.text.strip():
            what = "links, fields, changes, images or notes" if len(paragraph.runs) <= MOST_RUNS else "too many runs"
            notes.append(f"{place} has {what}, and is left")

    def write(texts: Sequence[NewText]) -> bytes:
        for (paragraph, passage), new in zip(kept, texts, strict=True):
            if new.text != passage.text:
                _replace(paragraph, new)
        out = io.BytesIO()
        file.save(out)
        return out.getvalue()

    return Document([passage for _, passage in kept], write, notes)


def _check(data: bytes) -> None:
    """Raise InputError for an archive that is broken, or beyond the bounds."""
    check_size(data)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            parts = archive.infolist()
            if len(parts) > MOST_PARTS:
                raise InputError(f"the document has more than {MOST_PARTS:,} parts, which no Word document needs")
            if sum(part.file_size for part in parts) > MOST_UNPACKED:
                raise InputError(f"the document unpacks to more than {MOST_UNPACKED:,} bytes; leave large images out")
            tags = 0
            for part in parts:
                with archive.open(part) as file:
                    head = file.read(READ).replace(b"\0", b"")  # UTF-16, too
                    if part.filename.endswith((".xml", ".rels")) and (b"<!DOCTYPE" in head or b"<!ENTITY" in head):
                        raise InputError(f"{part.filename[:80]} of the document declares entities, and is not read")
                    tags += head.count(b"<")
                    while tags <= MOST_TAGS and (piece := file.read(READ)):
                        tags += piece.count(b"<")
                if tags > MOST_TAGS:
                    raise InputError(f"the document has more than {MOST_TAGS:,} tags; cut it into several")
    except InputError:
        raise
    except Exception as error:  # of zipfile, and of the compressions that it reads
        raise InputError(f"the document is no Word document ({first_line(error)}); save it as .docx again") from None


def _paragraphs(file: Any) -> Iterator[Any]:
    """Yield the paragraphs of the body, of tables, headers and footers, each once."""
    from docx.text.paragraph import Paragraph

    seen = set()
    roots = [file.element.body]
    for section in file.sections:
        for part in (section.header, section.footer):
            if not part.is_linked_to_previous:
                roots.append(part._element)
    for root in roots:
        for element in root.iter(f"{{{root.nsmap['w']}}}p"):
            if element not in seen:
                seen.add(element)
                yield Paragraph(element, file)


def _passage(paragraph: Any, place: str) -> Passage | None:
    """Return the text of a paragraph whose runs are text alone; None for any other."""
    runs = paragraph.runs
    if len(runs) > MOST_RUNS or any(_name(child) not in ALLOWED for child in paragraph._element):
        return None
    if any(_name(child) not in ("rPr", "t", "lastRenderedPageBreak") for run in runs for child in run._element):
        return None
    texts = ["".join(child.text or "" for child in run._element if _name(child) == "t") for run in runs]
    formats = [_formatting(run) for run in runs]
    usual = max(zip(texts, formats, strict=True), key=lambda each: len(each[0]), default=("", ""))[1]
    marks, begin = [], 0
    for number, text in enumerate(texts):
        end = begin + len(text)
        if end > begin and formats[number] != usual:
            marks.append(Mark(begin, end, str(number), "/"))
        begin = end
    return Passage("".join(texts), place, tuple(marks))


def _name(element: Any) -> str:
    return str(element.tag).rpartition("}")[2]


def _formatting(run: Any) -> str:
    return "" if run._element.rPr is None else str(run._element.rPr.xml)


def _replace(paragraph: Any, new: NewText) -> None:
    """Write a text into the runs of its marks, and between them into copies of the longest run."""
    runs = list(paragraph.runs)
    usual = max(runs, key=lambda run: len(run.text))
    made, end = [], 0
    for mark in [*new.marks, Mark(len(new.text), len(new.text), "")]:
        if end < mark.begin:
            between = copy.deepcopy(usual._element)
            made.append((between, new.text[end : mark.begin]))
        if mark.opening:
            made.append((runs[int(mark.opening)]._element, new.text[mark.begin : mark.end]))
        end = mark.end
    first = runs[0]._element
    place = first.getparent().index(first)
    for run in runs:
        run._element.getparent().remove(run._element)
    for number, (element, text) in enumerate(made):
        element.text = text
        paragraph._element.insert(place + number, element)


FORMAT = Format("docx", (".docx",), read, binary=True)
