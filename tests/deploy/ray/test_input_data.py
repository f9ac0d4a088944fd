"""Files and folders as partitions: every line once, whatever its bytes, and files that cannot be run."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tightbeam.deploy import InputError
from tightbeam.deploy.ray import lines as lines_module
from tightbeam.deploy.ray.input_data import cut, find_files
from tightbeam.deploy.ray.lines import read_lines
from tightbeam.deploy.ray.partition import FieldNames, Partition


def partitions(*sources: Path, rows_each: int = 3, ids: bool = False) -> list[Partition]:
    made = cut(find_files([str(source) for source in sources], FieldNames(), ids=ids, rows_each=rows_each), rows_each)
    return [Partition.from_json(partition.to_json()) for partition in made]


def read(partition: Partition) -> list[bytes]:
    return read_lines(partition, FieldNames())[0]


@settings(deadline=None)
@given(st.lists(st.binary(max_size=9).map(lambda line: line.replace(b"\n", b"")), max_size=40), st.integers(1, 9))
def test_every_line_is_in_one_partition(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], rows_each: int
) -> None:
    """Chunks of the file may end anywhere, and the last line may have no end."""
    file = tmp_path_factory.mktemp("lines") / "a.txt"
    file.write_bytes(b"\n".join([b"a text", *lines]))
    expected = len([b"a text", *lines]) - (bool(lines) and lines[-1] == b"")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines_module, "CHUNK_BYTES", 7)
        made = partitions(file, rows_each=rows_each)
    assert [part.first for part in made] == list(range(1, expected + 1, rows_each))
    assert [part.index for part in made] == list(range(len(made)))
    found = [source for part in made for source in read(part)]
    assert len(found) == expected == sum(part.rows for part in made)
    assert found == [b"a text", *lines][:expected]


def test_json_lines_have_a_text_and_a_key(tmp_path: Path) -> None:
    """Other fields are left out, unless they are settings; a line that cannot be run is left as it is."""
    file = tmp_path / "a.jsonl"
    rows = ['\ufeff{"text": "one", "id": 7, "num_beams": 2}', '{"id": 8}', "[1]", "", '{"text": null, "x": 1}']
    file.write_text("\n".join(rows), "utf-8")
    (part,) = partitions(file, rows_each=9)
    assert read_lines(part, FieldNames("text", "id")) == (
        [b'{"text": "one"}', b'{"id": 8}', b"[1]", b"", b'{"text": null}'],
        [7, 8, None, None, None],
    )
    lines, keys = read_lines(part, FieldNames("text", "id", settings=True))
    assert lines[0] == b'{"text": "one", "num_beams": 2}' and lines[4] == b'{"text": null, "x": 1}' and keys[0] == 7
    assert read_lines(part, FieldNames("text", "text"))[0][0] == b'{"text": "one"}'
    assert read_lines(part, FieldNames("text", None, settings=True))[0] == [row.encode() for row in rows]


def test_a_folder_is_read_at_any_depth(tmp_path: Path) -> None:
    for name in ("b.txt", "a/z.TXT", "a/b/c.jsonl", "_SUCCESS", ".crc/d.txt", "a/_temporary/e.bin", "a/empty.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("" if "empty" in name else '{"text": "a"}\n')
    made = partitions(tmp_path)
    assert [(part.file, part.kind) for part in made] == [
        ("a/b/c.jsonl", "json-lines"),
        ("a/z.TXT", "text"),
        ("b.txt", "text"),
    ]
    assert all(Path(part.path).is_absolute() for part in made)


def test_a_file_that_shrinks_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("one\ntwo\n")
    (part,) = partitions(file)
    file.write_text("one\n")
    with pytest.raises(InputError, match="has changed while it was run"):
        read(part)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (None, b"", "there is no file or folder"),
        ("a.csv", b"a,b", "unknown kind"),
        ("a.txt", b"\x00\xff" * 20, "holds binary data"),
        ("a.txt", b"\xff\xfe\n" * 20, "none of the first 10 lines"),
        ("a.txt", b"", "has no rows"),
        ("a.jsonl", b"text\n" * 10, "none of the first 10 lines of .* is a JSON object with the field 'text'"),
        ("a.jsonl", b'{"body": 1}\n' * 20, "with the field 'text'; name the field with --text-field"),
    ],
)
def test_errors(tmp_path: Path, name: str | None, content: bytes, message: str) -> None:
    source = tmp_path / (name or "missing")
    if name is not None:
        source.write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        partitions(source)
    assert "\n" not in str(caught.value)


def test_two_files_of_one_name(tmp_path: Path) -> None:
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.txt").write_text("a\n")
    with pytest.raises(InputError, match=r"would both be called a\.txt"):
        partitions(tmp_path / "x", tmp_path / "y")
    with pytest.raises(InputError, match="has no files"):
        (tmp_path / "empty").mkdir()
        partitions(tmp_path / "empty")
    with pytest.raises(InputError, match="does not read standard input"):
        find_files(["-"], FieldNames(), ids=False, rows_each=1)
