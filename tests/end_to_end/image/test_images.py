"""Image to text: from pixels and files to the tokens of ``model.generate``, in every variant."""

from __future__ import annotations

import base64
import io
import itertools
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from support.bundles.cache import BundleCache
from support.checkpoints.edits import edit_json, refusal
from support.checkpoints.families import CheckpointCache
from support.checkpoints.image import IMAGE_FAMILIES, PATCHES, images
from support.commands import SHORT, caller
from support.serving.triton_requests import run as run_requests
from support.slow_cases import slow_unless
from support.tolerance import assert_runs_close
from tightbeam.deploy import Runner
from tightbeam.deploy.errors import GenerationError, InputError
from tightbeam.deploy.image.patches import PatchProcessor
from tightbeam.deploy.inputs.open_input import PartedInput
from tightbeam.deploy.serving.dispatch.tensors import tensors_of
from tightbeam.deploy.serving.protocol.messages import Request
from tightbeam.deploy.serving.worker.requests import RequestParser
from tightbeam.export import export_model
from tightbeam.export.checkpoint.quiet import quiet_transformers
from tightbeam.export.errors import ExportError
from tightbeam.graph_passes import PRESETS

pillow = pytest.importorskip("PIL.Image")
TiffImagePlugin = pytest.importorskip("PIL.TiffImagePlugin")

SETTINGS: tuple[dict[str, Any], ...] = (
    {},
    {"num_beams": 1, "max_new_tokens": 30},
    {"num_beams": 3, "length_penalty": 2.0, "no_repeat_ngram_size": 2, "max_new_tokens": 14},
    {"num_beams": 4, "early_stopping": True, "repetition_penalty": 1.3, "num_return_sequences": 2},
    {"num_beams": 2, "length_penalty": -1.0, "early_stopping": "never", "min_new_tokens": 6, "max_length": 25},
    {"num_beams": 5, "decoder_start_token_id": 7, "suppress_tokens": [5, 65]},
)


def generate(model: Any, pixels: torch.Tensor, settings: dict[str, Any]) -> Any:
    with torch.no_grad(), quiet_transformers():
        return model.generate(pixels, return_dict_in_generate=True, output_scores=True, **settings)


@pytest.mark.parametrize(
    ("variant", "family"),
    slow_unless(
        itertools.product(PRESETS, IMAGE_FAMILIES),
        lambda variant, family: family == "trocr" and variant == "el",
    ),
)
def test_tokens_and_scores_match_generate(bundles: BundleCache, variant: str, family: str) -> None:
    model = bundles.trace(family)[0].model
    runner = Runner.load(bundles(variant, family), threads=1)
    assert runner.image_processor is not None
    scores = []
    for index, own in enumerate(SETTINGS):
        pixels = np.stack([runner.image_processor.pixels(image) for image in images(index)])
        expected = generate(model, torch.tensor(pixels), own)
        found = runner.generate_from_pixels(pixels, **own)
        np.testing.assert_array_equal(found.sequences, expected.sequences.numpy(), err_msg=str(own))
        if found.scores is not None:
            try:
                exact = generate(model.double(), torch.tensor(pixels).double(), own)
            finally:
                model.float()
            scores.append((found.scores, exact.sequences_scores.numpy(), expected.sequences_scores.numpy()))
    assert_runs_close(scores)


