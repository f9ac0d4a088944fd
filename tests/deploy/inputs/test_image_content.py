"""Metadata of images is left packed, and what pillow would read for long is refused; pixels are pillow's own."""

from __future__ import annotations

import io
import struct
import time
import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from support.refusals import refusal_of
from tightbeam.deploy.errors import InputError
from tightbeam.deploy.inputs.files.image import ImageFile

pillow = pytest.importorskip("PIL.Image")

LONGEST_SECONDS = 0.5
"""Ten times the bound on the processor time of a refusal: other processes share the caches of this machine."""
MOST = {"most_pages": 128, "most_pixels": 1 << 25}
COLOURS = np.random.default_rng(0).integers(0, 256, (3, 4), np.uint8)
MIB = 1 << 20


def chunk(kind: bytes, data: bytes = b"") -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(before: bytes = b"", after: bytes = b"") -> bytes:
    head = struct.pack(">IIBBBBB", 4, 3, 8, 0, 0, 0, 0)
    pixels = zlib.compress(b"".join(b"\0" + row.tobytes() for row in COLOURS))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + before + chunk(b"IDAT", pixels) + after + chunk(b"IEND")


BOMB = zlib.compress(bytes(MIB), 9)


def saved(kind: str, image: Any = None, **how: Any) -> bytes:
    file = io.BytesIO()
    (pillow.fromarray(COLOURS) if image is None else image).save(file, kind, **how)
    return file.getvalue()


def segment(marker: int, data: bytes = b"") -> bytes:
    return bytes([0xFF, marker]) + struct.pack(">H", len(data) + 2) + data


def jpeg(more: bytes, *, behind: int = 2, **how: Any) -> bytes:
    data = saved("JPEG", **how)
    return data[:behind] + more + data[behind:]


def riff(kind: bytes, data: bytes) -> bytes:
    return kind + struct.pack("<I", len(data)) + data + bytes(len(data) % 2)


def webp(*chunks: bytes, flags: int = 0, before: bytes = b"") -> bytes:
    size = (3).to_bytes(3, "little") + (2).to_bytes(3, "little")
    pixels = saved("WEBP", pillow.fromarray(COLOURS).convert("RGB"), lossless=True)[12:]
    body = b"WEBP" + riff(b"VP8X", bytes([flags, 0, 0, 0]) + size) + before + pixels + b"".join(chunks)
    return b"RIFF" + struct.pack("<I", len(body)) + body


Entry = tuple[int, int, int, int]
PAGE: tuple[Entry, ...] = (
    *((256, 4, 1, 4), (257, 4, 1, 3), (258, 3, 1, 8), (259, 3, 1, 1), (262, 3, 1, 1), (273, 4, 1, 8)),
    *((277, 3, 1, 1), (278, 4, 1, 3), (279, 4, 1, 12)),
)


def tiff(*more: Entry, pages: int = 1, behind: bytes = b"") -> bytes:
    entries = sorted({entry[0]: entry for entry in (*PAGE, *more)}.values())
    whole = b"II*\0" + struct.pack("<I", 20) + COLOURS.tobytes()
    for page in range(1, pages + 1):
        directory = struct.pack("<H", len(entries)) + b"".join(struct.pack("<HHII", *entry) for entry in entries)
        following = len(whole) + len(directory) + 4
        whole += directory + struct.pack("<I", following if page < pages else 0)
    return whole + behind


def exif(tags: int) -> bytes:
    entries = b"".join(struct.pack("<HHII", 300 + tag, 7, 1, 0) for tag in range(tags))
    return b"Exif\0\0II*\0\x08\0\0\0" + struct.pack("<H", tags) + entries + bytes(4)


def runs(width: int, height: int, data: bytes) -> bytes:
    """A BMP with run-length encoding."""
    head = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 8, 1, len(data), 0, 0, 256, 0)
    return b"BM" + struct.pack("<IHHI", 1078 + len(data), 0, 0, 1078) + head + bytes(1024) + data


READ: dict[str, Callable[[], bytes]] = {
    "texts of a PNG": lambda: png((chunk(b"zTXt", b"a\0\0" + BOMB) + chunk(b"iTXt", b"b\0\1\0\0\0" + BOMB)) * 500),
    "a text of a PNG": lambda: png(chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(64 * MIB)))),
    "profiles of a PNG": lambda: png(chunk(b"iCCP", b"a\0\0" + BOMB) * 1000),
    "profiles behind a PNG's pixels": lambda: png(after=chunk(b"iCCP", b"a\0\0" + BOMB) * 1000),
    "XMP of a PNG": lambda: png(chunk(b"iTXt", b"XML:com.adobe.xmp\0\1\0\0\0" + BOMB) * 1000),
    "profiles in texts of a PNG": lambda: png(chunk(b"zTXt", b"Raw profile type exif\0\0" + BOMB) * 1000),
    "Exif data of a PNG": lambda: png(chunk(b"eXIf", exif(65_000)[6:]) * 2),
    "Exif data of a JPEG": lambda: jpeg(segment(0xE1, b"Exif\0\0" + bytes(65_000)) * 300),
    "Photoshop's data of a JPEG": lambda: jpeg(segment(0xED, b"Photoshop 3.0\0" + b"8BIM\0\0\0\0\0\0\0\0" * 5400) * 99),
    "a profile of a WebP": lambda: webp(flags=0x20, before=riff(b"ICCP", bytes(32 * MIB))),
    "Exif data of a WebP": lambda: webp(riff(b"EXIF", exif(65_000)) * 2, flags=0x08),
    "numbers of a TIFF": lambda: tiff((282, 5, 1 << 19, 20), (34665, 4, 1, 20), behind=bytes(4 * MIB)),
}


