"""Input of `run-model`: the lines of several files in their order, each with its place, and files of a wrong kind."""

from __future__ import annotations

import codecs
import io
import os
import shutil
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from tightbeam.deploy.console import counted
from tightbeam.deploy.errors import NO_NAME, InputError
from tightbeam.deploy.inputs.audio_files import is_audio
from tightbeam.deploy.inputs.image_files import is_image
from tightbeam.deploy.inputs.json_line import read_json_line
from tightbeam.deploy.inputs.lines import parse_ids

__all__ = [
    "AUDIO_NAMES",
    "IDS",
    "IMAGE_NAMES",
    "STDIN",
    "TEXT",
    "InputFiles",
    "InputKind",
    "Place",
    "json_objects",
    "sound_of_standard_input",
]

STDIN = "-"
HEAD = 10
"""Lines at the beginning of a file that show its kind."""
CHUNK_BYTES = 1 << 20
"""Bytes read at a time to count lines."""


@dataclass(frozen=True)
class InputKind:
    """Kind of the lines of a file.

    Attributes
    ----------
    line : str
        One line, as a phrase for errors.
    short : str
        The same, for who is about to type one.
    fix : str
        Advice where a file holds something else.
    readable : callable
        Function of a line's text; raises InputError, or returns False, for a line of another kind.
    errors : str
        How bytes that are not UTF-8 are decoded, as of ``bytes.decode``.
    """

    line: str
    short: str
    fix: str
    readable: Callable[[str], object]
    errors: str = "strict"

    def accepts(self, line: bytes) -> bool:
        """True for a line of this kind."""
        try:
            return bool(self.readable(line.decode(errors=self.errors).rstrip("\r\n")))
        except (UnicodeDecodeError, InputError):
            return False


def _exists(name: str) -> bool:
    try:
        return Path(name).exists()
    except (OSError, ValueError):  # a name that is too long, a NUL byte
        return False


TEXT = InputKind("text in UTF-8", "a text", "convert or decompress it", lambda text: True)
IDS = InputKind(
    "a JSON list of token ids such as [0, 31414, 2]", "a JSON list of token ids", "leave --ids out for text", parse_ids
)
AUDIO_NAMES = InputKind(
    "the name of a file",
    "the name of an audio file",
    "pass audio files, or a text file that names an audio file in each line",
    _exists,
    "surrogateescape",
)

IMAGE_NAMES = InputKind(
    "the name of a file",
    "the name of an image file",
    "pass image files, or a text file that names an image file in each line",
    _exists,
    "surrogateescape",
)


def _is_input(name: str) -> bool:
    """True for a file that is an input by itself, rather than lines."""
    return is_audio(name) or is_image(name)


def json_objects(field: str) -> InputKind:
    """The kind of lines that are JSON objects with a source in ``field``."""
    line = f"a JSON object with the field {field!r}"
    return InputKind(line, line, "leave --json-input out for text", lambda text: read_json_line(text, field))


@dataclass(frozen=True)
class Place:
    """Place of an input.

    Attributes
    ----------
    file : str
        The file's name, or "standard input".
    number : int
        The line's number in its file, from 1.
    prefix : str
        The place, as errors begin with it; empty for audio and images, which their own errors name.
    """

    file: str
    number: int
    prefix: str