def test_files_arrays_and_bytes_give_what_pixels_give(bundles: BundleCache, tmp_path: Path) -> None:
    """The reference is transformers' own image processor; three images share a batch of two."""
    checkpoint = bundles.trace("trocr", tokenizer=True)[0]
    runner = Runner.load(bundles("dedup", "trocr", tokenizer=True), threads=1)
    pages = images(9)
    sources: list[Any] = [tmp_path / "a.png", str(tmp_path / "b.tiff"), pages[2]]
    for page, path in zip(pages, sources[:2], strict=False):
        pillow.fromarray(page).save(path)
    processor = transformers.ViTImageProcessorPil.from_pretrained(checkpoint.path)
    pixels = processor(pages, input_data_format="channels_last", return_tensors="pt").pixel_values
    settings: dict[str, Any] = {"num_beams": 3, "max_new_tokens": 12}
    expected = generate(checkpoint.model, pixels, settings)
    texts = checkpoint.tokenizer.batch_decode(expected.sequences, skip_special_tokens=True)
    found = runner.read_images(sources, batch_size=2, **settings)
    assert [output.texts for output in found] == [[text] for text in texts]
    (of_bytes,) = runner.read_images([sources[0].read_bytes()], **settings)
    assert of_bytes == found[0]


BEGINNINGS: tuple[list[int], ...] = ([2, 9, 40], [9, 40], [7], [2, 2])
"""Behind the start token 2, and without it, which transformers puts before them, but not for a Donut."""


BEGUN = ["trocr", pytest.param("donut", marks=pytest.mark.slow)]


def test_a_donut_begins_without_a_start_token(bundles: BundleCache) -> None:
    runner = Runner.load(bundles("dedup", "trocr", tokenizer=True), threads=1)
    assert [runner.options(decoder_input_ids=tokens).prompt for tokens in ([9, 40], [2, 9])] == [(2, 9, 40), (2, 9)]
    runner.model.settings._is_donut = True
    own = {"decoder_start_token_id": 5, "generation_config": {"decoder_input_ids": [9, 40]}}
    assert [runner.options(**given).prompt for given in (own, {"decoder_input_ids": [2, 2]}, {})] == [
        (9, 40),
        (2, 2),
        (2,),
    ]


@pytest.mark.parametrize("family", BEGUN)
def test_beginnings_match_generate(bundles: BundleCache, family: str) -> None:
    model = bundles.trace(family, tokenizer=True)[0].model
    runner = Runner.load(bundles("dedup", family, tokenizer=True), threads=1)
    assert runner.image_processor is not None
    pixels = np.stack([runner.image_processor.pixels(image) for image in images(3)])
    for tokens in BEGINNINGS:
        for own in ({"max_new_tokens": 9}, {"num_beams": 3, "max_length": 14, "decoder_start_token_id": 2}):
            given = torch.tensor([tokens] * len(pixels))
            expected = generate(model, torch.tensor(pixels), {**own, "decoder_input_ids": given})
            found = runner.generate_from_pixels(pixels, decoder_input_ids=tokens, **own)
            np.testing.assert_array_equal(found.sequences, expected.sequences.numpy(), err_msg=f"{tokens} {own}")


@pytest.mark.parametrize("family", BEGUN)
def test_a_task_prompt_is_text(
    bundles: BundleCache,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    family: str,
) -> None:
    """The same tokens as with the ids that the tokenizer makes without special tokens: Python, command, request."""
    checkpoint, folder = bundles.trace(family, tokenizer=True)[0], bundles("dedup", family, tokenizer=True)
    runner, text, page = Runner.load(folder, threads=1), "the tram", images(3)[0]
    ids = checkpoint.tokenizer(text, add_special_tokens=False).input_ids
    (expected,) = runner.read_images([page], decoder_input_ids=ids, max_new_tokens=5)
    begun = ids if family == "donut" else [2, *ids]
    assert expected.sequences[0][: len(begun)] == begun and len(ids) > 1
    assert runner.read_images([page], decoder_input_text=text, max_new_tokens=5) == [expected]
    data = io.BytesIO()
    pillow.fromarray(page).save(data, "PNG")
    (tmp_path / "a.png").write_bytes(data.getvalue())
    run = caller(monkeypatch, capsys)
    done = run(folder, tmp_path / "a.png", "--json", *SHORT, "--decoder-input-text", text)
    assert [record["tokens"] for record in done.records] == expected.sequences
    own = {"decoder_input_text": text, "max_new_tokens": 5}
    request = Request(1, {"IMAGE": np.array([[data.getvalue()]], object)}, json.dumps(own))
    assert run_requests(runner, [request]).outputs(1)[0].sequences == expected.sequences
    with pytest.raises(GenerationError, match=r"decoder_input_text='a' .* and decoder_input_ids=.* are the same"):
        runner.read_images([page], decoder_input_text="a", decoder_input_ids=[5])


