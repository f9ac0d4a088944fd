"""Every format of documents: with the same texts a document keeps its bytes, and hostile ones get one line."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.documents import translate
from tightbeam.deploy.documents.format import MOST_BYTES
from tightbeam.deploy.documents.known_formats import format_of, formats
from tightbeam.deploy.errors import InputError

TEXTUAL = [name for name, each in formats().items() if not each.binary]
SIGNS = {"text": "aB. \n\r\t-*1)\u00a0é\u2028\x0b\x85"}


@pytest.mark.parametrize("kind", TEXTUAL)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_document_keeps_its_bytes(kind: str, data: st.DataObject) -> None:
    source = data.draw(st.text(SIGNS[kind], max_size=120))
    assert translate(source, kind)[0] == source


@pytest.mark.parametrize("kind", TEXTUAL)
@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_byte_order_mark_stays(kind: str, encoding: str) -> None:
    data = "One word.\n".encode(encoding)
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
