"""Image processors against transformers', and image files: formats, broken ones, one pixel, very large ones."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers

from support.checkpoints.image import images
from tightbeam.deploy.errors import BundleError, InputError
from tightbeam.deploy.image.processor import ImageProcessor
from tightbeam.deploy.inputs.files.image import ImageFile
from tightbeam.deploy.serving.protocol.encoded import file_bytes

pillow = pytest.importorskip("PIL.Image")


def read_image(source: str | bytes) -> Any:
    """The colours of an image of one page."""
    file = ImageFile(source)
    assert len(file) == 1
    return file.read(0)


SHAPES = ((1, 1), (3, 50), (77, 31), (16, 16), (40, 41))
SETTINGS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("ViT", {"size": 17, "resample": 3}),
    ("ViT", {"size": {"height": 12, "width": 33}, "resample": 0, "do_normalize": False}),
    ("ViT", {"size": [9, 14], "do_rescale": False, "image_mean": [100.0, 90, 80], "image_std": [50.0, 60, 70]}),
    ("DeiT", {"size": 23, "crop_size": 17}),
    ("DeiT", {"size": 11, "crop_size": {"height": 18, "width": 7}}),
    ("Donut", {"size": [24, 32]}),
    ("Donut", {"size": {"height": 21, "width": 30}, "do_align_long_axis": True, "resample": 3}),
    ("Donut", {"size": [19, 64], "do_align_long_axis": True, "rescale_factor": 0.01}),
)


@pytest.mark.parametrize(("kind", "settings"), SETTINGS)
def test_pixels_are_those_of_transformers(kind: str, settings: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "preprocessor_config.json"
    path.write_text(json.dumps({"image_processor_type": f"{kind}ImageProcessor", **settings}))
    own = ImageProcessor.of(json.loads(path.read_text()), path)
    theirs = getattr(transformers, f"{kind}ImageProcessorPil").from_pretrained(tmp_path)
    compared = 0
    for image in images(1, SHAPES):
        try:
            (expected,) = theirs(image, input_data_format="channels_last", return_tensors="np").pixel_values
        except ValueError:  # of pillow, for a thumbnail without any pixels
            with pytest.raises(InputError, match="cannot be fitted"):
                own.pixels(image)
            continue
        np.testing.assert_array_equal(own.pixels(image), expected)
        compared += 1
    assert compared >= 3


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, "image_processor_type is None, expected one of ViTImageProcessor"),
        ({"image_processor_type": "CLIPImageProcessor"}, "is 'CLIPImageProcessor', expected one of"),
        (
            {"feature_extractor_type": "ViTFeatureExtractor", "size": {"shortest_edge": 9}},
            "expected a height",
        ),
        ({"feature_extractor_type": "ViTFeatureExtractor", "do_resize": False}, "do_resize is false; the encoder"),
        ({"feature_extractor_type": "ViTFeatureExtractor", "do_pad": True}, "do_pad is true, which ViT images"),
        ({"feature_extractor_type": "DonutFeatureExtractor", "do_pad": False}, "do_pad is false; the encoder"),
        ({"feature_extractor_type": "ViTFeatureExtractor", "resample": 9}, "resample is 9, expected a filter"),
        ({"feature_extractor_type": "ViTFeatureExtractor", "image_std": [1, 0, 1]}, "expected numbers other than 0"),
        ({"feature_extractor_type": "ViTFeatureExtractor", "image_mean": [1]}, "image_mean is .*each of 3 colours"),
        ({"feature_extractor_type": "ViTFeatureExtractor", "do_rescale": "no"}, "do_rescale is 'no', expected true"),
    ],
)
def test_settings_that_no_bundle_follows_are_refused(settings: dict[str, Any], expected: str) -> None:
    with pytest.raises(BundleError, match=expected):
        ImageProcessor.of(settings, Path("preprocessor_config.json"))


@pytest.mark.parametrize("name", ["a.png", "a.tiff", "a.bmp", "a.webp"])
def test_every_format_gives_the_same_colours(name: str, tmp_path: Path) -> None:
    image = images(2)[0]
    pillow.fromarray(image).save(tmp_path / name, **({"lossless": True} if name.endswith("webp") else {}))
    np.testing.assert_array_equal(read_image(str(tmp_path / name)), image)
    np.testing.assert_array_equal(read_image((tmp_path / name).read_bytes()), image)


def test_modes_and_orientation(tmp_path: Path) -> None:
    image = images(3)[0]
    grey = pillow.fromarray(image).convert("L")
    grey.save(tmp_path / "grey.png")
    np.testing.assert_array_equal(read_image(str(tmp_path / "grey.png")), np.asarray(grey.convert("RGB")))
    sixteen = (np.asarray(grey).astype(np.uint16) << 8) + 77
    pillow.fromarray(sixteen).save(tmp_path / "sixteen.png")
    np.testing.assert_array_equal(read_image(str(tmp_path / "sixteen.png")), np.asarray(grey.convert("RGB")))
    clear = np.concatenate([image, np.zeros((*image.shape[:2], 1), np.uint8)], axis=2)
    pillow.fromarray(clear).save(tmp_path / "clear.png")
    assert (read_image(str(tmp_path / "clear.png")) == 255).all()
    exif = pillow.Exif()
    exif[0x0112] = 6  # turned by 90 degrees
    pillow.fromarray(image).save(tmp_path / "turned.png", exif=exif)
    np.testing.assert_array_equal(read_image(str(tmp_path / "turned.png")), np.rot90(image, 3))


def test_files_that_are_no_image_have_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = pillow.fromarray(images(4)[0])
    whole = io.BytesIO()
    image.save(whole, "PNG")
    (tmp_path / "cut.png").write_bytes(whole.getvalue()[:400])
    (tmp_path / "text.png").write_text("no image")
    (tmp_path / "empty.jpg").write_bytes(b"")
    image.save(tmp_path / "moving.png", save_all=True, append_images=[image.rotate(9)])
    for name, expected in (
        ("cut.png", "cannot be read as an image"),
        ("text.png", "cannot be read as an image; expected a PNG"),
        ("empty.jpg", "empty.jpg is empty, it has no bytes; expected a PNG"),
        ("moving.png", "moving.png is an animation of 2 pictures, expected one"),
        ("absent.png", "there is no file"),
        ("", "is a folder"),
    ):
        with pytest.raises(InputError, match=expected) as caught:
            read_image(str(tmp_path / name))
        assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match=r"has 90 x 31 pixels, expected 100 at most"):
        ImageFile(whole.getvalue(), most_pixels=100).read(0)


@pytest.mark.slow
def test_a_hundred_megapixels_are_read() -> None:
    """Beyond pillow's warning, which is an error in these tests."""
    data = io.BytesIO()
    pillow.new("L", (10_000, 10_000), 200).save(data, "PNG")
    assert read_image(data.getvalue()).shape == (10_000, 10_000, 3)