def test_the_pages_of_a_tiff_are_one_document(
    bundles: BundleCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each page has the result that it has alone, more of them than wait at a time; one line has them all. A smaller
    copy of a page is none; a broken one fails its file alone."""
    folder, run = bundles("dedup", "trocr", tokenizer=True), caller(monkeypatch, capsys)
    runner, pages = Runner.load(folder, threads=1), images(7, tuple((20 + 9 * own, 31) for own in range(7)))
    pictures = [pillow.fromarray(page) for page in pages]
    scan, broken, single = (tmp_path / f"{name}.tiff" for name in ("scan", "broken", "single"))
    pictures[0].save(scan, save_all=True, append_images=pictures[1:])
    broken.write_bytes(scan.read_bytes())
    with pillow.open(broken) as file:
        file.seek(2)
        offset = file.tag_v2[273][0]
    with broken.open("r+b") as file:
        file.seek(file.seek(0) + offset)
        file.truncate()
    data = io.BytesIO()
    with TiffImagePlugin.AppendingTiffWriter(data, new=True) as writer:
        for picture, kind in zip(pictures[:2], (0, 1), strict=True):
            picture.save(writer, "TIFF", tiffinfo={254: kind})
            writer.newFrame()
    single.write_bytes(data.getvalue())
    own: dict[str, Any] = {"num_beams": 2, "max_new_tokens": 5}
    alone = runner.read_images(pages, **own)
    (found,) = runner.read_images([scan], batch_size=2, **own)
    assert found.pages == alone and found.texts == [" ".join(page.texts[0].strip() for page in alone)]
    assert runner.read_images([single], **own) == alone[:1]
    done = run(folder, scan, broken, single, "--json", "--num-beams", 2, *SHORT)
    done.failed("broken.tiff")
    first, second, last = done.records
    assert [page["tokens"] for page in first["pages"]] == [page.sequences[0] for page in alone]
    assert first["text"] == found.texts[0] and "error" in second and last["text"] == alone[0].texts[0]
    assert run(folder, scan, "--num-beams", 2, *SHORT).out.splitlines() == [" ".join(found.texts[0].split("\n"))]
    rows = np.array([[scan.read_bytes()], [single.read_bytes()]], object)
    requests = [Request(1, {"IMAGE": rows}, json.dumps(own)), Request(2, {"IMAGE": rows[:1]}, "{}")]
    requests.append(Request(3, {"IMAGE": np.array([[broken.read_bytes()]], object)}, json.dumps(own)))
    monkeypatch.setattr("tightbeam.deploy.serving.worker.requests.MAX_PAGES", 7)
    log = run_requests(runner, requests, max_rows=4)
    assert log.outputs(1) == [found, alone[0]] and len(log.outputs(2)[0].pages) == 7
    assert "the image" in log.refusals()[3].message
    listed = tensors_of(log.outputs(1), 0)["PAGES"].ravel().tolist()
    assert json.loads(listed[0]) == first["pages"] and listed[1] == b"null"
    monkeypatch.setattr("tightbeam.deploy.serving.worker.requests.MAX_PAGES", 6)
    message = run_requests(runner, requests[1:2]).refusals()[2].message
    assert message == "the image has more than 6 pages; cut it into pieces"
    with pytest.raises(InputError, match=r"num_return_sequences=2 is for images of one page, .*scan.tiff has 7"):
        runner.read_images([scan], num_return_sequences=2, **own)


def test_wrong_input_is_refused(bundles: BundleCache, tmp_path: Path) -> None:
    runner = Runner.load(bundles("dedup", "trocr", tokenizer=True), threads=1)
    with pytest.raises(InputError, match="this model reads images; pass them instead of token ids"):
        runner.generate(np.array([[5]]))
    with pytest.raises(InputError, match="this model reads images; pass them instead of text"):
        runner.generate_text(["a text"])
    with pytest.raises(InputError, match=r"pixel_values is \[1, 3, 20, 19\], expected \[B, 3, 20, 20\]"):
        runner.generate_from_pixels(np.zeros((1, 3, 20, 19), np.float32))
    with pytest.raises(InputError, match="NaN or infinity"):
        runner.generate_from_pixels(np.full((1, 3, 20, 20), np.nan, np.float32))
    with pytest.raises(InputError, match="pixel_values is float64, or holds NaN or infinity; expected finite float32"):
        runner.generate_from_pixels(np.full((1, 3, 20, 20), 1e300))
    with pytest.raises(InputError, match="this is a text model; pass text or token ids instead of images"):
        runner_of_text(bundles).read_images([images(0)[0]])
    with pytest.raises(InputError, match=r"image 1: an image is float64 \[3\], expected uint8"):
        runner.read_images([images(0)[0], np.zeros(3)])
    with pytest.raises(InputError, match=r"image 0: there is no file .*absent\.png"):
        runner.read_images([tmp_path / "absent.png"])
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(InputError, match=r"pipe\.png is a pipe or a device, not a file; expected a PNG"):
        runner.read_images([tmp_path / "pipe.png"])
    with pytest.raises(InputError, match="images is one string, expected a list"):
        runner.read_images("a.png")
    with pytest.raises(GenerationError, match="encoder_no_repeat_ngram_size=2 is about a source's tokens"):
        runner.read_images(images(0), encoder_no_repeat_ngram_size=2)


def test_the_command_writes_a_line_for_each_file(
    bundles: BundleCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file that cannot be read fails alone; a list names files of its own; one pixel is an image."""
    run, folder = caller(monkeypatch, capsys), bundles("dedup", "trocr", tokenizer=True)
    runner = Runner.load(folder, threads=1)
    pages = [images(9)[0], images(9)[1][:1, :1]]
    names = [str(tmp_path / f"{index}.png") for index in range(2)]
    for page, name in zip(pages, names, strict=True):
        pillow.fromarray(page).save(name)
    (tmp_path / "broken.png").write_bytes(Path(names[0]).read_bytes()[:200])
    (tmp_path / "names.txt").write_text(f"{names[1]}\n")
    expected = [output.sequences[0] for output in runner.read_images(pages, max_new_tokens=5)]
    done = run(folder, names[0], tmp_path / "broken.png", tmp_path / "names.txt", "--json", *SHORT)
    done.failed("broken.png cannot be read as an image")
    first, broken, last = done.records
    assert [first["tokens"], last["tokens"]] == expected and "error" in broken
    pillow.fromarray(pages[0]).save(tmp_path / "page.gif")
    pillow.fromarray(pages[0][:, :, 0].astype(np.float32)).save(tmp_path / "float.tif")
    done = run(folder, tmp_path / "page.gif", names[0], tmp_path / "float.tif", "--json", *SHORT)
    done.failed("page.gif cannot be read as an image")
    assert [done.records[1]["tokens"], "error" in done.records[0]] == [expected[0], True]
    assert "float.tif has numbers of 32 bits as colours" in done.records[2]["error"]
    run(folder, names[0], "--ids").failed(
        "--ids, --truncate, --escapes, --document and --prompt-file are for text", code=1
    )
    run(folder, tmp_path / "a.wav").failed("a.wav is an audio file, and this is a model of images; pass an image file")


def test_a_request_holds_a_file_or_its_base64(bundles: BundleCache) -> None:
    runner = Runner.load(bundles("dedup", "trocr", tokenizer=True), threads=1)
    parser = RequestParser(runner.model, max_rows=8)
    data = io.BytesIO()
    page = images(9)[0]
    pillow.fromarray(page).save(data, "PNG")
    rows = np.array([[data.getvalue()], [base64.b64encode(data.getvalue())]], object)
    parsed = parser.parse(Request(1, {"IMAGE": rows}, "{}"))
    assert runner.image_processor is not None
    for opened in parsed.rows:
        assert isinstance(opened, PartedInput) and (opened.unread, opened.samples) == (1, [])
        np.testing.assert_array_equal(opened.read_part().source, runner.image_processor.pixels(page))
    with pytest.raises(InputError, match="the request has TEXT, expected IMAGE"):
        parser.parse(Request(2, {"TEXT": np.array([[b"a text"]], object)}, "{}"))
    with pytest.raises(InputError, match="cannot be read as an image"):
        parser.parse(Request(3, {"IMAGE": np.array([[b"\0no image"]], object)}, "{}"))
    with pytest.raises(InputError, match="IMAGE is the text 'no image', expected the content of a file"):
        parser.parse(Request(3, {"IMAGE": np.array([[b"no image"]], object)}, "{}"))
    reader = RequestParser(runner_of_text(bundles).model, max_rows=8)
    with pytest.raises(InputError, match="the request has IMAGE, expected"):
        reader.parse(Request(4, {"IMAGE": rows}, "{}"))


def patches_of(checkpoint: Any, pages: list[Any]) -> dict[str, torch.Tensor]:
    """Patches by transformers' own processor on pillow."""
    processor = transformers.Pix2StructImageProcessorPil.from_pretrained(checkpoint.path)
    return dict(processor(pages, input_data_format="channels_last", return_tensors="pt"))


@pytest.mark.parametrize(("variant",), slow_unless(((name,) for name in PRESETS), lambda variant: variant == "el"))
def test_tokens_and_scores_of_patches_match_generate(bundles: BundleCache, variant: str) -> None:
    """Images of three sizes, which have different numbers of patches, with transformers' patches and their padding."""
    checkpoint = bundles.trace(PATCHES)[0]
    model, runner = checkpoint.model, Runner.load(bundles(variant, PATCHES), threads=1)
    scores, seen = [], set()
    for index, own in enumerate(SETTINGS):
        inputs = patches_of(checkpoint, images(index))
        assert len(set(inputs["attention_mask"].sum(axis=1).tolist())) > 1
        with torch.no_grad(), quiet_transformers():
            how = {"return_dict_in_generate": True, "output_scores": True, **own}
            expected = model.generate(**inputs, **how)
            found = runner.generate_from_pixels(inputs["flattened_patches"].numpy(), **own)
            np.testing.assert_array_equal(found.sequences, expected.sequences.numpy(), err_msg=str(own))
            seen |= set(map(tuple, found.sequences.tolist()))
            if found.scores is not None:
                doubled = {name: tensor.double() for name, tensor in inputs.items()}
                try:
                    exact = model.double().generate(**doubled, **how)
                finally:
                    model.float()
                scores.append((found.scores, exact.sequences_scores.numpy(), expected.sequences_scores.numpy()))
    assert_runs_close(scores)
    assert len(seen) > 8  # the images matter


def test_images_are_read_as_patches(bundles: BundleCache, tmp_path: Path) -> None:
    """Files and arrays of several sizes share a batch; the reference is transformers' processor and model."""
    checkpoint = bundles.trace(PATCHES, tokenizer=True)[0]
    runner = Runner.load(bundles("dedup", PATCHES, tokenizer=True), threads=1)
    pages = images(9)
    sources: list[Any] = [tmp_path / "a.png", *pages[1:]]
    pillow.fromarray(pages[0]).save(sources[0])
    settings: dict[str, Any] = {"num_beams": 3, "max_new_tokens": 12}
    with torch.no_grad(), quiet_transformers():
        expected = checkpoint.model.generate(**patches_of(checkpoint, pages), **settings)
    texts = checkpoint.tokenizer.batch_decode(expected, skip_special_tokens=True)
    found = runner.read_images(sources, batch_size=2, **settings)
    assert [output.texts for output in found] == [[text] for text in texts]
    for shape, expected_error in (
        ((1, 3, 20, 20), r"flattened_patches is \[1, 3, 20, 20\], expected \[B, X, 62\], X up to 23"),
        ((1, 24, 62), r"expected \[B, X, 62\], X up to 23"),
        ((1, 9, 62), "zeros before a patch"),
    ):
        with pytest.raises(InputError, match=expected_error):
            runner.generate_from_pixels(np.zeros(shape, np.float32))


def test_a_window_wider_than_a_stage_is_refused(checkpoints: CheckpointCache, tmp_path: Path) -> None:
    folder = checkpoints.copy(tmp_path / "c", "donut")
    encoder = json.loads((folder / "config.json").read_text())["encoder"]
    edit_json(folder / "config.json", encoder={**encoder, "window_size": 5})
    assert "window_size is 5, wider than the 6 x 4 positions of stage 1" in refusal(folder)


def test_patches_are_those_of_transformers(tmp_path: Path) -> None:
    """At the published sizes too; torch resizes them, so that rounding differs."""
    generator = np.random.default_rng(0)
    for settings in ({"max_patches": 23, "patch_size": {"height": 4, "width": 5}}, {}, {"do_normalize": False}):
        reference = transformers.Pix2StructImageProcessorPil(**settings)
        own = PatchProcessor.of(settings, tmp_path)
        for shape in ((31, 90), (20, 20), (700, 500), (1, 300), (64, 3)):
            image = generator.integers(0, 256, (*shape, 3)).astype(np.uint8)
            made = reference([image], input_data_format="channels_last", return_tensors="np")
            count, patches = int(made.attention_mask[0].sum()), own.pixels(image)
            assert patches.shape == (count, own.width)
            largest = np.abs(made.flattened_patches).max()
            np.testing.assert_allclose(patches, made.flattened_patches[0, :count], rtol=0, atol=4e-7 * largest)


def test_checkpoints_of_patches_that_cannot_be_run(checkpoints: CheckpointCache, tmp_path: Path) -> None:
    folder = checkpoints.copy(tmp_path / "c", PATCHES)
    before = (folder / "preprocessor_config.json").read_text()
    for name, value, expected in (
        ("is_vqa", True, "is_vqa is true: the question is drawn into the image with a font"),
        ("max_patches", 31, "max_patches is 31, config.json has rows and columns up to 30"),
        ("max_patches", "many", "max_patches is 'many', expected a whole number"),
        ("patch_size", {"height": 4}, "expected a height and a width in pixels"),
        ("patch_size", {"height": 4, "width": 4}, "makes patches of 48 numbers, config.json expects 60"),
        ("do_normalize", 1, "do_normalize is 1, expected true or false"),
    ):
        edit_json(folder / "preprocessor_config.json", **{name: value})
        with pytest.raises(ExportError, match=expected):
            export_model(folder, tmp_path / "out", check=False)
        (folder / "preprocessor_config.json").write_text(before)
    config = json.loads((folder / "config.json").read_text())
    for part, name, value, expected in (
        ("text_config", "d_kv", 11, "3 heads of 11 numbers are not the 36 of hidden_size"),
        ("vision_config", "hidden_size", 30, "vision_config.hidden_size is 30, text_config.hidden_size is 36"),
        ("vision_config", "seq_len", 0, "vision_config: seq_len is 0; expected a whole number of at least 1"),
    ):
        edit_json(folder / "config.json", **{part: {**config[part], name: value}})
        assert expected in refusal(folder)
        edit_json(folder / "config.json", **{part: config[part]})
    edit_json(folder / "config.json", is_vqa=True)
    assert "is_vqa is true" in refusal(folder)


def runner_of_text(bundles: BundleCache) -> Runner:
    return Runner.load(bundles("el", "bart"), threads=1)
