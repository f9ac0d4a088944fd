"""The pictures and tables of docs/benchmarks.md are those of its figures."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools.bench import pictures


def test_tables_of_the_page_are_current() -> None:
    page = pictures.PAGE.read_text("utf-8")
    changed = pictures.with_tables(page, pictures.read_figures(pictures.FIGURES))
    assert changed == page, "the figures changed: python -m tools.bench.pictures"


def test_a_changed_figure_changes_table_and_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every engine and figure of a job is in both."""
    text = pictures.FIGURES.read_text("utf-8")
    assert text.count("peak_mb = 1577") == 1
    changed, page = tmp_path / "figures.toml", tmp_path / "page.md"
    changed.write_text(text.replace("peak_mb = 1577", "peak_mb = 1234"), "utf-8")
    page.write_text(pictures.PAGE.read_text("utf-8"), "utf-8")
    monkeypatch.setattr(pictures, "FIGURES", changed)
    pictures.main(tmp_path, page)
    job = pictures.read_figures(changed)["job"][1]
    drawn = (tmp_path / "beside-peers.svg").read_text("utf-8")
    for engine in job["engines"]:
        peak = f"{engine['peak_mb']:,}"
        assert f"{peak} MB" in drawn
        assert re.search(
            rf"{re.escape(engine['name'])} {engine['precision']}(\*\*)? \| [\d.]+ \| {peak} \|", page.read_text("utf-8")
        )
    shipped = {path.name for path in pictures.IMAGES.glob("*.svg")}
    assert {path.name for path in tmp_path.glob("*.svg")} <= shipped


def test_a_page_without_the_comments_is_refused() -> None:
    with pytest.raises(SystemExit, match=r"expected one comment <!-- job: \.\.\. --> and its <!-- end -->"):
        pictures.with_tables("# Measurements\n", pictures.read_figures(pictures.FIGURES))
