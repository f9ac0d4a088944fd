"""Input of `run-model`: the lines of several files in order, each with its place, and checks of the files' kind."""

from __future__ import annotations

import codecs
import glob
import io
import os
import shutil
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from tightbeam.deploy.console import counted
from tightbeam.deploy.errors import NO_NAME, InputError
from tightbeam.deploy.inputs.files.audio import is_audio
from tightbeam.deploy.inputs.files.image import is_image
from tightbeam.deploy.inputs.files.sound_source import SoundSource
from tightbeam.deploy.inputs.json_line import json_object, read_json_line
from tightbeam.deploy.inputs.lines import MOST_TEXT_BYTES, parse_ids, read_lines

__all__ = [
    "AUDIO_NAMES",
    "IDS",
    "IMAGE_NAMES",
    "STDIN",
    "TEXT",
    "InputFiles",
    "InputKind",
    "Place",
    "expand_patterns",
    "is_folder",
    "json_objects",
    "recording_on_standard_input",
    "sound_on_standard_input",
    "visible_files",
]

STDIN = "-"
TYPED = "a text of the command line is --prompt TEXT, and a conversation --chat"
HEAD = 10
"""Number of lines at the beginning of a file by which its kind is checked."""
CHUNK_BYTES = 1 << 20
"""Bytes read at a time to count lines."""
MOST_PIPE_BYTES = 1 << 30
"""Limit of the lines of a pipe or a device that is named as a file. They are held in memory, and some devices never
end."""


