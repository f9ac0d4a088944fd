"""Texts of several lines in lines: nothing is lost, and nothing else is read as an escape."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tightbeam.deploy import InputError
from tightbeam.deploy.inputs.newlines import escaped, kept, spaced, unescaped
from tightbeam.deploy.inputs.result import InputResult


@settings(deadline=None)
@given(st.text(st.sampled_from("\\n\nr\rt\t a\u2028é")))
def test_a_line_has_the_whole_text(text: str) -> None:
    line = escaped(text)
    assert "\n" not in line and "\r" not in line
    assert unescaped(line) == text


def test_ways_to_write_a_text() -> None:
    text = "a\\d\tb\n\nc\r\n"
    assert escaped(text) == r"a\\d" + "\t" + r"b\n\nc\r\n"
    assert kept(text) == text
    assert spaced(text) == "a\\d\tb  c"
    assert InputResult(1, 2, texts=["a\nb", "c"]).as_text(escaped) == "a\\nb\nc"


def test_escapes() -> None:
    assert unescaped(r"a\tb\nc\\nd\r") == "a\tb\nc\\nd\r"
    for line, named in ((r"a\q", r"\q"), ("a\\", "\\")):
        with pytest.raises(InputError) as caught:
            unescaped(line)
        assert str(caught.value) == rf"{named} is not an escape; expected \n, \r, \t, or \\ for a backslash"
