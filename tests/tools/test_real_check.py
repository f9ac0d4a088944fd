"""Any checkpoint tried on real inputs (`python -m tools.real_check`): inputs, outcomes of both sides, tables."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import soundfile

from support.audio import RATE_HZ, window_recordings
from support.bundles.cache import BundleCache
from support.checkpoints.families import CheckpointCache
from support.checkpoints.timestamps import TIMESTAMPS
from support.checkpoints.whisper_tokenizer import whisper_tokenizer
from support.commands import Command, caller
from tightbeam.deploy import Bundle
from tightbeam.export.checkpoint.load import load_checkpoint
from tools.real_check.__main__ import main
from tools.real_check.bundle_side import by_bundle
from tools.real_check.check import Report
from tools.real_check.exports import Form, Result
from tools.real_check.inputs import CheckError, folder_beside, read_inputs
from tools.real_check.measures import distance, divergence, perplexity, word_error_rate
from tools.real_check.outcome import Counts, Outcome, Part, equal
from tools.real_check.speed import Speed
from tools.real_check.task import BEAMS, GREEDY, SAMPLING, SETTINGS, task_of
from tools.real_check.torch_side import by_torch, is_tie

LINES = ("the cat sat on the mat", "a dog", "the dog ran to the cat and the mat and the cat ran")


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """A folder of texts."""
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "lines.txt").write_text("".join(f"{line}\n" for line in LINES))
    (folder / "references.txt").write_text("".join(f"{line[::-1]}\n" for line in LINES))
    (folder / "text.txt").write_text(" ".join(LINES * 9))
    return folder


@pytest.fixture
def recordings(tmp_path: Path) -> Path:
    """A folder of recordings of one window, of one second, and of more."""
    folder = tmp_path / "recordings"
    folder.mkdir()
    for number, wave in enumerate(window_recordings()):
        soundfile.write(folder / f"{number}.wav", wave, RATE_HZ, subtype="FLOAT")
        (folder / f"{number}.txt").write_text("the cat")
        (folder / f"{number}.language").write_text("de")
    return folder


@pytest.fixture
def whisper(checkpoints: CheckpointCache, tmp_path: Path) -> Path:
    """A tiny Whisper with a tokenizer, timestamps and alignment heads."""
    folder = checkpoints.copy(tmp_path / "whisper", "whisper", generation=TIMESTAMPS)
    whisper_tokenizer().save_pretrained(folder)
    return folder


def test_texts_are_those_of_generate(bundles: BundleCache, texts: Path) -> None:
    """Greedy search, beams, and sampling by the same draws; log-probabilities of the references."""
    for family in ("bart", "llama"):
        checkpoint = load_checkpoint(bundles.checkpoints(family, tokenizer=True))
        task = task_of(checkpoint, read_inputs(texts))
        expected = by_torch(task)
        found = by_bundle(task, Bundle.load(bundles("dedup", family, tokenizer=True)), 1)
        assert equal(found, expected) == {name: Counts(3, 0, 3) for name in SETTINGS}
        assert found.texts == expected.texts and all(map(any, expected.texts.values()))
        assert len({str(rows) for rows in expected.sequences.values()}) == len(SETTINGS)
        wanted = perplexity(expected.log_probabilities)
        assert perplexity(found.log_probabilities) == pytest.approx(wanted, rel=1e-5)
        assert wanted > 1.5
        assert divergence(expected.distributions, found.distributions) < 1e-7
        assert 0 < distance(expected.distributions, found.distributions) < 1e-4


@pytest.mark.slow
def test_recordings_are_those_of_generate(whisper: Path, recordings: Path, tmp_path: Path) -> None:
    """One window by tokens, more by segments with times of tokens; log-probabilities of the transcriptions."""
    from tightbeam.export import export_model

    task = task_of(load_checkpoint(whisper), read_inputs(recordings))
    assert (len(task.rows), len(task.waves)) == (1, 4)
    expected = by_torch(task)
    found = by_bundle(task, export_model(whisper, tmp_path / "bundle"), 1)
    assert equal(found, expected) == {
        **{name: Counts(1, 0, 1) for name in (GREEDY, BEAMS)},
        "recordings": Counts(4, 0, 4),
    }
    assert any(part.times_s for parts in expected.recordings for part in parts)
    wanted = perplexity(expected.log_probabilities)
    assert perplexity(found.log_probabilities) == pytest.approx(wanted, rel=1e-5)


def test_words_count_without_case_and_punctuation() -> None:
    assert word_error_rate(["The cat's mat."], ["the cat's mat"]) == 0
    assert word_error_rate(["a b c", ""], ["a x c d", "e"]) == pytest.approx(3 / 5)
    assert perplexity([np.log([0.5, 0.25]), np.log([0.125])]) == pytest.approx(4)


def test_distributions_are_compared_over_all_places() -> None:
    exact = [np.log([[0.5, 0.5], [0.25, 0.75]]), np.log([[1 - 1e-9, 1e-9]])]
    other = [np.log([[0.25, 0.75], [0.25, 0.75]]), np.log([[0.5, 0.5]])]
    wanted = (0.5 * np.log(2) + 0.5 * np.log(2 / 3) + np.log(2)) / 3
    assert divergence(exact, other) == pytest.approx(wanted, rel=1e-6)
    assert divergence(exact, exact) == distance(exact, exact) == 0
    moved = [row + 0.1 for row in exact]
    assert distance(exact, moved) == pytest.approx(0.1 / np.concatenate(exact).std())
    with np.errstate(divide="ignore"):
        banned = np.log([[0.0, 1.0]])
    assert divergence([banned], [np.log([[0.5, 0.5]])]) == pytest.approx(np.log(2))


def test_a_seasoned_copy_has_the_inputs_of_its_model(tmp_path: Path) -> None:
    (tmp_path / "llama-inputs").mkdir()
    assert folder_beside(tmp_path / "llama-strong-2") == folder_beside(tmp_path / "llama") == tmp_path / "llama-inputs"
    assert folder_beside(tmp_path / "marian-strong") == tmp_path / "marian-strong-inputs"


def write(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(content)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (shutil.rmtree, "is not a folder"),
        (lambda folder: (folder / "lines.txt").unlink(), "has no inputs; expected lines.txt"),
        (write("lines.txt", b"one\n\ntwo\n"), "line 2 is empty"),
        (write("lines.txt", b""), "lines.txt is empty"),
        (write("lines.txt", b"\xff\n"), "lines.txt cannot be read: it is not UTF-8"),
        (write("references.txt", b"one\n"), "references.txt has 1 lines, expected 3"),
        (write("a.wav", b""), "a.wav has no transcription; expected it in a.txt"),
    ],
)
def test_bad_folders_have_errors_of_one_line(texts: Path, change: Callable[[Path], object], said: str) -> None:
    change(texts)
    with pytest.raises(CheckError, match=said) as caught:
        read_inputs(texts)
    assert "\n" not in str(caught.value)


def test_inputs_that_do_not_suit_a_model_are_refused(
    checkpoints: CheckpointCache, texts: Path, recordings: Path, whisper: Path
) -> None:
    text = load_checkpoint(checkpoints("bart", tokenizer=True))
    (texts / "lines.txt").write_text("the cat " * 60)
    (texts / "references.txt").unlink()
    for checkpoint, folder, said in (
        (text, recordings, "has no lines.txt, which a model of texts needs"),
        (text, texts, "line 1 has .* tokens, and the model 64 positions"),
        (load_checkpoint(checkpoints("bart")), texts, "has no tokenizer"),
        (load_checkpoint(whisper), texts, "has no recordings, which a speech model needs"),
        (load_checkpoint(checkpoints("moonshine")), recordings, "reads whole recordings"),
    ):
        with pytest.raises(CheckError, match=said):
            task_of(checkpoint, read_inputs(folder))
    (recordings / "0.wav").write_bytes(b"no recording")
    with pytest.raises(CheckError, match=r"0\.wav"):
        task_of(load_checkpoint(whisper), read_inputs(recordings))


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """The command, in this process."""
    monkeypatch.setattr("tools.bench.peers.peer.SETTLE_SECONDS", 0)
    return partial(caller(monkeypatch, capsys), entry=main)


@pytest.mark.slow
def test_a_checkpoint_beside_transformers(
    checkpoints: CheckpointCache, texts: Path, tmp_path: Path, command: Command
) -> None:
    """Tables and page; a checkpoint that cannot be read is a row, and ends the run with 1."""
    checkpoint = checkpoints.copy(tmp_path / "tiny", "bart", tokenizer=True)
    (tmp_path / "broken").mkdir()
    page = tmp_path / "page.md"
    page.write_text("# Before\n\n---\n\nold")
    options = ["--inputs", texts, "--variant", "dedup", "--variant", "el", "--precision", "fp32", "--rounds", 1]
    places = ["--threads", 1, "--work", tmp_path / "work", "--environments", tmp_path, "--page", page]
    done = command(checkpoint, tmp_path / "broken", *options, *places)
    assert done.code == 1
    (line,) = [line for line in done.err.splitlines() if line.startswith("error: ")]
    assert "broken: no config.json" in line
    text = page.read_text()
    assert text.startswith("# Before\n\n---\n\n## tiny\n") and "\n\nold" not in text
    assert done.out.strip() in text
    assert re.search(r"\*\*Tightbeam dedup float32\*\* \|[^\n]*\| 3 of 3, 3 of 3 \|", text)
    equal = "greedy 3 of 3, 4 beams 3 of 3, sampling 3 of 3"
    assert [variant in text for variant in ("| dedup | float32 |", "| el | float32 |")] == [True, True]
    assert text.count(equal) == 2
    assert "Not installed, and so left out: ctranslate2, llama.cpp" in text
    assert "It could not be tried" in text
    speeds = [line.split(" | ") for line in text.splitlines() if line.startswith(("| transformers", "| **Tightbeam"))]
    assert len(speeds) == 2 and all(int(cells[4]) > 0 for cells in speeds)


def test_options_and_inputs_are_checked_first(checkpoints: CheckpointCache, tmp_path: Path, command: Command) -> None:
    command("demo", "--variant", "best").failed("--variant best is unknown; pass baseline")
    command("demo", "--precision", "int3").failed("--precision int3 is unknown; pass")
    command("demo", "--inputs", tmp_path / "none").failed("none is not a folder")


def test_a_damaged_page_is_one_line(tmp_path: Path, command: Command) -> None:
    page = tmp_path / "page.md"
    page.write_bytes(b"\xff")
    command("demo", "--page", page).failed("page.md is not UTF-8; expected a page in Markdown")


@pytest.mark.slow
def test_further_checkpoints_run_in_processes_of_the_command(tmp_path: Path) -> None:
    """A process finds what it runs, though the command's own module is ``__main__``."""
    names = ["one", "two"]
    for name in names:
        (tmp_path / name).mkdir()
    further = [part for name in names for part in ("--without-speed", str(tmp_path / name))]
    places = ["--work", tmp_path / "work", "--page", tmp_path / "page.md"]
    command = [sys.executable, "-m", "tools.real_check", tmp_path / "none", *further, *places]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert [name in line for name, line in zip(["none", *names], errors, strict=True)] == [True] * 3


