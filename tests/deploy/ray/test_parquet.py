"""Parquet in: rows across row groups, and files and columns that cannot be run; the columns of results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tightbeam.deploy import InputError
from tightbeam.deploy.chat.messages import check_messages
from tightbeam.deploy.inputs.result import InputResult
from tightbeam.deploy.ray.input_data import cut, find_files
from tightbeam.deploy.ray.parquet import read_table
from tightbeam.deploy.ray.partition import FieldNames
from tightbeam.deploy.ray.table import with_results

arrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


def written(path: Path, columns: dict[str, Any], **how: Any) -> Path:
    parquet.write_table(arrow.table(columns), path, **how)
    return path


@pytest.mark.parametrize("rows_each", [1, 3, 4, 7, 100])
@pytest.mark.parametrize("group", [1, 4, 100])
def test_every_row_is_in_one_partition(tmp_path: Path, rows_each: int, group: int) -> None:
    texts = [f"text {number}" for number in range(10)]
    file = written(tmp_path / "a.parquet", {"text": texts, "other": texts}, row_group_size=group)
    made = cut(find_files([str(file)], FieldNames(), ids=False, rows_each=rows_each), rows_each)
    assert [value for part in made for value in read_table(part, ["text"]).column(0).to_pylist()] == texts


@pytest.mark.parametrize(
    ("columns", "ids", "message"),
    [
        ({"body": ["a"]}, False, "has no column 'text', its columns are body; pass --text-field"),
        ({"text": [1]}, False, r"column 'text' of a.parquet is int64, expected strings \(pass --ids"),
        ({"text": ["a"]}, True, "is string, expected lists of integers"),
        ({"text": ["a"]}, False, "has no column 'id', its columns are text; pass --key-field"),
    ],
)
def test_errors(tmp_path: Path, columns: dict[str, Any], ids: bool, message: str) -> None:
    file = written(tmp_path / "a.parquet", columns)
    key = "id" if "'id'" in message else None
    with pytest.raises(InputError, match=message):
        find_files([str(file)], FieldNames("text", key), ids=ids, rows_each=9)


def test_a_column_may_hold_messages(tmp_path: Path) -> None:
    rows = [[{"role": "user", "content": "a"}], [{"role": "system", "content": "b", "name": "c"}]]
    file = written(tmp_path / "a.parquet", {"chat": rows})
    fields = FieldNames("chat")
    (part,) = cut(find_files([str(file)], fields, ids=False, rows_each=9), 9)
    assert [check_messages(row) for row in read_table(part, ["chat"]).column(0).to_pylist()] == rows
    with pytest.raises(InputError, match="expected lists of integers"):
        find_files([str(file)], fields, ids=True, rows_each=9)


def test_damaged_files(tmp_path: Path) -> None:
    whole = written(tmp_path / "a.parquet", {"text": ["a text"] * 1000}, use_dictionary=False).read_bytes()
    damaged = tmp_path / "b.parquet"
    for content in (b"", b"PAR1", whole[:-9], b"text\n" * 9):
        damaged.write_bytes(content)
        with pytest.raises(InputError, match=r"b\.parquet cannot be read as Parquet \(.*\); write it again"):
            find_files([str(damaged)], FieldNames(), ids=False, rows_each=9)
    damaged.write_bytes(bytes(len(whole) // 3) + whole[len(whole) // 3 :])  # the footer is whole
    (part,) = cut(find_files([str(damaged)], FieldNames(), ids=False, rows_each=1000), 1000)
    with pytest.raises(InputError, match=r"b\.parquet cannot be decoded"):
        read_table(part, ["text"])


def test_columns_have_their_types_whatever_the_rows_hold() -> None:
    """A table of errors alone is like one of results alone, so that they can be files of one dataset."""
    good = InputResult(1, sequences=[[2, 5]], scores=[-0.5], texts=["five"], cut=3, new_tokens=1, source_tokens=4)
    good.finish_reasons = ["length"]
    bad = InputResult(2, error="empty text")
    rows = arrow.table({"id": [1]})
    first, second = (with_results(rows, [result], "made_") for result in (good, bad))
    assert first.schema == second.schema
    assert arrow.concat_tables([first, second]).to_pylist() == [
        {
            "id": 1,
            "made_text": "five",
            "made_score": -0.5,
            "made_tokens": [2, 5],
            "made_finish_reason": "length",
            "made_source_tokens": 4,
            "made_new_tokens": 1,
            "made_error": None,
            "made_truncated": True,
        },
        {
            "id": 1,
            "made_text": None,
            "made_score": None,
            "made_tokens": None,
            "made_finish_reason": None,
            "made_source_tokens": 0,
            "made_new_tokens": 0,
            "made_error": "empty text",
            "made_truncated": False,
        },
    ]


def test_several_sequences() -> None:
    result = InputResult(1, 2, sequences=[[1], [2]], scores=[-1.0, float("-inf")], texts=["a", "b"])
    result.finish_reasons = ["length", "end_token"]
    (row,) = with_results(arrow.table({"id": [1]}), [result]).to_pylist()
    assert row["finish_reasons"] == ["length", "end_token"]
    assert (row["text"], row["texts"], row["scores"], row["sequences"]) == ("a", ["a", "b"], [-1.0, None], [[1], [2]])
