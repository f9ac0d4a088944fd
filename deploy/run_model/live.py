"""`run-model --live`: standard input is transcribed while it comes, word by word."""

from __future__ import annotations

import json
import re
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

import numpy as np
from rich.cells import cell_len

from tightbeam.deploy.arrays import Array
from tightbeam.deploy.console import printable, say
from tightbeam.deploy.errors import InputError
from tightbeam.deploy.generation.without_effect import remove_settings_without_effect
from tightbeam.deploy.inputs.files.audio import read_blocks
from tightbeam.deploy.inputs.files.sound_source import RawFormat, SoundSource
from tightbeam.deploy.inputs.live import LiveTranscription, LiveUpdate
from tightbeam.deploy.inputs.read_ahead import ReadAhead
from tightbeam.deploy.model.model import Model
from tightbeam.deploy.run_model.input_files import STDIN, recording_on_standard_input, sound_on_standard_input

__all__ = ["LiveCommand", "run_live"]

AHEAD = 1200
"""The most blocks of half a second that wait while the model runs; the recorder waits for more."""
SENTENCE_END = re.compile(r"""[.!?…。！？]["'”’»)\]]*\Z""")  # noqa: RUF001  # full-width forms too
LONGEST_LINE = 400
"""Characters after which a line ends without a sentence's end."""
ERASED, DIM, PLAIN = "\r\x1b[K", "\x1b[2m", "\x1b[0m"


@dataclass(frozen=True, kw_only=True)
class LiveCommand:
    """Live sound that the command line asks for.

    Attributes
    ----------
    bundle : Path
    sources : tuple of str
        Standard input alone.
    engine, device, threads
        Arguments of `Runner.load`.
    quiet : bool
        Print errors only beside the text.
    json_lines : bool
        Write a JSON object for each run of the model.
    sound_input : bool
        The sound is a file of any kind that comes through a pipe.
    raw : RawFormat or None
        The format of raw samples; None for 16-bit samples of one channel at the model's rate.
    settings : mapping
        Settings of ``model.generate``.
    """

    bundle: Path
    sources: tuple[str, ...]
    engine: str
    device: str
    threads: int | None
    quiet: bool
    json_lines: bool
    sound_input: bool
    raw: RawFormat | None
    settings: Mapping[str, Any]


def run_live(run: LiveCommand) -> int:
    """Transcribe standard input until it ends, or until Ctrl-C, which ends the sound.

    Returns
    -------
    int
        The exit code, 0.

    Raises
    ------
    BundleError, GenerationError, InputError
        The model has no live sound, the sound cannot be read, or the model failed.
    KeyboardInterrupt
        Ctrl-C was pressed twice. All words that are known are written.
    """
    if sys.stdout is None:
        raise InputError("standard output is closed, so the text would be lost; redirect it to a file")
    sources = run.sources or (STDIN,)
    if run.sound_input:
        with recording_on_standard_input(sources, live=True) as found:
            try:
                return _run(run, found)
            except InputError as error:
                if isinstance(found, str):  # a temporary file
                    raise InputError(str(error).replace(found, "standard input")) from None
                raise
    return _run(run, SoundSource("standard input", run.raw, sound_on_standard_input("--live", sources)))


def _run(run: LiveCommand, source: str | SoundSource) -> int:
    model = Model.load(run.bundle, engine=run.engine, device=run.device, threads=run.threads)
    settings, notes = remove_settings_without_effect(
        dict(run.settings), speech=model.has_windows, defaults=model.manifest.generation
    )
    live = LiveTranscription(model, settings)
    for note in () if run.quiet else notes:
        say(f"note: {note}")
    assert model.log_mel is not None
    rate_hz = model.log_mel.sampling_rate_hz
    if isinstance(source, SoundSource) and source.format is None and not run.sound_input:
        source = SoundSource(source.name, RawFormat(rate_hz), source.stream)
    writer: _TextWriter | _JsonWriter = (
        _JsonWriter(sys.stdout) if run.json_lines else _TextWriter(sys.stdout, run.quiet)
    )
    spent_s, heard_s = 0.0, 0.0
    try:
        with ReadAhead(read_blocks(source, rate_hz), AHEAD) as read:
            for samples in _until_stopped(read):
                begin_s = time.perf_counter()
                updates = live.add(samples)
                spent_s += time.perf_counter() - begin_s
                model.bundle.wait_for_weights()
                writer.write(updates)
        begin_s = time.perf_counter()
        updates = live.finish()
        spent_s += time.perf_counter() - begin_s
        model.bundle.wait_for_weights()
        writer.write(updates)
        heard_s = updates[-1].heard_s
    except (InputError, KeyboardInterrupt):
        writer.write([live.settle_rest()])
        raise
    finally:
        writer.end()
    if not run.quiet and heard_s:
        say(f"{heard_s:.1f} s of sound, real-time factor {spent_s / heard_s:.2f}")
    return 0