def test_what_is_wrong_is_said() -> None:
    """A failed export, and a sequence of float32 that no tie explains; int8 may differ."""
    exact, low = Form("dedup", "fp32"), Form("dedup", "int8")
    one = {"greedy": Counts(2, 0, 3)}
    tied = {"greedy": Counts(2, 1, 3)}
    report = Report("tiny", results=[Result(exact, "", False, 1, counts=tied), Result(low, "", False, 1, counts=one)])
    assert report.wrong() == []
    timed = Speed("Tightbeam", "float32", "dedup", equal={"alone": 7}, compared={"alone": 8})
    report.speeds = {"a": timed}
    assert report.wrong() == []
    timed.equal["alone"] = 6
    assert report.wrong() == ["tiny, dedup-fp32: 1 sequences differ from torch's (alone)"]
    report.results = [
        Result(exact, "", False, 1, counts=one),
        Result(low, "it failed", False, 1),
        Result(low, "refused", True, 1),
    ]
    report.speeds = {
        "a": Speed("Tightbeam", "int8", "dedup", error="it ended"),
        "b": Speed("other", "", "", error="no"),
    }
    assert report.wrong() == [
        "tiny, dedup-fp32: 1 sequences differ from torch's (greedy)",
        "tiny, dedup-int8: it failed",
        "tiny: it ended",
    ]


