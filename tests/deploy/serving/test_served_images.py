"""Served images: several in a request and in a batch, a single pixel, very large and broken ones."""

from __future__ import annotations

import base64
import io
import json
import re
import threading
from typing import Any

import numpy as np
import pytest

from support.bundles.cache import BundleCache
from support.checkpoints.image import images
from support.serving.triton_requests import run
from tightbeam.deploy import Runner
from tightbeam.deploy.inputs.files.image import ImageFile
from tightbeam.deploy.serving.protocol.messages import Request, Row
from tightbeam.deploy.serving.worker import requests as reading
from tightbeam.deploy.serving.worker import running
from tightbeam.deploy.serving.worker.parsing import Job, ParsingThreads

pillow = pytest.importorskip("PIL.Image")

SETTINGS: dict[str, Any] = {"num_beams": 2, "max_new_tokens": 7}


@pytest.fixture(scope="module")
def trocr(bundles: BundleCache) -> Runner:
    return Runner.load(bundles("dedup", "trocr", tokenizer=True), threads=1)


def content(image: Any, kind: str = "PNG") -> bytes:
    data = io.BytesIO()
    pillow.fromarray(image).save(data, kind)
    return data.getvalue()


def image_request(number: int, *rows: bytes, **parameters: Any) -> Request:
    inputs = {"IMAGE": np.array(rows, np.object_).reshape(-1, 1)}
    return Request(number, inputs, json.dumps({**SETTINGS, **parameters}))


PAGES = images(9, ((31, 90), (1, 1), (60, 17)))
FILES = [content(PAGES[0]), content(PAGES[1], "BMP"), content(PAGES[2], "TIFF")]


