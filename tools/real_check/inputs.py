"""The folder of real inputs that a checkpoint is tried on.

lines.txt         texts or prompts, one a line
references.txt    the expected output of each line (optional)
text.txt          running text, for the perplexity of a decoder-only model (optional)
NAME.wav          a recording, with its transcription in NAME.txt, and its language in NAME.language (optional)
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tightbeam.export.checkpoint.resolve import DEMO_FOLDER

__all__ = ["CheckError", "RealInputs", "Recording", "folder_beside", "inputs_of", "read_inputs"]

LINES, REFERENCES, TEXT = "lines.txt", "references.txt", "text.txt"
FORM = f"expected {LINES}, or recordings NAME.wav with NAME.txt"


class CheckError(ValueError):
    """Inputs or options that cannot be used; the message says what was wrong, what was expected, and the fix."""


@dataclass(frozen=True)
class Recording:
    """A recording, its transcription, and the code of its language, such as "en"; "" if no file names it."""

    path: Path
    text: str
    language: str


@dataclass(frozen=True)
class RealInputs:
    """What a folder has.

    Attributes
    ----------
    folder : Path
    lines : tuple of str
        Texts or prompts; empty for a speech model.
    references : tuple of str
        The expected output of each line; empty if none are known.
    text : str
        Running text; "" without any.
    recordings : tuple of Recording
        Recordings in the order of their names.
    """

    folder: Path
    lines: tuple[str, ...]
    references: tuple[str, ...]
    text: str
    recordings: tuple[Recording, ...]


def read_inputs(folder: Path) -> RealInputs:
    """Read a folder of real inputs.

    Raises
    ------
    CheckError
        The folder lacks what it should have, or a file in it cannot be used.
    """
    if not folder.is_dir():
        raise CheckError(f"{folder} is not a folder; {FORM}; name a folder of real inputs with INPUTS or --inputs")
    lines = _lines(folder / LINES) if (folder / LINES).exists() else ()
    references = _lines(folder / REFERENCES) if (folder / REFERENCES).exists() else ()
    recordings = tuple(_recording(path) for path in sorted(folder.glob("*.wav")))
    if not lines and not recordings:
        raise CheckError(f"{folder} has no inputs; {FORM}")
    if references and len(references) != len(lines):
        raise CheckError(
            f"{folder / REFERENCES} has {len(references)} lines, expected {len(lines)}, one for each line of {LINES}; "
            "write the expected output of each"
        )
    text = _read(folder / TEXT) if (folder / TEXT).exists() else ""
    return RealInputs(folder, lines, references, text, recordings)


def inputs_of(checkpoint: Path, folder: Path | None) -> RealInputs:
    """Read the inputs in a folder, or if it is None those beside a checkpoint's folder."""
    if folder is None and checkpoint == DEMO_FOLDER:
        lines = (DEMO_FOLDER / "examples.txt").read_text(encoding="utf-8").splitlines()
        return RealInputs(DEMO_FOLDER, tuple(lines), (), "", ())
    return read_inputs(folder or folder_beside(checkpoint))


def folder_beside(checkpoint: Path) -> Path:
    """The folder of inputs beside a checkpoint: that of its name, or of a name that its own begins with.

    ``zoo/llama-inputs`` is the folder of ``zoo/llama``, and of ``zoo/llama-strong``, a seasoned copy of it.
    """
    parts = checkpoint.name.split("-")
    names = ("-".join(parts[:count]) for count in range(len(parts), 0, -1))
    folders = [checkpoint.with_name(f"{name}-inputs") for name in names]
    return next((folder for folder in folders if folder.is_dir()), folders[0])


def _recording(path: Path) -> Recording:
    said, language = path.with_suffix(".txt"), path.with_suffix(".language")
    if not said.exists():
        raise CheckError(f"{path} has no transcription; expected it in {said.name}; write what is said there")
    return Recording(path, _read(said), _read(language) if language.exists() else "")


def _lines(path: Path) -> tuple[str, ...]:
    lines = tuple(_read(path).splitlines())
    for number, line in enumerate(lines, 1):
        if not line.strip():
            raise CheckError(f"{path}, line {number} is empty; expected a text on each line; delete it")
    return lines


def _read(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise CheckError(f"{path} cannot be read: {reason}; expected text in UTF-8") from None
    if not text:
        raise CheckError(f"{path} is empty; expected text; write some, or delete the file")
    return text
