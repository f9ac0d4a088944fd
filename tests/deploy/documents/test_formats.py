"""Every format of documents: with the same texts a document keeps its bytes, and hostile ones get one line."""

from __future__ import annotations

import io
import re
import time
import zipfile
from collections.abc import Callable
from typing import Any

import docx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.documents import drive, translate
from tightbeam.deploy.documents.format import MOST_BYTES
from tightbeam.deploy.documents.known_formats import format_of, formats
from tightbeam.deploy.documents.marks import Part, moved_marks
from tightbeam.deploy.documents.passages import Mark
from tightbeam.deploy.documents.translation import Translator, translation
from tightbeam.deploy.errors import InputError

TEXTUAL = [name for name, each in formats().items() if not each.binary and name != "po"]
PARTS = {
    "text": [*"aB. \n\r\t-*1)\u00a0é\u2028\x0b\x85"],
    "markdown": [
        *(
            "a",
            "B. ",
            "*",
            "**",
            "_",
            "`",
            "[",
            "]",
            "(",
            "x)",
            "!",
            "\n",
            "\n\n",
            "> ",
            "- ",
            "1. ",
            "# ",
            " ",
            "    ",
            "\t",
        ),
        *(
            "\\",
            "&amp;",
            "<b>",
            "</b>",
            "|",
            "~~",
            "---\n",
            "```",
            "<http://a>",
            "\r\n",
            "é. ",
            "[r]: u\n",
            "|-|-|\n",
            "  \n",
        ),
    ],
    "html": [
        *(
            "a",
            "B. ",
            "<b>",
            "</b>",
            "<p>",
            "</p>",
            "<a x='>'>",
            "<br>",
            "&lt;",
            "&",
            "<",
            "<!--",
            "-->",
            "\n",
            "<script>",
        ),
        *(
            "</script>",
            "<code>",
            "</code>",
            "<pre>",
            "<i",
            "/>",
            '"',
            "=",
            "é. ",
            "<p translate=no>",
            " ",
            "<?x",
            "<![CDATA[",
        ),
    ],
    "subtitles": [
        *(
            "00:00:01,000 --> 00:00:02,000\n",
            "a",
            "B. ",
            "\n",
            "\r\n",
            "- ",
            "<i>",
            "</i>",
            "{\\an8}",
            "1\n",
            " ",
            "NOTE x\n",
        ),
        *("WEBVTT\n\n", "00:01.000 --> 00:02.000 x\n", "BOB: "),
    ],
}
BEGINNINGS = {"subtitles": "1\n00:00:01,000 --> 00:00:02,000\n"}


@pytest.mark.parametrize("kind", TEXTUAL)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_document_keeps_its_bytes(kind: str, data: st.DataObject) -> None:
    parts = data.draw(st.lists(st.sampled_from(PARTS[kind]), max_size=25))
    source = BEGINNINGS.get(kind, "") + "".join(parts)
    assert translate(source, kind)[0] == source


@pytest.mark.parametrize("kind", TEXTUAL)
@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_byte_order_mark_stays(kind: str, encoding: str) -> None:
    data = f"{BEGINNINGS.get(kind, '')}One word.\n".encode(encoding)
    made, _ = translate(data, kind)
    assert made.encode("utf-8", "surrogateescape") == data


@pytest.mark.parametrize("kind", TEXTUAL)
@pytest.mark.parametrize(
    ("data", "said"), [(b"ab\xff", "byte 2 is 0xff"), (b"a" * (MOST_BYTES + 1), "more than"), (b"a\0b", "NUL")]
)
def test_what_is_not_text_is_one_line(kind: str, data: bytes, said: str) -> None:
    with pytest.raises(InputError, match=said) as error:
        formats()[kind].read(data)
    assert "\n" not in str(error.value)


def test_the_format_is_that_of_the_name_or_the_one_asked_for() -> None:
    assert format_of("a.unknown").name == "text"
    assert format_of("a.TXT").name == "text"
    assert format_of("a.md", "text").name == "text"
    with pytest.raises(InputError, match=r"pass one of .*text"):
        format_of("a.txt", "papyrus")