@pytest.mark.parametrize("family", ["trocr", pytest.param("donut", marks=pytest.mark.slow)])
def test_images_of_several_requests_share_a_batch(
    bundles: BundleCache, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pixel among them, base64, and beams of another number; each has the result that it has alone.

    A turn begins when all that the threads were given is read: images that a quick machine reads apart run apart.
    """
    take = ParsingThreads.take

    def take_all(threads: ParsingThreads, wait_s: float) -> list[Job]:
        found = take(threads, wait_s)
        while threads.active:
            found += take(threads, 60.0)
        return found

    monkeypatch.setattr(ParsingThreads, "take", take_all)
    runner = Runner.load(bundles("dedup", family, tokenizer=True), threads=1)
    pages = [page for page in PAGES if family == "trocr" or page.size > 3]
    rows = [content(page) for page in pages]
    requests = [
        image_request(0, *rows),
        image_request(1, base64.b64encode(rows[-1]), base64.encodebytes(rows[0])),
        image_request(2, rows[0], num_beams=3, num_return_sequences=2),
    ]
    log = run(runner, requests, max_rows=20)
    assert log.refusals() == {} and log.stats.samples == len(rows) + 3 > log.stats.prefills
    assert log.stats.sample_steps > log.stats.steps
    alone = [runner.read_images([page], **SETTINGS)[0] for page in pages]
    for found, expected in zip([*log.outputs(0), *log.outputs(1)], [*alone, alone[-1], alone[0]], strict=True):
        assert (found.sequences, found.texts) == (expected.sequences, expected.texts)
        np.testing.assert_allclose(found.scores or [], expected.scores or [], rtol=1e-4)
    (three,) = runner.read_images(pages[:1], **{**SETTINGS, "num_beams": 3, "num_return_sequences": 2})
    assert log.outputs(2)[0].sequences == three.sequences and len(three.sequences) == 2


LARGE = io.BytesIO()
pillow.new("1", (20_000, 9_000)).save(LARGE, "PNG", compress_level=1)
FAULTS: list[tuple[Request, str]] = [
    (image_request(1, b""), "the image is empty, it has no bytes; expected a PNG"),
    (image_request(1, b"\0no image"), "the image cannot be read as an image; expected a PNG, JPEG, TIFF, WebP or BMP"),
    (image_request(1, b"no image"), "IMAGE is the text 'no image', expected the content of a file; send its bytes, or"),
    (image_request(1, FILES[0][:300]), "the image cannot be read as an image"),
    (image_request(1, FILES[1], FILES[0][:60] + bytes(400)), "row 1: the image cannot be read as an image"),
    (image_request(1, base64.b64encode(FILES[0])[:-5]), "IMAGE is broken base64 .*; pass the bytes of a file, or"),
    (image_request(1, b"A" * 64 + b"\n\xff"), "IMAGE is broken base64"),
    (image_request(1, base64.b64encode(b"no image at all")), "the image cannot be read as an image"),
    (image_request(1, LARGE.getvalue()), "the image has more than 178,956,970 pixels; cut it"),
    (
        image_request(1, FILES[0], truncate=True),
        "truncate=True is for TEXT and MESSAGES; leave it out, and pass IMAGE",
    ),
    (image_request(1, FILES[0], encoder_no_repeat_ngram_size=2), "encoder_no_repeat_ngram_size=2 is about a source"),
    (Request(1, {**image_request(1, FILES[0]).inputs, "LENGTHS": np.ones((1, 1), np.int32)}, ""), "LENGTHS is for INP"),
    (Request(1, {"TEXT": np.array([[b"a"]], np.object_)}, ""), "the request has TEXT, expected IMAGE"),
]


@pytest.mark.parametrize(("faulty", "expected"), FAULTS, ids=lambda value: value[:50] if isinstance(value, str) else "")
def test_broken_images_refuse_only_their_request(trocr: Runner, faulty: Request, expected: str) -> None:
    log = run(trocr, [image_request(0, FILES[0]), faulty, image_request(2, FILES[2])])
    (refused,) = log.refusals().values()
    assert refused.number == 1 and refused.client_error and re.search(expected, refused.message), refused.message
    assert len(refused.message.splitlines()) == 1
    assert [len(log.outputs(number)) for number in (0, 2)] == [1, 1]


def test_a_file_beyond_the_limit_is_refused(trocr: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MAX_IMAGE_BYTES", 99)
    message = run(trocr, [image_request(0, FILES[0])]).refusals()[0].message
    assert re.fullmatch(r"IMAGE has [\d,]+ bytes, expected 99 at most; send a smaller file", message)


def tiff(*pages: Any, **how: Any) -> bytes:
    data = io.BytesIO()
    first, *others = map(pillow.fromarray, pages)
    first.save(data, "TIFF", save_all=True, append_images=others, **how)
    return data.getvalue()


@pytest.mark.parametrize("late", [0, 5])
def test_a_page_that_is_read_for_long_holds_nobody_up(
    trocr: Runner, monkeypatch: pytest.MonkeyPatch, late: int
) -> None:
    """The others are answered while it is read; a request cancelled meanwhile has no events."""
    read, answered = ImageFile.read, threading.Event()

    def slow(file: ImageFile, page: int) -> Any:
        if len(file) == 6 and page == late:
            assert answered.wait(60)
        return read(file, page)

    def cancelled() -> set[int]:
        if len([event for event in events if isinstance(event, Row)]) == 2:
            answered.set()
        return {3}

    events: list[Any] = []
    monkeypatch.setattr(ImageFile, "read", slow)
    whole = tiff(*PAGES, *PAGES)
    requests = [image_request(0, whole), *(image_request(number, FILES[0]) for number in (1, 2, 3))]
    log = run(trocr, requests, cancelled=cancelled, seen=events)
    first, second, last = (event.number for event in log.events)
    assert {first, second} == {1, 2} and last == 0
    assert log.outputs(0)[0].texts == trocr.read_images([whole], **SETTINGS)[0].texts


@pytest.mark.parametrize(("limit", "value", "most"), [("MOST_READ_BYTES", 1, 2), ("PARTS_AHEAD", 1, 2)])
def test_few_pages_wait_as_pixels(
    trocr: Runner, monkeypatch: pytest.MonkeyPatch, limit: str, value: int, most: int
) -> None:
    """Of all requests together (the second thread reads while the first page is counted), and of each row."""
    monkeypatch.setattr(running, limit, value)
    waiting: list[int] = []
    run_part = running.RunningRequests._run

    def counted(own: running.RunningRequests, owner: Any, samples: Any) -> None:
        run_part(own, owner, samples)
        waiting.append(len(own._read_bytes))

    monkeypatch.setattr(running.RunningRequests, "_run", counted)
    log = run(trocr, [image_request(number, tiff(*PAGES, *PAGES)) for number in (0, 1)])
    assert len(log.outputs(0)) == len(log.outputs(1)) == 1
    assert 1 <= max(waiting) <= most


def test_a_broken_page_behind_good_ones_refuses_its_request(trocr: Runner) -> None:
    data = bytearray(tiff(*(PAGES[0] for _ in range(6)), compression="tiff_lzw"))
    last = pillow.open(io.BytesIO(bytes(data)))
    last.seek(5)
    (offset,), (count,) = last.tag_v2[273], last.tag_v2[279]
    data[offset : offset + count] = b"\xff" * count
    log = run(trocr, [image_request(0, FILES[0], bytes(data)), image_request(1, FILES[2])])
    (refused,) = log.refusals().values()
    assert refused.number == 0 and refused.client_error
    assert refused.message.startswith("row 1: the image, page 6 cannot be read as an image")
    assert len(log.outputs(1)) == 1


@pytest.mark.slow
def test_thirty_megapixels_are_served_and_a_hundred_refused(trocr: Runner) -> None:
    data, larger = io.BytesIO(), io.BytesIO()
    pillow.new("L", (5_000, 6_000), 200).save(data, "PNG")
    pillow.new("L", (10_000, 10_000), 200).save(larger, "PNG")
    log = run(trocr, [image_request(number, file) for number, file in enumerate((data.getvalue(), FILES[0]))])
    assert len(log.outputs(0)) == len(log.outputs(1)) == 1
    refused = run(trocr, [image_request(0, larger.getvalue())]).refusals()[0]
    assert "10000 x 10000 pixels, expected 33,554,432 at most" in refused.message