def test_base64_is_told_from_a_file() -> None:
    for kind in ("PNG", "JPEG", "TIFF", "WEBP", "BMP"):
        data = io.BytesIO()
        pillow.fromarray(images(5)[1]).save(data, kind)
        assert file_bytes(data.getvalue(), "IMAGE", 1 << 26) == data.getvalue()
        assert file_bytes(base64.encodebytes(data.getvalue()), "IMAGE", 1 << 26) == data.getvalue()
    with pytest.raises(InputError, match="IMAGE is broken base64"):
        file_bytes(b"abcde", "IMAGE", 1 << 26)


def test_pages_and_pixels_are_bounded_before_they_are_decoded() -> None:
    content = io.BytesIO()
    first, *others = [pillow.new("L", (4, 3)) for _ in range(9)]
    first.save(content, "TIFF", save_all=True, append_images=others)
    assert len(ImageFile(content.getvalue(), most_pages=9)) == 9
    with pytest.raises(InputError, match=r"^the image has more than 5 pages; cut it into pieces$"):
        ImageFile(content.getvalue()[: len(content.getvalue()) * 7 // 9], most_pages=5)  # it ends in the eighth
    with pytest.raises(InputError, match=r"^the image, page 2 has 4 x 3 pixels, expected 11 at most; cut it into"):
        ImageFile(content.getvalue(), most_pixels=11).read(1)