def shout(text: str) -> str:
    """A translation of the same words that leaves the parts that stay alone."""
    return text.upper()


@pytest.mark.parametrize(
    ("source", "made"),
    [
        ("# The *big* town #\n", "# THE *BIG* TOWN #\n"),
        ("Setext\n===\n", "SETEXT\n===\n"),
        ("> One **bold\n> word** here.\n", "> ONE **BOLD\n> WORD** HERE.\n"),
        ("- a\n  1. b\n", "- A\n  1. B\n"),
        ("```py\ncode\n```\n\n    more code\n", "```py\ncode\n```\n\n    more code\n"),
        ("Use `pip x` now.\n", "USE `pip x` NOW.\n"),
        ('A [*link*](http://a.b "t") and ![img](i.png) here\n', 'A [*LINK*](http://a.b "t") AND ![img](i.png) HERE\n'),
        ("A [name] here.\n\n[name]: http://a\n", "A [NAME][name] HERE.\n\n[name]: http://a\n"),
        ("| a | b `c` |\n|---|---|\n| a | a |\n", "| A | B `c` |\n|---|---|\n| A | A |\n"),
        ("one  \ntwo\\\nthree\n", "ONE  \nTWO\\\nTHREE\n"),
        ("<div>\nraw\n</div>\n\nText <b>in</b> it.\n", "<div>\nraw\n</div>\n\nTEXT <b>IN</b> IT.\n"),
        ("---\ntitle: x\n---\nText\n", "---\ntitle: x\n---\nTEXT\n"),
        ("***a*** b ~~c~~\n", "***A*** B ~~C~~\n"),
        ("See <http://a.b> &amp; \\* it.\n", "SEE <http://a.b> &amp; \\* IT.\n"),
    ],
)
def test_markdown(source: str, made: str) -> None:
    assert translate(source, "markdown", shout) == (made, [])


@pytest.mark.parametrize(
    ("source", "new", "lost"),
    [
        ("A *red* __big__ town.\n", "Die *Stadt*.\n", ["big __"]),
        ("A *red* ***big*** town.\n", "Die *Stadt*.\n", ["big *", "big **"]),
        ("A *red* ~~[big](u)~~ town.\n", "Die *Stadt*[](u).\n", ["big ~~"]),
        ("A *red* **big![](i)** town.\n", "Die *Stadt*![](i).\n", ["big **"]),
        ("A *red* <b>big</b> town.\n", "Die *Stadt*<b></b>.\n", []),
    ],
)
def test_markdown_has_no_empty_emphasis(source: str, new: str, lost: list[str]) -> None:
    """Without text inside, its signs are text, or belong to other ones."""
    made, reports = translate(source, "markdown", lambda text: "Die Stadt." if "town" in text else "Stadt")
    quoted = [report.split('"')[1] + report.partition("markup")[2].partition(",")[0] for report in reports]
    assert (made, quoted) == (new, lost)


def test_emphasis_of_markdown_touches_no_space_and_no_other_one() -> None:
    new, left_out = moved_marks(
        "a b c", (Mark(0, 1, "*", "*"), Mark(2, 5, "*", "*")), " xy ", [Part(0, 1, 0, 2), Part(2, 5, 2, 4)], {}
    )
    assert [(mark.begin, mark.end, mark.opening, mark.closing) for mark in new] == [(1, 2, "*", "*"), (2, 3, "", "")]
    assert left_out == [Mark(2, 5, "*", "*")]


