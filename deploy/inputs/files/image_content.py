"""Contents of image files without their metadata, which pillow would unpack and hold, however much it is.

Each format has a reader, which returns the parts that the pixels depend on, and how the picture is turned. What it
refuses takes pillow or its libraries much longer than its bytes do.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter

__all__ = ["ImageContent", "MorePages", "image_content"]

MOST_PARTS = 1 << 14
"""Chunks of a PNG or WebP, and segments of a JPEG: each costs pillow some microseconds."""
MOST_HEADER_BYTES = 1 << 16
"""Bytes of all segments of a JPEG before its first scan, metadata aside."""
MOST_CHUNK_BYTES = 1 << 10
"""Bytes of a chunk of a PNG that has neither pixels nor metadata. A palette of 256 colours has 768."""
MOST_SCANS, MOST_SCANNED = 100, 1 << 29
"""Scans of a JPEG, and their pixels in all. Each passes over the picture, and may have a few bytes; encoders write ten
or so."""
MOST_TAGS, MOST_VALUES, MOST_TABLE, MOST_STRIPS = 256, 64, 1 << 16, 1 << 14
"""Tags of a page of a TIFF; values of a tag, of a colour map or JPEG's tables, and of places of strips or tiles."""
MOST_RUNS = 1 << 19
"""Bytes, and pixels, of a BMP with run-length encoding, which pillow decodes in Python."""
MOST_TEXT_BYTES = 1 << 20
"""Bytes of text that are unpacked to find how a PNG is turned."""

EXIF, RAW_EXIF, XMP = b"Exif\0\0", b"Raw profile type exif", b"XML:com.adobe.xmp"
JPEG_XMP = b"http://ns.adobe.com/xap/1.0/\0"
TURNED = re.compile(rb'tiff:Orientation(?:="|>)([0-9])')
SHORT, LONG = 3, 4
ORIENTATION = 274


class MorePages(ValueError):
    """A TIFF has more pictures than it may."""


@dataclass(frozen=True)
class ImageContent:
    """The content of an image file without metadata.

    Attributes
    ----------
    kind : str
        pillow's name of the format.
    data : bytes
        A file with the same pixels. A TIFF has its pages alone.
    orientations : list of int
        How each page is turned: 1 to 8, as Exif numbers them.
    """

    kind: str
    data: bytes
    orientations: list[int]


def image_content(data: bytes, most_pages: float, most_pixels: int) -> ImageContent:
    """Read an image file of any format.

    Parameters
    ----------
    data
        The content of the file.
    most_pages
        The most pictures of a TIFF.
    most_pixels
        The most pixels of a tile of a TIFF.

    Raises
    ------
    MorePages
        A TIFF has more pictures.
    UnidentifiedImageError
        The file is in no known format.
    ValueError
        The file is broken, or takes too long to decode.
    """
    try:
        if data.startswith(b"\x89PNG\r\n\x1a\n"):
            return _png(data)
        if data.startswith(b"\xff\xd8\xff"):
            return _jpeg(data)
        if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
            return _webp(data)
        if data.startswith(b"BM"):
            return _bmp(data)
        if data[:4] in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"):
            return _tiff(data, most_pages, most_pixels)
    except struct.error:
        raise ValueError("it breaks off") from None
    from PIL import UnidentifiedImageError

    raise UnidentifiedImageError


def _png(data: bytes) -> ImageContent:
    """Keep what pixels depend on, and what makes an animation. Text of the kinds that say how it is turned is read."""
    view = memoryview(data)
    kept, exif, texts, at = [view[:8]], None, dict[bytes, bytes](), 8
    for _ in range(MOST_PARTS):
        if at + 8 > len(data):
            break
        length, kind = struct.unpack_from(">I4s", data, at)
        begin, end = at + 8, at + 12 + length
        if kind in (b"IDAT", b"fdAT"):
            kept.append(view[at:end])
        elif kind in (b"IHDR", b"PLTE", b"tRNS", b"acTL", b"fcTL", b"IEND"):
            if length > MOST_CHUNK_BYTES:
                raise ValueError(f"a chunk {kind.decode()} has {length:,} bytes")
            kept.append(view[at:end])
        elif kind == b"eXIf":
            exif = exif or data[begin : begin + length]
        elif kind in (b"tEXt", b"zTXt", b"iTXt"):
            for name in (RAW_EXIF, XMP):
                if name not in texts and data.startswith(name + b"\0", begin):
                    texts[name] = _png_text(kind, data[begin + len(name) + 1 : begin + length])
        at = end
        if kind == b"IEND":
            break
    else:
        raise ValueError(f"it has more than {MOST_PARTS:,} chunks")
    if exif is None and RAW_EXIF in texts:
        exif = _unhexed(texts[RAW_EXIF])
    return ImageContent("PNG", _joined(kept, data), [_orientation(exif, texts.get(XMP))])