@pytest.mark.parametrize("name", READ)
def test_metadata_is_left_packed(name: str) -> None:
    data = READ[name]()
    begun = time.thread_time()
    image = ImageFile(data, **MOST)
    found = image.read(0)
    assert time.thread_time() - begun < LONGEST_SECONDS
    if "JPEG" not in name:
        np.testing.assert_array_equal(found, np.repeat(COLOURS[..., None], 3, axis=2))


def scanned(size: int, further: int) -> bytes:
    """A progressive JPEG of size x size pixels, with its last scan again and again."""
    data = saved("JPEG", pillow.new("L", (size, size)), progressive=True)
    last = data.rindex(b"\xff\xda")
    return data[:-2] + data[last:-2] * further + data[-2:]


REFUSED: dict[str, tuple[Callable[[], bytes], str]] = {
    "chunks": (lambda: png(chunk(b"abCd") * 200_000), "it has more than 16,384 chunks"),
    "chunks behind pixels": (lambda: png(after=chunk(b"abCd") * 200_000), "it has more than 16,384 chunks"),
    "chunks of pixels": (lambda: png(chunk(b"IDAT") * 400_000), "it has more than 16,384 chunks"),
    "a palette": (lambda: png(chunk(b"PLTE", bytes(32 * MIB))), "a chunk PLTE has 33,554,432 bytes"),
    "segments": (lambda: jpeg(segment(0xE5) * 400_000), "it has more than 16,384 segments"),
    "bytes between segments": (lambda: jpeg(b"\xff" * MIB), "it has more than 16,384 segments"),
    "tables": (lambda: jpeg(segment(0xDB, bytes(65_000)) * 100), "its header has 6,500,"),
    "frames": (lambda: jpeg(segment(0xC0, b"\x08\0\3\0\4\1" + bytes(60_000)) * 100), "its header has 6,001,"),
    "scans": (lambda: scanned(2000, 300), "it has 306 scans of 4,000,000 pixels"),
    "scans of many pixels": (lambda: scanned(5000, 20), "it has 26 scans of 25,000,000 pixels"),
    "chunks of a WebP": (lambda: webp(before=riff(b"abcd", b"") * (4 * MIB)), "it has more than 16,384 chunks"),
    "pictures of a WebP": (
        lambda: webp(riff(b"ANMF", bytes(16) + riff(b"abcd", b"") * 100_000) * 40, flags=2),
        "it has more than 16,384 chunks",
    ),
    "tags": (lambda: tiff(*((tag, 7, 1, 0) for tag in range(300, 48_000)), pages=3), "a page has 47,709 tags"),
    "values": (lambda: tiff((258, 3, 8 * MIB, 20), behind=bytes(16 * MIB)), "tag 258 has 8,388,608 values"),
    "strips": (lambda: tiff((273, 4, 8 * MIB, 20), behind=bytes(32 * MIB)), "tag 273 has 8,388,608 values"),
    "a tile": (lambda: tiff((322, 4, 1, 60_000), (323, 4, 1, 60_000)), "it has tiles of 60,000 x 60,000 pixels"),
    "pages": (lambda: tiff(*((tag, 7, 1, 0) for tag in range(300, 500)), pages=200), "has more than 128 pages"),
    "runs": (lambda: runs(5000, 5000, b"\1\0" * MIB), "run-length encoding has more than 524,288 bytes or pixels"),
    "a long line of runs": (lambda: runs(8 * MIB, 1, b"\1\0\0\0"), "run-length encoding has more than 524,288"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_pillow_reads_for_long_is_refused(name: str) -> None:
    make, expected = REFUSED[name]
    data = make()
    refused = refusal_of(lambda: ImageFile(data, **MOST).read(0))
    assert refused is not None
    replace(refused, calls=0).check()  # the time of the calls is bounded below
    assert expected in refused.message
    begun = time.thread_time()
    with pytest.raises(InputError):
        ImageFile(data, **MOST).read(0)
    assert time.thread_time() - begun < LONGEST_SECONDS


@pytest.mark.parametrize("kind", ["JPEG", "BMP"])
def test_blocks_that_decode_to_nothing_are_not_joined_again_and_again(kind: str) -> None:
    """A JPEG whose scan is filled up, and a picture of a single long line."""
    if kind == "JPEG":
        data = saved("JPEG", pillow.new("L", (64, 64)))[:-12] + b"\xff" * (30 * MIB)
    else:
        data = saved("BMP", pillow.new("RGB", (10_000_000, 1)))
    image = ImageFile(data, **MOST)
    begun = time.thread_time()
    refusal_of(lambda: image.read(0))
    assert time.thread_time() - begun < 2 * LONGEST_SECONDS


def shown_by_pillow(data: bytes, page: int = 0) -> Any:
    """The colours that pillow has with all metadata."""
    from PIL import ImageOps

    image = pillow.open(io.BytesIO(data))
    image.seek(page)
    return np.asarray(ImageOps.exif_transpose(image).convert("RGB"))


def xmp(orientation: int) -> bytes:
    return b'<x:xmpmeta><rdf:Description tiff:Orientation="%d"/></x:xmpmeta>' % orientation


@pytest.mark.parametrize("orientation", [1, 2, 5, 6, 8])
def test_every_form_of_orientation_turns_pictures(orientation: int) -> None:
    from PIL.PngImagePlugin import PngInfo

    image = pillow.fromarray(np.random.default_rng(1).integers(0, 256, (9, 14, 3), np.uint8))
    tags = pillow.Exif()
    tags[0x010F], tags[0x0112] = "maker" * 100, orientation
    packed = tags.tobytes()
    profile = f"\nexif\n{len(packed):8}\n{packed.hex()}\n"
    files = [saved(kind, image, exif=tags) for kind in ("PNG", "JPEG", "WEBP", "TIFF")]
    files += [saved(kind, image, xmp=xmp(orientation)) for kind in ("JPEG", "WEBP")]
    files += [saved("TIFF", image, exif=tags, compression=how) for how in ("tiff_lzw", "tiff_adobe_deflate", "jpeg")]
    for zipped in (False, True):
        text, raw = PngInfo(), PngInfo()
        text.add_itxt("XML:com.adobe.xmp", xmp(orientation).decode(), zip=zipped)
        raw.add_text("Raw profile type exif", profile, zip=zipped)
        files += [saved("PNG", image, pnginfo=info) for info in (text, raw)]
    late = PngInfo()
    late.add(b"eXIf", packed[6:], True)
    both = saved("JPEG", image, exif=tags, xmp=xmp(3))
    for data in [*files, saved("PNG", image, pnginfo=late), both]:
        np.testing.assert_array_equal(ImageFile(data).read(0), shown_by_pillow(data))


def test_files_with_metadata_have_the_pixels_of_pillow() -> None:
    from PIL import ImageCms

    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    image = pillow.fromarray(np.random.default_rng(1).integers(0, 256, (23, 37, 3), np.uint8))
    files = [saved(kind, image, icc_profile=profile) for kind in ("PNG", "JPEG", "WEBP", "TIFF")]
    files += [saved("JPEG", image.convert("CMYK"), icc_profile=profile, comment=b"a comment")]
    files += [saved("JPEG", image, progressive=True), saved("MPO", image, save_all=True, append_images=[image] * 3)]
    files += [saved("PNG", image.convert("P"), dpi=(300, 300)), saved("WEBP", image, save_all=True)]
    for data in files:
        np.testing.assert_array_equal(ImageFile(data).read(0), shown_by_pillow(data))


@pytest.mark.parametrize("how", [{}, {"big_tiff": True}, {"compression": "tiff_lzw"}, {"compression": "jpeg"}])
def test_pages_of_a_tiff_are_those_of_pillow(how: dict[str, Any]) -> None:
    image = pillow.fromarray(np.random.default_rng(1).integers(0, 256, (23, 37, 3), np.uint8))
    others = [image.rotate(90, expand=True), image.resize((5, 7))]
    data = saved("TIFF", image, save_all=True, append_images=others, tiffinfo={700: xmp(1), 33723: bytes(999)}, **how)
    file = ImageFile(data)
    assert len(file) == 3
    for page in (2, 0, 1):
        np.testing.assert_array_equal(file.read(page), shown_by_pillow(data, page))


def test_previews_of_a_tiff_are_no_pages() -> None:
    """Nor are directories that were read already, and a file of one page may end without the place of a next one."""
    pages = bytearray(tiff((254, 4, 1, 0), pages=3))
    second = pages.index(struct.pack("<HHII", 254, 4, 1, 0), 40)
    second = pages.index(struct.pack("<HHII", 254, 4, 1, 0), second)
    struct.pack_into("<I", pages, second + 8, 1)
    struct.pack_into("<I", pages, len(pages) - 4, 20)  # the last page is before the first one
    assert len(ImageFile(bytes(pages))) == 2
    expected = np.repeat(COLOURS[..., None], 3, axis=2)
    for data in (bytes(pages), tiff()[:-4]):
        np.testing.assert_array_equal(ImageFile(data).read(0), expected)
    overlapping = tiff()[:-4] + struct.pack("<I", 22)
    assert refusal_of(lambda: ImageFile(overlapping)) is not None
