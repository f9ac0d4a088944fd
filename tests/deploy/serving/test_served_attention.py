"""A translator's attention over HTTP: as an output, and for the markup of a text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest

from support.bundles.cache import BundleCache
from support.serving.http_server import http_server
from tightbeam.deploy import Runner
from tightbeam.deploy.documents.alignment import WordAlignment
from tightbeam.deploy.documents.translation import Piece
from tightbeam.deploy.generation.scoring import MOST_ALTERNATIVES
from tightbeam.deploy.serving.http.libretranslate import _rows_together

PAGE = "<p>The <i>old</i> town of <b>Harwick</b> has a bridge.</p>"
ASKED = {"max_new_tokens": 8, "num_beams": 2}


@pytest.fixture(scope="module")
def translator(bundles: BundleCache) -> Path:
    return bundles("dedup", "marian", tokenizer=True)


@pytest.fixture(scope="module")
def web(translator: Path) -> Iterator[httpx.Client]:
    pairs = {"text": ("en", "de")}
    with (
        http_server({"text": translator}, pairs=pairs, max_batch_size=4) as running,
        httpx.Client(base_url=running.url, timeout=60) as made,
    ):
        yield made


def test_markup_is_where_a_runner_puts_it(web: httpx.Client, translator: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []

    class Watched(WordAlignment):
        def place(self, begin: int, end: int) -> tuple[int, int] | None:
            asked.append((begin, end))
            return super().place(begin, end)

    fields = {"q": PAGE, "source": "en", "target": "de", "format": "html"}
    monkeypatch.setattr("tightbeam.deploy.documents.translation.WordAlignment", Watched)
    answer = web.post("/translate", json=fields).json()["translatedText"]
    assert asked == [(4, 7), (16, 23)]
    expected = Runner.load(translator, threads=1).translate_document(PAGE.encode(), document_format="html")
    assert answer == expected.data.decode() and "<i>" in answer and "<b>" in answer


def test_attention_is_an_output(web: httpx.Client, translator: Path) -> None:
    """Numbers of arrays come in one list, of all rows."""
    texts = ["a small town", "the old bridge of a town"]
    how = {**ASKED, "return_attention": True}
    outputs = Runner.load(translator, threads=1).generate_outputs(texts, **how)
    shapes = [own.shape for output in outputs for own in output.attentions or ()]
    T, N = (max(sizes) for sizes in zip(*shapes, strict=True))
    found = np.array(web.post("/generate", json={"TEXT": texts, **how}).json()["ATTENTION"]).reshape(2, T, N)
    for given, output in zip(found, outputs, strict=True):
        assert output.attentions is not None
        (wanted,) = output.attentions
        padded = np.zeros((T, N))
        padded[: wanted.shape[0], : wanted.shape[1]] = wanted
        np.testing.assert_allclose(given, padded, atol=1e-6)
    assert "ATTENTION" not in web.post("/generate", json={"TEXT": texts, **ASKED}).json()


def test_a_request_has_no_more_markup_than_its_attention_may_be() -> None:
    """With 1,024 rows of a request and a long sentence among them, a page was refused."""
    model: Any = SimpleNamespace(manifest=SimpleNamespace(sizes=SimpleNamespace(max_source=512, max_target=512)))
    short, long = Piece("a" * 56, aligned=True), Piece("a" * 2000, aligned=True)
    assert _rows_together(model, [short] * 100) == 100
    assert _rows_together(model, [short] * 200) == MOST_ALTERNATIVES // (64 * 512)
    assert _rows_together(model, [*[short] * 99, long]) == 99
    assert _rows_together(model, [long] * 99) == MOST_ALTERNATIVES // (512 * 512)
    assert _rows_together(model, [Piece("a" * 2000)] * 99) == 99