@pytest.mark.parametrize(
    ("source", "made"),
    [
        ("<p class='a'>The <b>big</b> town</p>", "<p class='a'>THE <b>BIG</b> TOWN</p>"),
        ("<li>A<li>B<br>c", "<li>A<li>B<br>C"),
        ("<a title='a > b' href=x>link</a>", "<a title='a > b' href=x>LINK</a>"),
        ("a &lt; b &amp; c&nbsp;d < e", "A &lt; B &amp; C D &lt; E"),
        (
            "<script>if (a<b) '</p>'</script>x<style>p {}</style>",
            "<script>if (a<b) '</p>'</script>X<style>p {}</style>",
        ),
        (
            "<pre>a  <b>b</b></pre><p>say <code>x &lt; y</code></p>",
            "<pre>a  <b>b</b></pre><p>SAY <code>x &lt; y</code></p>",
        ),
        ("<p translate=no>stay <p>go</p></p><p>go</p>", "<p translate=no>stay <p>go</p></p><p>GO</p>"),
        ("<!-- a > b -->x<!doctype html>y", "<!-- a > b -->X<!doctype html>Y"),
        (f"x &#{'9' * 5000}; y", "X \ufffd Y"),  # int() refuses so many digits
        ("<p>one <i>two <b>three</b></i></p><p>four</b>", "<p>ONE <i>TWO <b>THREE</b></i></p><p>FOUR</b>"),
        ("<p><b>a</p><p>b</b> c</p>", "<p><b>A</p><p>B</b> C</p>"),
    ],
)
def test_html(source: str, made: str) -> None:
    assert translate(source, "html", shout) == (made, [])


def test_tags_follow_their_words() -> None:
    words = {"The red house is big.": "Das Haus, das rot ist, ist groß.", "red": "rot", "house": "Haus"}
    source = "<p>The <i>red</i> <b>house</b> is big.</p>"
    assert translate(source, "html", words.__getitem__)[0] == "<p>Das <b>Haus</b>, das <i>rot</i> ist, ist groß.</p>"


@pytest.mark.parametrize(
    ("source", "made"),
    [
        (
            "1\n00:00:01,000 --> 00:00:02,000\nOne <i>two</i>\nthree.\n\n2\n00:03,000 --> 00:04,000\n- Hi.\n- Ho.\n",
            "1\n00:00:01,000 --> 00:00:02,000\nONE <i>TWO</i>\nTHREE.\n\n2\n00:03,000 --> 00:04,000\n- HI.\n- HO.\n",
        ),
        (
            "WEBVTT - a\n\nNOTE b\nc\n\nSTYLE\nd\n\nid\n00:01.000 --> 00:02.000 line:0\n<v Bob>Text</v>\n",
            "WEBVTT - a\n\nNOTE b\nc\n\nSTYLE\nd\n\nid\n00:01.000 --> 00:02.000 line:0\n<v Bob>TEXT</v>\n",
        ),
    ],
)
def test_subtitles(source: str, made: str) -> None:
    assert translate(source, "subtitles", shout) == (made, [])


def test_a_file_without_times_is_no_file_of_subtitles() -> None:
    with pytest.raises(InputError, match="no line of times"):
        formats()["subtitles"].read(b"text\n")


HOSTILE = {
    "html": (
        "<",
        "<!--",
        "<a ",
        "<a b='",
        "</a",
        "&",
        "<![",
        "<?",
        "<script>",
        "<a b=c ",
        "<a/",
        "<b>",
        "<code>",
        "<i>x</b>",
    ),
    "markdown": ("[", "*a ", "`", "> ", "- ", "![", "<a ", "_a*", "|", "[a](", "~~", "&", "\\", "**", "``a`"),
    "subtitles": ("<i>", "{\\", "- ", "00:00:01,000 --> 00:00:02,000\n", "00:", "-->", "<", "A:"),
    "text": ("- ", "a ", " \n", "“", "{", "%(", "@", "1 000 ", "https://"),
}


