"""The picture and the table of docs/benchmarks.md are those of its figures."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools.bench import pictures


def test_the_table_of_the_page_is_current() -> None:
    page = pictures.PAGE.read_text("utf-8")
    changed = pictures.with_table(page, pictures.read_jobs(pictures.FIGURES))
    assert changed == page, "the figures changed: python -m tools.bench.pictures"


def test_a_changed_figure_changes_table_and_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every engine and figure of a job is in both."""
    text = pictures.FIGURES.read_text("utf-8")
    assert text.count("peak_mb = 1577") == 1
    changed, page, picture = tmp_path / "figures.toml", tmp_path / "page.md", tmp_path / "picture.svg"
    changed.write_text(text.replace("peak_mb = 1577", "peak_mb = 1234"), "utf-8")
    page.write_text(pictures.PAGE.read_text("utf-8"), "utf-8")
    monkeypatch.setattr(pictures, "FIGURES", changed)
    pictures.main(picture, page, tmp_path / "forms.svg")
    drawn = picture.read_text("utf-8")
    for engine in pictures.read_jobs(changed)[1]["engines"]:
        peak = f"{engine['peak_mb']:,}"
        assert f"{peak} MB" in drawn
        assert re.search(
            rf"{re.escape(engine['name'])} {engine['precision']}(\*\*)? \| [\d.]+ \| {peak} \|", page.read_text("utf-8")
        )


def test_every_form_of_the_table_is_read() -> None:
    """A model's name stands in its first row alone, and a refused form has no figures."""
    forms = pictures.read_forms(pictures.FORMS_PAGE.read_text("utf-8"))
    assert {"llama", "llama-all", "whisper", "whisper-all", "marian", "marian-all"} <= forms.keys()
    assert "int4" in forms["whisper"] and "int4" not in forms["whisper-all"]
    for model, own in forms.items():
        assert {"int8", "CTranslate2 int8"} <= own.keys(), model
        assert all(0 < megabytes < 10 and 0 < nats < 1 for megabytes, nats in own.values())
    axes = pictures.draw_forms(forms).axes
    assert [axis.get_title(loc="left") for axis in axes] == ["llama", "whisper", "marian"]
    assert [len(axis.get_lines()) for axis in axes] == [10, 5, 6]


def test_a_page_without_the_comments_is_refused() -> None:
    with pytest.raises(SystemExit, match=r"expected one comment <!-- job: \.\.\. --> and its <!-- end -->"):
        pictures.with_table("# Measurements\n", pictures.read_jobs(pictures.FIGURES))
