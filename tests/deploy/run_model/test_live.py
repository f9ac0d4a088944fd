"""`run-model --live`: words of standard input while it comes."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from support.audio import RATE_HZ, chirp, encoded
from support.bundles.cache import BundleCache
from support.checkpoints.families import WHISPER_GENERATION
from support.checkpoints.timestamps import written_with_timestamps
from support.recordings_command import load_words, run
from tightbeam.deploy import Runner
from tightbeam.deploy.inputs.live import LiveUpdate, LiveWord, Revision
from tightbeam.deploy.run_model.live import _TextWriter

WAVE = np.concatenate([chirp(1.3), np.zeros(RATE_HZ // 2, np.float32), chirp(1.2, low_hz=2000, high_hz=90)])
PCM = (WAVE * 32767).astype("<i2").tobytes()


@pytest.fixture
def runner(bundles: BundleCache, monkeypatch: pytest.MonkeyPatch) -> Runner:
    return load_words(bundles, monkeypatch)


def test_each_run_is_a_json_object_and_the_text_is_that_of_all(runner: Runner) -> None:
    records = [json.loads(line) for line in run("--live", "--json", given=PCM)[0].splitlines()]
    words = [word for record in records for word in record["words"]]
    text = "".join(record["text"] for record in records)
    assert text == "".join(word["word"] for word in words) and re.fullmatch("( w[0-9]+)+", text)
    assert len(records) > 2 and records[-1]["pending"] == "" and records[-1]["heard"] == 3.0
    times = [word[name] for word in words for name in ("start", "end")]
    assert times == sorted(times) and times[-1] <= 3.0


def test_the_text_and_a_note_of_the_speed(runner: Runner) -> None:
    """Sound of another rate, and a file of any kind."""
    text, notes = run("--live", "-", "--sample-rate", "8000", "--sample-format", "s16le", given=PCM[: len(PCM) // 4])
    assert re.fullmatch(r"(w\d+ ?)+\n", text) and "1.5 s of sound, real-time factor" in notes
    text, notes = run("--live", "--sound-input", "-q", given=encoded(WAVE, kind="flac", codec="flac"))
    assert re.fullmatch(r"(w\d+ ?)+\n", text) and notes == ""


@pytest.mark.parametrize(
    ("arguments", "given", "reason"),
    [
        (["talk.wav"], PCM, "--live reads one recording from standard input; leave the files out"),
        (["--output", "x"], PCM, "--output is not for --live, which writes the text of standard input"),
        (["--stream"], PCM, "--stream is not for --live"),
        (["--clip-timestamps", "1"], PCM, "--clip-timestamps is not for --live"),
        (["--sample-rate", "8000", "--sound-input"], PCM, "--sample-rate does not go with --sound-input"),
        (["--return-token-scores"], PCM, "return_token_scores=True is not for live"),
        ([], b"", "standard input"),
        ([], b"RIFF" + PCM, "standard input has a header"),
        (["--sound-input"], PCM, "standard input cannot be read as audio"),
    ],
)
def test_what_cannot_be_transcribed_is_an_error_of_one_line(
    runner: Runner, arguments: list[str], given: bytes, reason: str
) -> None:
    text, notes = run("--live", *arguments, given=given, code=1)
    assert text == "" and notes.startswith("error: ") and reason in notes and notes.count("\n") == 1, notes


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


UPDATES = [
    LiveUpdate([LiveWord(" The", 0, 1), LiveWord(" end.", 1, 2)], " And it", 3),
    LiveUpdate([LiveWord(" And", 2, 3)], " \x1b[2Jgoes", 4, [Revision(0, 1, "The", "An")]),
]


def test_a_sentence_is_a_line_and_a_terminal_shows_what_is_pending(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file, terminal = io.StringIO(), _Terminal()
    monkeypatch.setenv("COLUMNS", "12")
    for sink in (file, terminal):
        writer = _TextWriter(sink, quiet=False)
        writer.write(UPDATES)
        writer.end()
    assert file.getvalue() == "The end.\nAnd\n"
    rows = terminal.getvalue().split("\r\x1b[K")
    assert rows[1] == "The end.\n\x1b[2mAnd it\x1b[0m" and rows[-1] == "And\n"
    assert rows[2] == "\x1b[2m\\x1b[2Jgoes\x1b[0m", "a row of 11 signs, and nothing that a terminal obeys"
    assert capsys.readouterr().err.splitlines() == ["note: at 0.0 s a later run gives 'An' for the settled 'The'"] * 2


def test_ctrl_c_ends_the_sound_and_settles_it(bundles: BundleCache, tmp_path: Path) -> None:
    """The pipe stays open, as that of a recorder that does not end."""
    folder = written_with_timestamps(
        bundles("dedup", "whisper", generation=WHISPER_GENERATION, tokenizer=True), tmp_path
    )
    command = [sys.executable, "-m", "tightbeam.deploy.commands.run_model", str(folder), "--live", "--json", "-q"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        stopper = threading.Timer(120, process.kill)
        stopper.start()
        process.stdin.write(PCM)
        process.stdin.flush()
        first = process.stdout.readline()
        os.kill(process.pid, signal.SIGINT)
        rest, error = process.stdout.read(), process.stderr.read()
        stopper.cancel()
    assert (process.returncode, error) == (0, b"")
    records = [json.loads(line) for line in [first, *rest.splitlines()]]
    assert records[-1]["pending"] == "" and records[-1]["heard"] >= records[0]["heard"] > 0