def _png_text(kind: bytes, value: bytes) -> bytes:
    """Return the value of a chunk of text, of which ``value`` is what follows its name; empty for a broken one."""
    packed = kind == b"zTXt"
    if kind == b"iTXt":
        packed, value = value[:1] == b"\1", value[2:].split(b"\0", 2)[-1]
    elif packed:
        value = value[1:]
    try:
        return zlib.decompressobj().decompress(value, MOST_TEXT_BYTES) if packed else value[:MOST_TEXT_BYTES]
    except zlib.error:
        return b""


def _unhexed(text: bytes) -> bytes | None:
    """Return the bytes of ImageMagick's profile in a text: a name and a length in lines, then hexadecimal digits."""
    try:
        return bytes.fromhex(b"".join(text.split(b"\n")[3:]).decode())
    except ValueError:
        return None


FRAMES = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})
PROGRESSIVE = frozenset({0xC2, 0xC6, 0xCA, 0xCE})
TABLES = frozenset({0xC4, 0xCC, 0xDB, 0xDD})
ALONE = frozenset({0x00, 0x01, 0xFF, *range(0xD0, 0xDA)})
"""Markers that no segment follows."""
SCAN = 0xDA


def _jpeg(data: bytes) -> ImageContent:
    """Keep tables, the frame, the marks by which colours are told, and all from the first scan on."""
    view = memoryview(data)
    kept, exif, xmp = [view[:2]], None, None
    frame, components, pixels, at = 0, 0, 0, 2
    for _ in range(MOST_PARTS):
        at = data.find(b"\xff", at)
        if at < 0:
            raise ValueError("it has no scan")
        (marker,) = struct.unpack_from(">xB", data, at)
        if marker == 0xFF or marker in ALONE:
            at += 1 if marker == 0xFF else 2
            continue
        (length,) = struct.unpack_from(">H", data, at + 2)
        segment, end = data[at + 4 : at + 2 + length], at + 2 + length
        if marker == SCAN:
            whole = len(data)
            if frame in PROGRESSIVE or segment[:1] < bytes([components]):  # further scans may follow, up to the end
                ending = data.find(b"\xff\xd9", end)
                whole = whole if ending < 0 else ending + 2
                scans = data.count(b"\xff\xda", at, whole)
                if scans > MOST_SCANS or scans * pixels > MOST_SCANNED:
                    at_most = f"{MOST_SCANS} scans and {MOST_SCANNED:,} pixels of all scans"
                    raise ValueError(f"it has {scans} scans of {pixels:,} pixels, expected {at_most} at most")
            kept.append(view[at:whole])
            break
        if marker in FRAMES:
            height, width, components = struct.unpack_from(">xHHB", segment)
            frame, pixels = marker, height * width
        if marker in FRAMES or marker in TABLES or segment.startswith((b"JFIF\0", b"Adobe")):
            kept.append(view[at:end])
        elif marker == 0xE1 and segment.startswith(EXIF):
            exif = exif or segment
        elif marker == 0xE1 and segment.startswith(JPEG_XMP):
            xmp = segment
        at = end
    else:
        raise ValueError(f"it has more than {MOST_PARTS:,} segments")
    if (size := sum(map(len, kept[:-1]))) > MOST_HEADER_BYTES:
        raise ValueError(f"its header has {size:,} bytes")
    return ImageContent("JPEG", _joined(kept, data), [_orientation(exif, xmp)])