def test_other_tokens_and_segments_are_counted() -> None:
    rows = [[1, 2], [1, 3], [1, 4]]
    parts = [Part(0.0, 1.0, [5], [0.5])]
    expected = Outcome({"greedy": rows}, {}, [parts, parts])
    moved = [Part(0.0, 1.0, [5], [0.52])]
    mine = Outcome({"greedy": [[1, 2], [1, 9], [1, 8]]}, {}, [parts, moved])
    counts = equal(mine, expected, lambda name, index, row: row == [1, 9])
    assert counts == {"greedy": Counts(1, 1, 3), "recordings": Counts(1, 0, 2)}
    assert counts["greedy"].differing == 1


def test_no_draw_is_left_to_chance(checkpoints: CheckpointCache, texts: Path) -> None:
    """A tie is what torch generates in float64, and nothing else."""
    checkpoint = load_checkpoint(checkpoints("bart", tokenizer=True))
    task = task_of(checkpoint, read_inputs(texts))
    row = by_torch(task).sequences[SAMPLING][1]
    assert is_tie(task, SAMPLING, 1, row)
    assert not is_tie(task, SAMPLING, 1, [*row, 7])


def test_an_end_token_of_zero_ends(checkpoints: CheckpointCache, texts: Path) -> None:
    """Marian's is 0; without it the other engines' sequences, which leave it out, would all differ."""
    task = task_of(load_checkpoint(checkpoints("bart", tokenizer=True)), read_inputs(texts))
    generation = task.checkpoint.generation_config
    for given, expected in ((0, [0]), ([0, 2], [0, 2]), (None, [])):
        checkpoint = replace(task.checkpoint, generation_config={**generation, "eos_token_id": given})
        assert replace(task, checkpoint=checkpoint).ends == expected
