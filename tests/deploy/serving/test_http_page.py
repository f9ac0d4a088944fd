"""The page of the HTTP server in headless Chromium: it generates, shows alternatives and errors, asks nobody else."""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.audio import RATE_HZ, chirp
from support.bundles.cache import BundleCache
from support.checkpoints.families import SENTENCES, WHISPER_GENERATION
from support.checkpoints.timestamps import written_with_timestamps
from support.serving.http_server import HttpServer, http_server
from tightbeam.deploy import Runner

soundfile = pytest.importorskip("soundfile")
playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")]


@pytest.fixture(scope="module")
def speech(bundles: BundleCache, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = bundles("dedup", "whisper", generation=WHISPER_GENERATION, tokenizer=True)
    return written_with_timestamps(folder, tmp_path_factory.mktemp("speech"))


@pytest.fixture(scope="module")
def server(bundles: BundleCache, speech: Path) -> Iterator[HttpServer]:
    with http_server({"text": bundles("dedup", tokenizer=True), "speech": speech}) as running:
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
    expect(page.locator("#model option")).to_have_text(["text", "speech"])
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


def test_the_page_shows_when_each_word_is_said(server: HttpServer, browser: Any, speech: Path) -> None:
    """Each time is a button that plays the sound from there, and the row that is heard is the current one."""
    data = io.BytesIO()
    soundfile.write(data, chirp(2.4, RATE_HZ), RATE_HZ, format="WAV")
    asked = {"return_timestamps": True, "return_token_timestamps": True}
    (segments,) = Runner.load(speech, threads=1).transcribe_segments([data.getvalue()], **asked)
    words = [word for segment in segments for word in segment.words or []]
    page = browser.new_page()
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(server.url)
    expect = playwright.expect
    page.get_by_label("Model").select_option("speech")
    page.get_by_label("File").set_input_files([{"name": "a.wav", "mimeType": "audio/wav", "buffer": data.getvalue()}])
    page.get_by_label("Times of words").check()
    page.get_by_role("button", name="Generate").press("Enter")
    expect(page.get_by_role("status")).to_contain_text("tokens in")
    expect(page.get_by_role("table", name="Times", exact=True).locator("tbody tr")).to_have_count(len(segments))
    rows = page.get_by_role("table", name="Times of words").locator("tbody tr")
    found = [[cell.strip() for cell in row.locator("td").all_inner_texts()] for row in rows.all()]
    expected = [
        [f"{word.start_s:.2f}", f"{word.end_s:.2f}", word.word.strip(), f"{word.probability:.2f}"] for word in words
    ]
    assert words and found == expected
    rows.get_by_label(f"Play from {words[-1].start_s:.2f} s").press("Enter")
    assert page.evaluate("sound.currentTime") >= words[-1].start_s
    page.evaluate("at => { sound.pause(); sound.currentTime = at; }", (words[0].start_s + words[0].end_s) / 2)
    expect(page.locator("#times tr[aria-current]")).to_contain_text(words[0].word.strip())
    assert not said
