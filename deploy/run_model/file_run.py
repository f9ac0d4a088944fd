"""The options of a run of files on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tightbeam.deploy.inputs.files.sound_source import RawFormat, SoundSource
from tightbeam.deploy.inputs.lines import LineFormat
from tightbeam.deploy.run_model.options import RunOptions

__all__ = ["FileRun"]


@dataclass(frozen=True, kw_only=True)
class FileRun(RunOptions):
    """A run on this machine that the command line asks for.

    Attributes
    ----------
    output : str
        File of the results, or for recordings and images a folder; "-" is standard output.
    resume : str or None
        File with the results of an interrupted run, in place of ``output``.
    force : bool
        Replace the content of ``output``.
    line_format : LineFormat
    document : bool
        Each file is one input, in place of each line.
    prompt : str or None
        The input of a text model, in place of files; for Whisper, its setting ``prompt``.
    settings : mapping
        Settings of ``model.generate``.
    batch_size, max_rows : int or None
        The most inputs, or rows, that run together.
    subtitles : str or None
        Format of subtitles, in place of text.
    sound_input : bool
        Standard input is one recording.
    raw : RawFormat or None
        The format of recordings that are raw samples.
    recording_file : str or None
        The file that the recording on standard input was written to.
    live : SoundSource or None
        The recording on standard input, read while it comes.
    max_words : int or None
        The most words of a subtitle; None for all words of a segment.
    stream : bool
        Write each text in pieces, as soon as no later token can change them, or subtitles as the windows of a recording
        are done.
    document_format : str or None
        The format of documents; None for that of each file's ending.
    glossary : str or None
        File of terms whose translation is forced in documents.
    """

    output: str
    resume: str | None
    force: bool
    line_format: LineFormat
    document: bool
    settings: Mapping[str, Any]
    batch_size: int | None
    max_rows: int | None
    subtitles: str | None
    sound_input: bool
    raw: RawFormat | None = None
    recording_file: str | None = None
    live: SoundSource | None = None
    max_words: int | None = None
    stream: bool = False
    prompt: str | None = None
    document_format: str | None = None
    glossary: str | None = None

    @property
    def target(self) -> str:
        """The file that results are written to."""
        return self.output if self.resume is None else self.resume

    @property
    def option(self) -> str:
        """The option that names the target."""
        return "--output" if self.resume is None else "--resume"