def _webp(data: bytes) -> ImageContent:
    """Keep the chunks of pixels, and of an animation."""
    kept, others, view = list[bytes | memoryview](), dict[bytes, bytes](), memoryview(data)
    size = struct.unpack_from("<I", data, 4)[0]
    at, whole = 12, min(len(data), 8 + size)
    for _ in range(MOST_PARTS):
        if at + 8 > whole:
            break
        kind, length = struct.unpack_from("<4sI", data, at)
        end = at + 8 + length + length % 2
        if kind == b"VP8X":  # its flags tell what is there
            flags = data[at + 8] & ~METADATA if at + 8 < whole else 0
            kept += [view[at : at + 8], bytes([flags]), view[at + 9 : min(end, at + MOST_CHUNK_BYTES)]]
        elif kind == b"ANMF":  # a picture of an animation holds chunks, which follow
            end = at + 24
            kept.append(view[at:end])
        elif kind in (b"VP8 ", b"VP8L", b"ALPH", b"ANIM"):
            kept.append(view[at:end])
        elif kind in (b"EXIF", b"XMP "):
            others.setdefault(kind, data[at + 8 : at + 8 + min(length, MOST_TEXT_BYTES)])
        at = end
    else:
        raise ValueError(f"it has more than {MOST_PARTS:,} chunks")
    head = b"RIFF" + struct.pack("<I", 4 + sum(map(len, kept))) + b"WEBP"
    turned = _orientation(others.get(b"EXIF"), others.get(b"XMP "))
    return ImageContent("WEBP", b"".join([head, *kept]), [turned])


METADATA = 0x20 | 0x08 | 0x04
"""Flags of a WebP with a colour profile, Exif data and XMP."""


def _bmp(data: bytes) -> ImageContent:
    (header,) = struct.unpack_from("<I", data, 14)
    if header != 12:
        width, height, compression = struct.unpack_from("<ii4xI", data, 18)
        if compression in (1, 2) and max(len(data), abs(width * height)) > MOST_RUNS:
            raise ValueError(f"a BMP with run-length encoding has more than {MOST_RUNS:,} bytes or pixels")
    return ImageContent("BMP", data, [1])


ONE_VALUE = (256, 257, 258, 259, 262, 266, 277, 278, 284, 292, 293, 317, 322, 323, 326, 327, 328, 338, 339)
OF_JPEG = (512, 513, 514, 515, 519, 520, 521, 529, 530, 531, 532)
PIXEL_TAGS = {
    **dict.fromkeys((*ONE_VALUE, *OF_JPEG), MOST_VALUES),
    **dict.fromkeys((320, 347), MOST_TABLE),
    **dict.fromkeys((273, 279, 324, 325), MOST_STRIPS),
}
"""Tags of a TIFF that pixels depend on, and the most values of each."""
SUBFILE_TYPE, PREVIEW_OR_MASK = 254, 1 | 4
"""The tag, and its bits, that mark a picture as a smaller copy or a transparency mask instead of a page."""
TILE_WIDTH, TILE_LENGTH, TIFF_XMP = 322, 323, 700


@dataclass(frozen=True)
class _Page:
    """A picture of a TIFF: where its directory is, the entries that are kept, and the numbers that stand in entries."""

    begin: int
    end: int
    entries: list[bytes]
    numbers: dict[int, int]
    xmp: bytes | None