@dataclass(frozen=True)
class InputKind:
    """A kind of lines that a file may have.

    Attributes
    ----------
    line : str
        One line, as a phrase for errors.
    short : str
        The same for a user who types lines.
    fix : str
        Advice for a file that holds something else.
    readable : callable
        Function of a line's text. It raises InputError, or returns False, for a line of another kind.
    errors : str
        Argument of ``bytes.decode`` for bytes that are not UTF-8.
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
    "pass audio files, or a text file that names an audio file in each line; --sound-input reads a recording from "
    "standard input, and --sample-rate raw samples",
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
    """True for a file that is one input rather than lines."""
    return is_audio(name) or is_image(name)


def is_folder(name: str) -> bool:
    """True for the name of a folder that exists."""
    try:
        return Path(name).is_dir()
    except (OSError, ValueError):
        return False


def json_objects(field: str) -> InputKind:
    """Return the kind of lines that are JSON objects with a source in ``field``."""
    line = f"a JSON object with the field {field!r}"
    return InputKind(line, line, "leave --json-input out for text", lambda text: read_json_line(text, field))


@dataclass(frozen=True)
class Place:
    """The place of an input.

    Attributes
    ----------
    file : str
        The file's name, or "standard input".
    is_input : bool
        True for a file that is one input rather than lines.
    number : int
        The line's number in its file, from 1.
    prefix : str
        The place as the beginning of errors; empty for audio and images, whose own errors name the file.
    """

    file: str
    number: int
    prefix: str
    is_input: bool


class _LinesOnDisk:
    """The lines of a file, read on demand. Raises OSError if the file cannot be read."""

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
            yield from read_lines(file)


@dataclass(frozen=True)
class _File:
    """One input file; standard input has no lines yet."""

    name: str
    lines: Sequence[bytes] | _LinesOnDisk | None
    whole: bool = False
    is_input: bool = False
    """True for a file that is one input rather than lines."""
    is_folder: bool = False
    """True for a folder whose files are not taken yet."""

    @property
    def shown(self) -> str:
        return "standard input" if self.name == STDIN else self.name


class InputFiles:
    """Lines of several files, in their order.

    Iterate over the lines once. For each result, in the order of the lines, call ``next_place`` for its line's place.

    Parameters
    ----------
    names : sequence of str
        Names of files; ``-`` is standard input. An audio or image file is one input. The files of a folder are taken by
        `take_folders`, which has to be called if one is named.
    document : bool
        Each file is one input, with its line breaks.
    sound : bool
        Each file is one recording, whatever its name is; so is standard input.

    Raises
    ------
    InputError
        A file cannot be read.
    """

    def __init__(self, names: Sequence[str], *, document: bool = False, sound: bool = False) -> None:
        if names.count(STDIN) > 1:
            raise InputError("- (standard input) is named twice; name it once")
        self._files = [_input(name) if sound and not is_folder(name) else _read(name, document) for name in names]
        self._places: deque[Place] = deque()
        self._kind = TEXT
        self._inside: dict[str, str] = {}  # the names of files of folders, within their folders

    @property
    def count(self) -> int | None:
        """Number of inputs; None if standard input is one of them."""
        known = [len(file.lines) for file in self._files if file.lines is not None]
        return sum(known) if len(known) == len(self._files) else None

    @property
    def audio(self) -> str | None:
        """The name of the first audio file; None without audio files."""
        return next((file.name for file in self._files if is_audio(file.name)), None)

    @property
    def image(self) -> str | None:
        """The name of the first image file; None without image files."""
        return next((file.name for file in self._files if is_image(file.name)), None)

    def known_recordings(self) -> Iterator[str]:
        """Yield the names of audio files from the command line and from lists of names, except standard input's."""
        for file in self._files:
            for line in () if file.lines is None else file.lines:
                if name := line.removeprefix(codecs.BOM_UTF8).decode(errors="replace").strip():
                    yield name

    @property
    def several(self) -> bool:
        """True if there are several files."""
        return len(self._files) > 1

    def inside(self, name: str) -> str:
        """Return the name of a file within the folder that was named, or without its folder."""
        return self._inside.get(name, Path(name).name)

    def take_folders(self, accepts: Callable[[str], bool] | None, kind: str) -> None:
        """Take the files of each folder, at any depth and in the order of their names, in place of the folder.

        Parameters
        ----------
        accepts : function or None
            Function of a file's name; True for a file that is taken. None takes no folder.
        kind : str
            The files that are taken, as a phrase for errors.

        Raises
        ------
        InputError
            A folder is not taken, cannot be read, or has no such file.
        """
        files: list[_File] = []
        for file in self._files:
            if not file.is_folder:
                files.append(file)
                continue
            if accepts is None:
                raise InputError(
                    f"{file.name} is a folder; pass a text file, - for standard input, or --ray for a folder"
                )
            found = [path for path in visible_files(file.name) if accepts(path.name)]
            if not found:
                raise InputError(f"the folder {file.name} has no {kind}; pass another folder, or name files")
            self._inside |= {str(path): path.relative_to(file.name).as_posix() for path in found}
            files += [_input(str(path)) for path in found]
        self._files = files

    @classmethod
    def of_text(cls, name: str, text: str) -> InputFiles:
        """Return one text of the command line as a file with the name of its option."""
        files = cls([])
        files._files = [_File(name, [text.encode("utf-8", "surrogateescape")], whole=True)]
        return files

    def join_lines(self) -> None:
        """Join the lines of each document by spaces."""
        for place, file in enumerate(self._files):
            if file.whole and not file.is_input and isinstance(file.lines, list):
                self._files[place] = replace(file, lines=[b" ".join(text.splitlines()) for text in file.lines])

    def take_binary_files(self) -> None:
        """Take each file with a zero byte in its first lines as one input, whatever its name is, since a list of names
        has no zero byte."""
        for place, file in enumerate(self._files):
            if file.lines is not None and any(b"\0" in line for line in islice(file.lines, HEAD)):
                self._files[place] = _input(file.name)

    def check(self, kind: InputKind) -> None:
        """Raise InputError for a file that is not of ``kind``, by its first ten lines.

        A file is of another kind if none of these lines can be read, or if the first is not text and one holds a zero
        byte. Standard input is checked while its first ten lines are read.
        """
        self._kind = kind
        for file in self._files:
            if file.lines is not None and not file.is_input:
                _check_head(list(islice(file.lines, HEAD)), file.shown, kind)

    def begins_with_object(self) -> bool:
        """Return True if the first line of a file is a JSON object. Standard input is not read for this."""
        firsts = (next(iter(file.lines), b"") for file in self._files if file.lines is not None and not file.is_input)
        return any(map(_is_object, firsts))

    def __iter__(self) -> Iterator[bytes]:
        for file in self._files:
            head: list[bytes] = []
            for number, line in enumerate(read_lines(_standard_input()) if file.lines is None else file.lines, start=1):
                if file.lines is None and number <= HEAD:
                    head.append(line)
                    _check_head(head, file.shown, self._kind)
                prefix = "" if file.is_input else file.shown if file.whole else f"{file.shown}, line {number}"
                self._places.append(Place(file.shown, number, f"{prefix}: " if prefix else "", file.is_input))
                yield line.removeprefix(codecs.BOM_UTF8) if number == 1 else line

    def next_place(self) -> Place:
        """Return the place of the next line, in the order of the lines."""
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
            The lines after the skipped ones.
        place : Place or None
            The place of the last skipped line; None without skipped lines.

        Raises
        ------
        InputError
            There are fewer lines than ``count``.
        """
        lines, place = iter(self), None
        for skipped in range(count):
            if next(lines, None) is None:
                found = counted(skipped, "input")
                raise InputError(f"the output has {count} results, and the files {found}; pass the same files again")
            place = self.next_place()
        return lines, place


def visible_files(folder: str | Path) -> list[Path]:
    """Return the files of a folder, at any depth and in the order of their names, without files and folders whose name
    begins with a dot or an underscore. Raises InputError."""
    try:
        found = sorted(inside for inside in Path(folder).rglob("*") if inside.is_file())
    except OSError as error:
        raise InputError(f"cannot read {folder}: {(error.strerror or '').lower()}; pass a file or a folder") from None
    return [file for file in found if not any(part[0] in "._" for part in file.relative_to(folder).parts)]


def _is_prose(name: str) -> bool:
    """True for a name that is rather a text: of several words, and without an ending."""
    return len(name.split()) > 1 and not Path(name).suffix.strip(".")


def expand_patterns(names: Sequence[str]) -> list[str]:
    """Replace each pattern, such as ``talks/*.wav``, by the files that it matches, in the order of their names.

    A name that exists is no pattern. Raises InputError for a pattern that matches nothing.
    """
    found: list[str] = []
    for name in names:
        if not any(mark in name for mark in "*?[") or "\0" in name or _exists(name):
            found.append(name)
            continue
        matched = sorted(glob.glob(name, recursive=True))
        if not matched:
            other = TYPED if _is_prose(name) else "pass the names of files, or another pattern"
            raise InputError(f"no file matches {name}; {other}")
        found += [each for each in matched if not Path(each).is_dir()] or matched
    return found


BOX_BYTES, BOXES = 8, (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip")
"""Bytes of the header of an MP4 or MOV file's first part, and the names of such parts."""


def sound_on_standard_input(option: str, sources: Sequence[str]) -> BinaryIO:
    """Return standard input, which ``option`` makes the only recording. Raises InputError."""
    if list(sources) != [STDIN]:
        raise InputError(f"{option} reads one recording from standard input; leave the files out")
    if sys.stdin is None or sys.stdin.isatty():
        raise InputError(f"{option}: standard input holds no recording; redirect a file or a pipe to it")
    return _standard_input()


@contextmanager
def recording_on_standard_input(sources: Sequence[str], *, live: bool) -> Iterator[str | SoundSource]:
    """Give the recording on standard input: the name of a temporary file that it is written to, or with ``live`` the
    stream, unless it is in a format whose index may be at its end."""
    stdin = sound_on_standard_input("--sound-input", sources)
    begun = b""
    if live and not stdin.seekable():
        begun = stdin.read(BOX_BYTES)
        if begun[4:] not in BOXES:
            yield SoundSource("standard input", stream=stdin, begun=begun)
            return
    with tempfile.TemporaryDirectory() as folder:
        name = str(Path(folder) / "standard-input.wav")
        with open(name, "wb") as file:
            file.write(begun)
            shutil.copyfileobj(stdin, file, CHUNK_BYTES)
        yield name


def _standard_input() -> BinaryIO:
    """Return standard input as a reader of its own.

    A thread may still wait for a line when Python exits, and Python cannot close the common reader then.
    """
    try:
        descriptor = os.dup(sys.stdin.fileno())
    except (OSError, ValueError):  # not a file
        return sys.stdin.buffer
    return open(descriptor, "rb")


def _is_object(line: bytes) -> bool:
    """True for a line that is a JSON object."""
    try:
        return json_object(line.removeprefix(codecs.BOM_UTF8).decode("utf-8", "replace")) is not None
    except InputError:  # one with a field that occurs twice
        return True


def _check_head(head: Sequence[bytes], name: str, kind: InputKind) -> None:
    head = [line.removeprefix(codecs.BOM_UTF8) for line in head]
    if any(b"\0" in line for line in head) and not TEXT.accepts(head[0]):
        raise InputError(f"{name} holds binary data, expected {kind.line} in each line; {kind.fix}")
    if len(head) == HEAD and not any(map(kind.accepts, head)):
        raise InputError(f"none of the first {HEAD} lines of {name} is {kind.line}; {kind.fix}")


def _input(name: str) -> _File:
    return _File(name, [name.encode("utf-8", "surrogateescape")], whole=True, is_input=True)


def _content(name: str, most: int) -> bytes:
    """Return the content of a file, or its first ``most`` bytes and one more."""
    if name == STDIN:
        return sys.stdin.buffer.read(most + 1)
    with open(name, "rb") as file:
        return file.read(most + 1)


def _read(name: str, document: bool) -> _File:
    if _is_input(name):
        return _input(name)
    if not name.strip():
        raise InputError(f"{NO_NAME}; pass a text file, or - for standard input")
    if name == STDIN and sys.stdin is None:
        raise InputError("standard input is closed; pass a text file")
    if name != STDIN and not document and is_folder(name):
        return _File(name, [], is_folder=True)
    if name == STDIN and not document:
        return _File(name, None)
    try:
        if name != STDIN and not document and Path(name).is_file():
            return _File(name, _LinesOnDisk(Path(name)))
        data = _content(name, MOST_TEXT_BYTES if document else MOST_PIPE_BYTES)  # a pipe is read once
    except FileNotFoundError:
        other = TYPED if _is_prose(name) else "pass a text file, or - for standard input"
        raise InputError(f"there is no file {name}; {other}") from None
    except IsADirectoryError:
        raise InputError(f"{name} is a folder; pass a text file, - for standard input, or --ray for a folder") from None
    except (OSError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise InputError(f"cannot read {name}: {reason}; pass a text file, or - for standard input") from None
    if document and len(data) > MOST_TEXT_BYTES:
        shown = "standard input" if name == STDIN else name
        raise InputError(
            f"{shown} has more than the {MOST_TEXT_BYTES:,} bytes that one text may have; cut it into pieces"
        )
    if len(data) > MOST_PIPE_BYTES:
        raise InputError(
            f"{name} has more than {MOST_PIPE_BYTES:,} bytes, and is not a file; pipe it to standard input"
        )
    if document:
        return _File(name, [data], whole=True)
    return _File(name, list(io.BytesIO(data)))