def _until_stopped(read: ReadAhead[Array]) -> Iterator[Array]:
    """Yield the sound that has come since the last time, until it ends, or until Ctrl-C."""
    with _Stop() as stop:
        while not stop.asked:
            try:
                with stop.at_once():
                    block = read.get()
            except _SoundEnds:
                return
            if block is None:
                return
            blocks = [block]
            while len(blocks) < AHEAD and (block := read.get(0)) is not None:
                blocks.append(block)
            yield np.concatenate(blocks)


class _SoundEnds(Exception):
    """Ctrl-C was pressed while the program waited for sound."""


class _Stop:
    """Ctrl-C as the end of the sound: the first one waits for the run of the model, the second one does not."""

    def __init__(self) -> None:
        self.asked, self._waits = False, False

    def __enter__(self) -> _Stop:
        self._before = signal.signal(signal.SIGINT, self._interrupt)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Let the first Ctrl-C raise `_SoundEnds`."""
        self._waits = True
        try:
            yield
        finally:
            self._waits = False

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        again, self.asked = self.asked, True
        if again:
            raise KeyboardInterrupt
        if self._waits:
            raise _SoundEnds


class _JsonWriter:
    """Writes a JSON object for each run."""

    def __init__(self, sink: TextIO) -> None:
        self._sink = sink

    def write(self, updates: Sequence[LiveUpdate]) -> None:
        for update in updates:
            words = [{"word": own.word, "start": own.start_s, "end": own.end_s} for own in update.words]
            record: dict[str, Any] = {
                "text": update.text,
                "words": words,
                "pending": update.pending,
                "heard": round(update.heard_s, 2),
            }
            if update.revisions:
                record["revisions"] = [
                    {"start": own.start_s, "end": own.end_s, "settled": own.settled, "later": own.later}
                    for own in update.revisions
                ]
            self._sink.write(f"{json.dumps(record, ensure_ascii=False)}\n")
        self._sink.flush()

    def end(self) -> None:
        pass


class _TextWriter:
    """Writes settled words, a sentence in each line. On a terminal the pending text stands behind them, faint."""

    def __init__(self, sink: TextIO, quiet: bool) -> None:
        self._sink, self._quiet, self._shows = sink, quiet, sink.isatty()
        self._line = ""  # which is not ended

    def write(self, updates: Sequence[LiveUpdate]) -> None:
        for update in updates:
            if self._shows:
                self._sink.write(ERASED)
            for word in update.words:
                self._add(printable(word.word))
            if self._shows:
                self._sink.write(self._row(printable(update.pending)))
            self._sink.flush()
            for own in () if self._quiet else update.revisions:
                self._note(own.start_s, own.settled, own.later)

    def end(self) -> None:
        if self._line:
            self._sink.write(f"{ERASED}{self._line}\n" if self._shows else "\n")
            self._line = ""
        elif self._shows:
            self._sink.write(ERASED)
        self._sink.flush()

    def _add(self, word: str) -> None:
        piece = word if self._line else word.lstrip()
        self._line += piece
        ends = SENTENCE_END.search(piece) is not None or len(self._line) > LONGEST_LINE
        if not self._shows:
            self._sink.write(piece + "\n" * ends)
        elif ends:
            self._sink.write(f"{self._line}\n")
        if ends:
            self._line = ""

    def _row(self, pending: str) -> str:
        """Return the end of the line and the pending text, as much as stands in a row of the terminal."""
        width = shutil.get_terminal_size().columns - 1
        line, pending = self._line, pending if self._line else pending.lstrip()
        while line and cell_len(line + pending) > width:
            line = line[1:]
        while cell_len(pending) > width:
            pending = pending[1:]
        return f"{line}{DIM}{pending}{PLAIN}"

    def _note(self, start_s: float, settled: str, later: str) -> None:
        if self._shows:
            self._sink.write(ERASED)
            self._sink.flush()
        say(f"note: at {start_s:.1f} s a later run gives {later!r} for the settled {settled!r}")