@dataclass(frozen=True)
class _Tiff:
    """A TIFF's content, and the formats of its numbers: of a directory's length, of a place, and of an entry."""

    data: bytes
    order: str
    length: str
    place: str
    entry: str

    def unpack(self, form: str, at: int) -> tuple[int, ...]:
        return struct.unpack_from(self.order + form, self.data, at)

    def pack(self, form: str, number: int) -> bytes:
        return struct.pack(self.order + form, number)

    def pages(self, first: int) -> Iterator[_Page]:
        """Read the directories from the place that stands at ``first``, each once.

        Raises ValueError for one that is too large, and struct.error for one that breaks off.
        """
        at, read = self.unpack(self.place, first)[0], set[int]()
        while at and at not in read:
            read.add(at)
            (tags,) = self.unpack(self.length, at)
            if tags > MOST_TAGS:
                raise ValueError(f"a page has {tags:,} tags")
            page = self._page(at, tags)
            yield page
            last = page.end + struct.calcsize(self.place) > len(self.data)
            at = 0 if last else self.unpack(self.place, page.end)[0]

    def _page(self, begin: int, tags: int) -> _Page:
        size = struct.calcsize(self.order + self.entry)
        first = begin + struct.calcsize(self.order + self.length)
        end = first + tags * size
        entries, numbers, xmp, seen = list[bytes](), dict[int, int](), None, set[int]()
        for at in range(first, end, size):
            tag, kind, count, value = self.unpack(self.entry, at)
            if tag in seen:
                continue
            seen.add(tag)
            if count == 1 and kind in (SHORT, LONG):
                short = "H" if kind == SHORT else "I"
                (numbers[tag],) = self.unpack(short, at + size - struct.calcsize(self.place))
            if tag == TIFF_XMP:
                xmp = self.data[value : value + min(count, MOST_TEXT_BYTES)]
            if tag in PIXEL_TAGS:
                if count > PIXEL_TAGS[tag]:
                    raise ValueError(f"tag {tag} has {count:,} values")
                entries.append(self.data[at : at + size])
        return _Page(begin, end, entries, numbers, xmp)


def _tiff(data: bytes, most_pages: float, most_pixels: int) -> ImageContent:
    """Keep the pages, and in the directory of each the tags that pixels depend on."""
    order = "<" if data.startswith(b"II") else ">"
    large = b"+" in data[2:4]
    file = _Tiff(data, order, *("Q", "Q", "HHQQ") if large else ("H", "I", "HHII"))
    first = 8 if large else 4
    pages = list[_Page]()
    for page in file.pages(first):
        if len(pages) >= most_pages:
            raise MorePages
        width, length = (page.numbers.get(tag, 0) for tag in (TILE_WIDTH, TILE_LENGTH))
        if width * length > most_pixels:
            raise ValueError(f"it has tiles of {width:,} x {length:,} pixels")
        pages.append(page)
    pages = [page for page in pages if not page.numbers.get(SUBFILE_TYPE, 0) & PREVIEW_OR_MASK] or pages[:1]
    following = {page.begin: after.begin for page, after in pairwise(pages)}
    view, at = memoryview(data), first + struct.calcsize(file.place)
    kept: list[bytes | memoryview] = [view[:first], file.pack(file.place, pages[0].begin if pages else 0)]
    for page in sorted(pages, key=attrgetter("begin")):
        if page.begin < at:
            raise ValueError("its directories overlap")
        written = [file.pack(file.length, len(page.entries)), *page.entries]
        written.append(file.pack(file.place, following.get(page.begin, 0)))
        kept += [view[at : page.begin], *written]
        at = page.begin + sum(map(len, written))
    kept.append(view[at:])
    turned = [page.numbers.get(ORIENTATION) or _orientation(None, page.xmp) for page in pages]
    return ImageContent("TIFF", b"".join(kept), turned)


def _joined(kept: list[memoryview], data: bytes) -> bytes:
    """Join the parts of a file; return the file itself if they are all of it."""
    return data if sum(map(len, kept)) == len(data) else b"".join(kept)


def _orientation(exif: bytes | None, xmp: bytes | None) -> int:
    """Return how a picture is turned, by its Exif data, else by its XMP; 1 if neither says it."""
    found = _exif_orientation(exif.removeprefix(EXIF)) if exif else None
    if found is None and xmp and (match := TURNED.search(xmp)):
        found = int(match[1])
    return 1 if found is None else found


def _exif_orientation(exif: bytes) -> int | None:
    """Return the number of the tag in the first directory, which is that of a TIFF; None without one."""
    order = "<" if exif.startswith(b"II") else ">"
    try:
        first = next(_Tiff(exif, order, "H", "I", "HHII").pages(4), None)
    except (struct.error, ValueError):
        return None
    return None if first is None else first.numbers.get(ORIENTATION)