@pytest.mark.parametrize(("kind", "part"), [(kind, part) for kind, parts in HOSTILE.items() for part in parts])
def test_hostile_documents_take_a_time_of_their_length(kind: str, part: str) -> None:
    source = BEGINNINGS.get(kind, "") + part * (20_000 // len(part))
    assert translate(source, kind)[0] == source


PO = """# Header
msgid ""
msgstr ""
"Content-Type: text/plain; charset=UTF-8\\n"
"Plural-Forms: nplurals=2; plural=(n != 1);\\n"

#. note
#: a.py:3
#, python-format
msgid "Hello %(name)s"
msgstr ""

msgctxt "menu"
msgid "done"
msgstr "fertig"

#, fuzzy
msgid "guess"
msgstr "Rat"

msgid "%d file"
msgid_plural "%d files"
msgstr[0] ""
msgstr[1] ""

#~ msgid "old"
#~ msgstr "alt"
"""


def test_po_entries_without_a_translation_get_one() -> None:
    made, reports = translate(PO, "po", lambda text: text.replace("Hello", "Hallo").replace("file", "Datei"))
    wanted = PO.replace('name)s"\nmsgstr ""', 'name)s"\nmsgstr "Hallo %(name)s"').replace(
        "Hello %(name)s", "Hello %(name)s"
    )
    wanted = wanted.replace('msgstr[0] ""', 'msgstr[0] "%d Datei"').replace('msgstr[1] ""', 'msgstr[1] "%d Dateis"')
    assert (made.rstrip("\n"), reports) == (wanted.rstrip("\n"), [])


def test_html_in_a_po_file_is_moved() -> None:
    """``<name>`` stays a part of the text. ``&amp;`` is read as a character only in a text that has tags."""
    source = """msgid ""
msgstr "Content-Type: text/plain; charset=UTF-8\\n"

msgid "Hello <b>old friend</b>, <a href=\\"%s\\">come in</a>"
msgstr ""

msgid "Hello &amp; come in<br>old friend"
msgstr ""

msgid "Hello <name> & old friend &amp;"
msgstr ""

msgid "<b>1 file</b>"
msgid_plural "<b>%d files</b>"
msgstr[0] ""
msgstr[1] ""

msgid "<br>"
msgstr ""

msgid "Hello if a <b"
msgstr ""
"""
    words = {"Hello": "Hallo", "old friend": "alter Freund", "come in": "komm herein", "file": "Datei"}

    def translated(text: str) -> str:
        for word, new in words.items():
            text = text.replace(word, new)
        return text

    made, reports = translate(source, "po", translated)
    found = dict(re.findall(r'^msgid "(.*)"\nmsgstr "(.*)"$', made, re.MULTILINE))
    link = r"<a href=\"%s\">"
    assert found[f"Hello <b>old friend</b>, {link}come in</a>"] == f"Hallo <b>alter Freund</b>, {link}komm herein</a>"
    assert found["Hello &amp; come in<br>old friend"] == "Hallo &amp; komm herein<br>alter Freund"
    assert found["Hello <name> & old friend &amp;"] == "Hallo <name> & alter Freund &amp;"
    assert found["<br>"] == "<br>"
    assert found["Hello if a <b"] == "Hallo if a <b"
    assert 'msgstr[0] "<b>1 Datei</b>"' in made and 'msgstr[1] "<b>%d Dateis</b>"' in made
    assert reports == []


@pytest.mark.parametrize("lines", ["# a\n" * 5000, 'msgid ""\n' + '"a"\n' * 5000])
def test_an_entry_of_a_po_file_has_a_bounded_number_of_lines(lines: str) -> None:
    """polib takes a time of their square."""
    with pytest.raises(InputError, match="begins an entry of more than 4,096 lines"):
        formats()["po"].read(f'msgid "a"\nmsgstr ""\n\n{lines}'.encode())
    assert formats()["po"].read(b'# a\nmsgid "a"\nmsgstr ""\n\n' * 2000).passages


@pytest.mark.parametrize("source", ['msgid "a"\nmsgid "b"\n', "<html>", 'msgstr "a"\n'])
def test_a_broken_po_file_is_one_line(source: str) -> None:
    with pytest.raises(InputError, match="no PO file") as error:
        formats()["po"].read(source.encode())
    assert str(error.value).isprintable()


def word(fill: Callable[[Any], object]) -> bytes:
    document = docx.Document()
    fill(document)
    out = io.BytesIO()
    document.save(out)
    return out.getvalue()


def parts_of(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def translate_word(data: bytes, function: Callable[[str], str]) -> tuple[bytes, list[str]]:
    document = formats()["docx"].read(data)
    made = drive(
        translation(document.passages, Translator("en", lambda text: True)), lambda piece: function(piece.text)
    )
    return document.write(made.texts), [*document.notes, *made.reports]


def fill(document: Any) -> None:
    paragraph = document.add_paragraph("The ")
    paragraph.add_run("red").bold = True
    paragraph.add_run(" house is ")
    paragraph.add_run("big.")
    document.add_heading("A title", 1)
    document.add_table(1, 2).cell(0, 1).text = "A cell"
    document.sections[0].header.paragraphs[0].text = "A header"
    document.add_paragraph("With\ttab")


def test_a_word_document_keeps_its_formatting() -> None:
    data = word(fill)
    same, notes = translate_word(data, str)
    assert parts_of(same) == parts_of(word(fill)) and len(notes) == 1 and "is left" in notes[0]
    words = {"The red house is big.": "Das Haus, das rot ist, ist groß.", "red": "rot"}
    made = docx.Document(io.BytesIO(translate_word(data, lambda text: words.get(text, text.upper()))[0]))
    runs = [(run.text, run.bold) for run in made.paragraphs[0].runs]
    assert runs == [("Das Haus, das ", None), ("rot", True), (" ist, ist groß.", None)]
    assert [each.text for each in made.paragraphs[1:]] == ["A TITLE", "With\ttab"]
    assert made.paragraphs[1].style.name == "Heading 1"
    assert made.tables[0].cell(0, 1).text == "A CELL"
    assert made.sections[0].header.paragraphs[0].text == "A HEADER"


def archive_of(parts: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in parts.items():
            archive.writestr(name, data)
    return out.getvalue()


def test_a_long_word_document_is_read_quickly() -> None:
    """20,000 paragraphs took 5 s of processor time, and take 0.5."""
    data = word(lambda document: document.add_paragraph("A town."))
    whole = parts_of(data)
    body = whole["word/document.xml"]
    paragraph = body[body.index(b"<w:p>") : body.rindex(b"</w:p>") + 6]
    long = archive_of({**whole, "word/document.xml": body.replace(paragraph, paragraph * 20_000)})
    begun = time.thread_time()
    assert len(formats()["docx"].read(long).passages) == 20_000
    assert time.thread_time() - begun < 2.5


def test_hostile_word_documents_are_one_line() -> None:
    good = parts_of(word(fill))
    body = good["word/document.xml"]
    entities = body.replace(b"?>", b'?><!DOCTYPE a [<!ENTITY a "b">]>', 1)
    damaged = archive_of({"a.xml": body, **good})
    begin = damaged.index(b"a.xml") + 5
    damaged = damaged[:begin] + b"\0" + b"\xff" * 4 + damaged[begin + 5 :]
    deep = body.replace(b"<w:body>", b"<w:body>" + b"<w:p>" * 5000 + b"</w:p>" * 5000, 1)
    many = body.replace(b"<w:body>", b"<w:body>" + b"<w:p/>" * (1 << 21), 1)
    for data, said in (
        (b"text", "no Word document"),
        (archive_of({"a": b"b"}), "no Word document"),
        (archive_of({**good, "word/document.xml": body[:500]}), "no Word document"),
        (damaged, "no Word document .*invalid stored block"),
        (archive_of({**good, "word/document.xml": entities}), "declares entities"),
        (archive_of({**good, "word/document.xml": deep}), "no Word document"),
        (archive_of({**good, "word/document.xml": many}), "more than 2,097,152 tags; cut it into several"),
        (archive_of({**good, "bomb.bin": bytes(1 << 27)}), "unpacks to more than"),
        (archive_of({**good, **{f"{number}.bin": b"" for number in range(4100)}}), "more than 4,096 parts"),
    ):
        with pytest.raises(InputError, match=said) as error:
            formats()["docx"].read(data)
        assert str(error.value).isprintable()
