"""Fuzzing of documents of every format and of glossaries; what is accepted is translated and written."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from dataclasses import replace

import docx
import numpy as np
import pytest
from hypothesis import strategies as st

from support.documents import drive
from support.fuzzing import bytes_like, corpus, fuzz
from tightbeam.deploy.documents.alignment import TokenAlignment
from tightbeam.deploy.documents.glossary import Glossary, read_glossary
from tightbeam.deploy.documents.known_formats import formats
from tightbeam.deploy.documents.translation import Piece, Translation, Translator, translation

pytestmark = [pytest.mark.slow, pytest.mark.fuzz]
VALID = {
    "text": [
        "One here. Two\nthere.\n\n   * Item one.\n   1) Item two. And more, with https://a.org/b?c=d and %(n)d.\n",
        "A house {name} of 1,000 m.\r\n\r\nLast\r\n",
    ],
    "markdown": [
        "---\na: b\n---\n# The *big* town #\n\n> One **bold\n> word** here `code`.\n\n- [*l*](h://a 't') ![i](p)\n",
        "| a | b `c` |\n|---|---|\n| ~~a~~ | <b>a</b> |\n\nA [name] &amp; \\* here  \nof\\\nit.\n\n[name]: http://a\n",
    ],
    "html": [
        "<!DOCTYPE html><p class='a'>The <b>big</b> t &lt; &copy;<br>two<script>if (a<b) '</p>'</script><pre>x</pre>",
        "<!-- c --><li>A<li translate=no>B<a title='a > b' href=x>link <i>of</i></a><code>c</code><img src=x>",
    ],
    "subtitles": [
        "WEBVTT\n\nNOTE x\n\n00:01.000 --> 00:02.000 align:left\n<v Bob>- One <i>here</i>.\n- Two.\n",
        "1\n00:00:01,000 --> 00:00:02,000\nBOB: One\n{\\an8}two.\n\n2\n00:00:03,000 --> 00:00:04,000\n>> Three\n",
    ],
    "po": [
        'msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=UTF-8\\n"\n\n#: a.c:1\n#, c-format\n'
        'msgid "One %s"\nmsgstr ""\n',
        '#~ msgid "old"\n#~ msgstr "x"\n\nmsgctxt "c"\nmsgid "one"\nmsgid_plural "two"\nmsgstr[0] ""\nmsgstr[1] ""\n',
    ],
}
GLOSSARIES = ["house,Haus|Häuser\n# note\ntown\tStadt\n", '"a, b",c\nover the moon, x | y\n', "\ufeffé,ü\n家,家屋\n"]


def word_document() -> bytes:
    """A Word document of two runs and a table."""
    file, made = docx.Document(), io.BytesIO()
    paragraph = file.add_paragraph("The house is ")
    paragraph.add_run("big").bold = True
    file.add_table(1, 2).cell(0, 1).text = "A cell. Two."
    file.save(made)
    return made.getvalue()


def repacked(data: bytes, edit: Callable[[bytes], bytes]) -> bytes:
    """Return a Word document of which the text was edited."""
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(made, "w") as new:
        for name in old.namelist():
            new.writestr(name, edit(old.read(name)) if name == "word/document.xml" else old.read(name))
    return made.getvalue()


def translated(kind: str, data: bytes, glossary: Glossary | None = None) -> None:
    """Read a document, translate it with functions in place of a model, and write it."""
    document = formats()[kind].read(data)
    how = Translator("en", lambda text: len(text) <= 300, glossary)
    for function in (_same, _words_turned, _fails, _aligned):
        how = replace(how, gives_attention=function is _aligned)
        made = drive(translation(document.passages, how), function)
        written = document.write(made.texts)
        if function is _same and kind in ("text", "subtitles"):
            assert written == data


def _same(piece: Piece) -> str:
    return piece.text


def _words_turned(piece: Piece) -> str:
    return " ".join(reversed(piece.text.upper().split()))


def _aligned(piece: Piece) -> Translation:
    """Words of both texts attend to one another at random, and their tokens may end where they do not."""
    text = _words_turned(piece)
    draw = np.random.default_rng(len(text))
    ends = [np.cumsum(draw.integers(0, 5, 1 + len(words.split()))).tolist() for words in (piece.text, text)]
    return Translation(text, TokenAlignment(*ends, draw.random((len(ends[1]), len(ends[0])), np.float32)))


def _fails(piece: Piece) -> ValueError:
    return ValueError("no")


@pytest.mark.parametrize("kind", sorted(VALID))
def test_documents(kind: str) -> None:
    glossary = read_glossary(GLOSSARIES[0].encode(), "terms", lambda text: list(text.encode()), _text_of)
    valid = [text.encode() for text in VALID[kind]] + [VALID[kind][0].encode("utf-16")]
    # Signs of markup many times: what a parser takes a square of their number for.
    signs = st.sampled_from(
        [*"*_`[](<>{}&|#-\"'\n\\:=%", "<a ", "<!--", "</", "](", "**", "> ", "msgid ", "-->", "a. "]
    )
    many = st.builds(
        lambda own, times: (own * times)[:60_000].encode(), signs | st.text(max_size=6), st.integers(1, 20_000)
    )
    longer = st.builds(lambda a, b, c: a + b + c, st.sampled_from(valid), many, bytes_like(valid))
    examples = st.one_of(bytes_like(valid), bytes_like(valid), longer)
    fuzz(f"documents-{kind}", examples, lambda data: translated(kind, data, glossary), first=[*valid, *corpus(kind)])


def test_word_documents() -> None:
    whole = word_document()
    with zipfile.ZipFile(io.BytesIO(whole)) as archive:
        text = archive.read("word/document.xml")
    inner = bytes_like([text[-1500:]]).map(lambda tail: repacked(whole, lambda old: old[:-1500] + tail))
    first = [whole, *corpus("docx")]
    fuzz("documents-docx", st.one_of(bytes_like([whole]), inner), lambda data: translated("docx", data), first=first)


def test_glossaries() -> None:
    valid = [text.encode() for text in GLOSSARIES]
    text = "Over the moon a house stands; a, b. é 家"

    def run(data: bytes) -> None:
        glossary = read_glossary(data, "terms.csv", lambda text: list(text.encode()), _text_of)
        terms = glossary.terms_in(text)
        glossary.forced(terms, text)
        assert all(isinstance(term.is_in(text), bool) for term in terms)

    fuzz("glossaries", bytes_like(valid), run, first=[*valid, *corpus("glossaries")])


def _text_of(tokens: object) -> str:
    return bytes(tokens).decode(errors="replace")  # type: ignore[call-overload, no-any-return]
