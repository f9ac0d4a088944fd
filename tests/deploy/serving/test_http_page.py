"""The page of the HTTP server in headless Chromium: it generates, shows alternatives and errors, asks nobody else."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from support.bundles.cache import BundleCache
from support.checkpoints.families import SENTENCES
from support.serving.http_server import HttpServer, http_server
from tightbeam.deploy import Runner

playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")]


@pytest.fixture(scope="module")
def server(bundles: BundleCache) -> Iterator[HttpServer]:
    with http_server({"text": bundles("dedup", tokenizer=True)}) as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


def test_the_page_generates_by_keyboard(server: HttpServer, browser: Any, bundles: BundleCache) -> None:
    runner = Runner.load(bundles("dedup", tokenizer=True), threads=1)
    page = browser.new_page()
    said: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(server.url)
    expect = playwright.expect
    expect(page.locator("#model option")).to_have_text(["text"])
    page.keyboard.press("Tab")  # from the model to the text
    page.get_by_label("Text").fill(SENTENCES[0])
    page.get_by_label("Beams").fill("4")
    page.get_by_label("Alternatives").fill("2")
    page.get_by_label("New tokens").fill("6")
    page.get_by_label("Text").press("Control+Enter")
    expect(page.get_by_role("status")).to_contain_text("tokens in")
    (rows,) = runner.generate_outputs(SENTENCES[:1], num_beams=4, num_return_sequences=2, max_new_tokens=6)
    assert rows.texts is not None
    expect(page.locator("#result")).to_have_text(rows.texts[0], use_inner_text=True)
    expect(page.locator("#alternatives tbody tr")).to_have_count(2)
    page.get_by_label("Beams").fill("1")
    page.get_by_label("Alternatives").fill("")
    page.get_by_label("Temperature").fill("0.5")
    page.get_by_role("button", name="Generate").click()
    expect(page.locator("#alternatives")).to_be_hidden()
    page.get_by_label("Temperature").fill("")
    page.get_by_label("New tokens").fill("100000")
    page.get_by_role("button", name="Generate").click()
    expect(page.get_by_role("alert")).to_contain_text("max_new_tokens=100000")
    assert all(url.startswith(server.url) for url in asked)
    unexpected = [text for text in said if "400" not in text]  # the browser reports the refused request
    assert not unexpected