class _LinesOnDisk:
    """The lines of a file, read when they are wanted. Raises OSError where the file cannot be read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._count, last = 0, b"\n"
        with path.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                self._count, last = self._count + chunk.count(b"\n"), chunk[-1:]
        self._count += last != b"\n"

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[bytes]:
        with self._path.open("rb") as file:
            yield from file


@dataclass(frozen=True)
class _File:
    """One input file; standard input has no lines yet."""

    name: str
    lines: Sequence[bytes] | _LinesOnDisk | None
    whole: bool = False
    is_input: bool = False
    """True for an input by itself, rather than lines."""

    @property
    def shown(self) -> str:
        return "standard input" if self.name == STDIN else self.name


class InputFiles:
    """Lines of several files, in their order.

    Iterate over the lines once. For each result, in the order of the lines, ``next_place`` returns its line's place.

    Parameters
    ----------
    names : sequence of str
        Names of files; ``-`` is standard input. The name of an audio or image file is an input by itself.
    document : bool
        Each file is one input, its lines joined by spaces.

    Raises
    ------
    InputError
        A file cannot be read.
    """

    def __init__(self, names: Sequence[str], *, document: bool = False) -> None:
        if names.count(STDIN) > 1:
            raise InputError("- (standard input) is named twice; name it once")
        self._files = [_read(name, document) for name in names]
        self._places: deque[Place] = deque()
        self._kind = TEXT

    @property
    def count(self) -> int | None:
        """Number of inputs; None where standard input is one of them."""
        known = [len(file.lines) for file in self._files if file.lines is not None]
        return sum(known) if len(known) == len(self._files) else None

    @property
    def audio(self) -> str | None:
        """The first name of an audio file; None where there is none."""
        return next((file.name for file in self._files if is_audio(file.name)), None)

    @property
    def image(self) -> str | None:
        """The first name of an image file; None where there is none."""
        return next((file.name for file in self._files if is_image(file.name)), None)

    def known_recordings(self) -> Iterator[str]:
        """Names of the audio files, as the command line or a list of them has them; none of standard input."""
        for file in self._files:
            for line in () if file.lines is None else file.lines:
                if name := line.removeprefix(codecs.BOM_UTF8).decode(errors="replace").strip():
                    yield name

    def take_binary_files(self) -> None:
        """Take files that hold a zero byte in their first lines, which no list of names does, as inputs by themselves,
        whatever they are called."""
        for place, file in enumerate(self._files):
            if file.lines is not None and any(b"\0" in line for line in islice(file.lines, HEAD)):
                self._files[place] = _input(file.name)

    def check(self, kind: InputKind) -> None:
        """Raise InputError for a file that is not of ``kind``, as its first ten lines show.

        A file is of another kind if none of them can be read, or if the first one is no text and one holds a zero
        byte. Standard input is checked while its first ten lines are read.
        """
        self._kind = kind
        for file in self._files:
            if file.lines is not None and not file.is_input:
                _check_head(list(islice(file.lines, HEAD)), file.shown, kind)

    def __iter__(self) -> Iterator[bytes]:
        for file in self._files:
            head: list[bytes] = []
            for number, line in enumerate(_standard_input() if file.lines is None else file.lines, start=1):
                if file.lines is None and number <= HEAD:
                    head.append(line)
                    _check_head(head, file.shown, self._kind)
                prefix = "" if file.is_input else file.shown if file.whole else f"{file.shown}, line {number}"
                self._places.append(Place(file.shown, number, f"{prefix}: " if prefix else ""))
                yield line.removeprefix(codecs.BOM_UTF8) if number == 1 else line

    def next_place(self) -> Place:
        """The place of the oldest line whose place was not returned yet."""
        return self._places.popleft()

    def skip(self, count: int) -> tuple[Iterator[bytes], Place | None]:
        """Skip lines that need not be run.

        Parameters
        ----------
        count : int
            Lines to skip.

        Returns
        -------
        lines : iterator of bytes
            The lines behind them.
        place : Place or None
            The place of the last skipped line; None where there is none.

        Raises
        ------
        InputError
            There are fewer lines.
        """
        lines, place = iter(self), None
        for skipped in range(count):
            if next(lines, None) is None:
                found = counted(skipped, "input")
                raise InputError(f"the output has {count} results, and the files {found}; pass the same files again")
            place = self.next_place()
        return lines, place


@contextmanager
def sound_of_standard_input(sources: Sequence[str]) -> Iterator[str]:
    """The name of a file that holds the recording on standard input, while it is used."""
    if list(sources) != [STDIN]:
        raise InputError("--sound-input reads one recording from standard input; leave the files out")
    if sys.stdin is None or sys.stdin.isatty():
        raise InputError("--sound-input: standard input holds no recording; redirect a file or a pipe to it")
    with tempfile.TemporaryDirectory() as folder:
        name = str(Path(folder) / "standard-input.wav")
        with open(name, "wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file, CHUNK_BYTES)
        yield name


def _standard_input() -> Iterable[bytes]:
    """The lines of standard input, by a reader of their own: a thread may still wait for a line when Python exits, and
    Python cannot close the common reader then."""
    try:
        descriptor = os.dup(sys.stdin.fileno())
    except (OSError, ValueError):  # not a file
        return sys.stdin.buffer
    return open(descriptor, "rb")


def _check_head(head: Sequence[bytes], name: str, kind: InputKind) -> None:
    head = [line.removeprefix(codecs.BOM_UTF8) for line in head]
    if any(b"\0" in line for line in head) and not TEXT.accepts(head[0]):
        raise InputError(f"{name} holds binary data, expected {kind.line} in each line; {kind.fix}")
    if len(head) == HEAD and not any(map(kind.accepts, head)):
        raise InputError(f"none of the first {HEAD} lines of {name} is {kind.line}; {kind.fix}")


def _input(name: str) -> _File:
    return _File(name, [name.encode("utf-8", "surrogateescape")], whole=True, is_input=True)


def _read(name: str, document: bool) -> _File:
    if _is_input(name):
        return _input(name)
    if not name.strip():
        raise InputError(f"{NO_NAME}; pass a text file, or - for standard input")
    if name == STDIN and sys.stdin is None:
        raise InputError("standard input is closed; pass a text file")
    if name == STDIN and not document:
        return _File(name, None)
    try:
        if name != STDIN and not document and Path(name).is_file():
            return _File(name, _LinesOnDisk(Path(name)))
        data = sys.stdin.buffer.read() if name == STDIN else Path(name).read_bytes()  # a pipe is read once
    except FileNotFoundError:
        raise InputError(f"there is no file {name}; pass a text file, or - for standard input") from None
    except IsADirectoryError:
        raise InputError(f"{name} is a folder; pass a text file, - for standard input, or --ray for a folder") from None
    except (OSError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise InputError(f"cannot read {name}: {reason}; pass a text file, or - for standard input") from None
    if document:
        return _File(name, [b" ".join(data.splitlines())], whole=True)
    return _File(name, list(io.BytesIO(data)))
