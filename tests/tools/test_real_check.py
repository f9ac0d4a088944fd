"""Any checkpoint tried on real inputs (`python -m tools.real_check`): inputs, outcomes of both sides, tables."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile

from support.audio import RATE_HZ, window_recordings
from support.bundles import BundleCache
from support.checkpoints import CheckpointCache
from support.timestamps import TIMESTAMPS
from support.whisper_tokenizer import whisper_tokenizer
from tightbeam.deploy import Bundle
from tightbeam.export.checkpoint.load import load_checkpoint
from tools.real_check.bundle_side import by_bundle
from tools.real_check.errors import CheckError
from tools.real_check.inputs import folder_beside, read_inputs
from tools.real_check.measures import perplexity, word_error_rate
from tools.real_check.outcome import Counts, equal
from tools.real_check.task import BEAMS, GREEDY, SETTINGS, task_of
from tools.real_check.torch_side import by_torch

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
