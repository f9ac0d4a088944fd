"""Bounds of lines: their bytes, the size of their JSON, and hostile settings in them."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from support.bundles.cache import BundleCache
from support.refusals import refusal_of
from tightbeam.deploy import Runner
from tightbeam.deploy.errors import CallerError, InputError
from tightbeam.deploy.generation.fields import FIELDS
from tightbeam.deploy.inputs import lines as inputs_lines
from tightbeam.deploy.inputs.file_lines import named_files
from tightbeam.deploy.inputs.json_line import MOST_MARKS, json_object, json_value, read_json_line
from tightbeam.deploy.inputs.lines import LineFormat, _Reader, parse_ids, read_lines
from tightbeam.deploy.run_model.input_files import InputFiles

NAMES = sorted({own.name for own in FIELDS} | {"generation_config", "truncate", "text", "no_such_setting"})
HOSTILE: dict[str, str] = {
    "2**31": str(2**31),
    "2**70": str(2**70),
    "a number of 9,000 digits": "9" * 9000,
    "-1": "-1",
    "NaN": "NaN",
    "a long text": json.dumps("x" * 10**5),
    "a list of many ids": json.dumps([5] * 10_000),
    "a list of many lists": json.dumps([[5]] * 5000),
    "a deep list": "[" * 900 + "]" * 900,
    "a deeper list": "[" * 60_000,
}


@pytest.fixture(scope="module")
def reader(bundles: BundleCache) -> _Reader:
    runner = Runner.load(bundles("dedup", tokenizer=True), threads=1)
    return _Reader(runner.model, LineFormat(field="text"), {}, 40, 1)


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_settings_of_a_line(reader: _Reader, kind: str) -> None:
    def read(name: str) -> None:
        line = f'{{"text": "a town", "{name}": {HOSTILE[kind]}}}'
        _raise(reader.read((1, line.encode())).failure)

    names = NAMES[list(HOSTILE).index(kind) % 2 :: 2]  # each name meets half of them
    refused = [found for found in (refusal_of(lambda: read(name)) for name in names) if found is not None]  # noqa: B023
    assert len(refused) > len(names) // 2
    for each in refused:
        each.check()


def test_a_line_that_is_too_long_is_refused_and_skipped(monkeypatch: pytest.MonkeyPatch, reader: _Reader) -> None:
    monkeypatch.setattr(inputs_lines, "MOST_TEXT_BYTES", 10)
    file = io.BytesIO(b"a town\n" + b"x" * 10 + b"\n" + b"y" * 35 + b"\n" + b"z" * 11 + b"\nend")
    lines = list(read_lines(file))
    assert lines == [b"a town\n", b"x" * 10 + b"\n", b"y" * 11, b"z" * 11, b"end"]
    refused = reader.read((3, lines[2])).failure
    assert isinstance(refused, CallerError)
    assert str(refused) == "the line has more than 10 bytes; cut it into lines of that at most"
    (found,) = named_files([lines[2]], "an image file")
    assert isinstance(found, InputError) and "more than 10 bytes" in str(found)


def test_a_long_line_of_a_file_is_not_held(tmp_path: Path) -> None:
    path = tmp_path / "lines.txt"
    with path.open("wb") as file:
        file.truncate(inputs_lines.MOST_TEXT_BYTES * 4)
        file.seek(0, io.SEEK_END)
        file.write(b"\nend\n")
    files = InputFiles([str(path)])
    first, last = list(files)
    assert (len(first), last, files.count) == (inputs_lines.MOST_TEXT_BYTES + 1, b"end\n", 2)


MANY: dict[str, str] = {
    '"': "[" + '"ab",' * 70_000 + "1]",
    "{": "[" + "{}," * 20_000 + "1]",
    ":": "{" + ",".join(f'"{number}":1' for number in range(40_000)) + "}",
    "[": "[" * 70_000,
    ",": "[" + "1," * 140_000 + "1]",
}


@pytest.mark.parametrize("value", [json.dumps([5] * 10**6), json.dumps("x" * 10**6), "[" * 10**6, '{"a":' * 10**5])
def test_a_setting_of_a_million_bytes_is_refused(reader: _Reader, value: str) -> None:
    found = refusal_of(
        lambda: _raise(reader.read((1, f'{{"text": "a town", "bad_words_ids": {value}}}'.encode())).failure)
    )
    assert found is not None
    found.check()


def _raise(error: Exception | None) -> None:
    if error is not None:
        raise error


@pytest.mark.parametrize("mark", MOST_MARKS)
def test_json_of_many_parts_is_refused_before_it_is_parsed(mark: str) -> None:
    refused = refusal_of(lambda: json_value(MANY[mark]))
    assert refused is not None and f"marks {mark!r}, expected {MOST_MARKS[mark]:,} at most" in refused.message
    refused.check()
    longest = refusal_of(lambda: json_value('"' + "x" * (1 << 22)))
    assert longest is not None and "characters, expected 4,194,304 at most; shorten it" in longest.message


@pytest.mark.parametrize("mark", MOST_MARKS)
def test_marks_inside_of_texts_do_not_count(mark: str) -> None:
    text = (mark + '\\"\\') * 140_000
    line = json.dumps({"text": text, "num_beams": 2})
    assert read_json_line(line, "text") == (text, {"num_beams": 2})


@pytest.mark.parametrize("text", ['"\\' * 200_000, '"' * 200_000, "\\" * 400_000, '{"a": "' + ",[" * 200_000])
def test_broken_json_of_many_marks_is_refused(text: str) -> None:
    refused = refusal_of(lambda: 1 / 0 if json_object(text) is not None else parse_ids(text))
    assert refused is not None
    refused.check()


def test_the_limits_leave_place_for_long_prompts() -> None:
    ids = [5] * 131_071
    assert parse_ids(json.dumps(ids)) == ids
    messages: list[Any] = [{"role": "user", "content": "x"}] * 4096
    assert json_value(json.dumps(messages)) == messages
