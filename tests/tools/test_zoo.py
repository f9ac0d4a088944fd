"""The zoo's recipes (`python -m tools.zoo`): what is held out, the same bytes twice, folders whole or not there."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from support.slow_cases import slow_unless
from tools.training import Recipe
from tools.zoo import __main__ as zoo
from tools.zoo import _recipe, conversations, docstrings, grammar, llama, marian, recordings, whisper
from tools.zoo._whisper_batches import Batches
from tools.zoo._whisper_tokens import STEP_S, STEPS, new_tokenizer
from tools.zoo.speech import RATE_HZ, Speaker, Voice

RECIPE = Recipe(steps=2, seed=3, batch=2)
TINY: dict[str, tuple[Any, Any]] = {
    "llama": (llama.make, llama.Plan(RECIPE, vocabulary=300, width=96, layers=1, modules=6, tests=2)),
    "marian": (marian.make, marian.Plan(RECIPE, vocabulary=300, width=32, layers=(1, 1), tests=2)),
    "whisper": (
        whisper.make,
        whisper.Plan(RECIPE, sentences=6, vocabulary=300, width=64, layers=(1, 1), singles=1, long=0),
    ),
}


@pytest.fixture(autouse=True)
def torch_as_it_was() -> Iterator[None]:
    yield
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(1)


def test_held_out_sentences_are_never_trained_on() -> None:
    trained, held_out = (
        [list(islice(grammar.stream(seed, held_out=out), 4000)) for seed in (0, 1)] for out in (False, True)
    )
    combinations = [{one.combination for some in side for one in some} for side in (trained, held_out)]
    assert not combinations[0] & combinations[1]
    assert all(grammar.is_held_out(one) for one in combinations[1])
    texts = [{text for some in side for one in some for text in (one.en, one.es)} for side in (trained, held_out)]
    assert not texts[0] & texts[1]
    assert min(map(len, texts)) > 4000


def test_a_seed_gives_the_same_sentences_again() -> None:
    first, again, other = (list(islice(grammar.stream(seed), 50)) for seed in (5, 5, 6))
    assert first == again != other


def test_what_the_models_are_tried_on_is_held_out() -> None:
    people, verbs, things = (
        {word: noun.en for noun in some for word in words(noun)}
        for some, words in (
            (grammar.PEOPLE, lambda noun: [noun.en]),
            (grammar.VERBS, lambda verb: [verb.en, verb.en_present, verb.en_past]),
            (grammar.THINGS, lambda noun: [noun.en, noun.en_plural]),
        )
    )

    def combination(sentence: str) -> str:
        words = sentence.lower().replace(",", "").rstrip(".?").split()
        return "|".join(next(some[word] for word in words if word in some) for some in (people, verbs, things))

    spoken = recordings.tests(whisper.TESTS_SEED, 3, 1)
    said = [one.spoken.text for test in spoken if test.language == "en" for one in test.sentences]
    translated = [line.replace("?", "?.").split(". ") for line, _ in islice(marian.pairs(1, held_out=True), 40)]
    asked = [talk.turns[0][0] for talk in islice(conversations.stream(1, held_out=True), 40)]
    told = [text.replace("?", ".").split(". ")[0] for text in asked]
    for sentence in [*said, *(one for line in translated for one in line), *told]:
        assert grammar.is_held_out(combination(sentence)), sentence
    assert not {*docstrings.read(30)} & {*docstrings.read(3, held_out=True)}


@pytest.mark.parametrize(("name",), slow_unless([(name,) for name in TINY], lambda name: name != "llama"))
def test_a_recipe_gives_the_same_bytes_twice(tmp_path: Path, name: str) -> None:
    make, plan = TINY[name]
    made = []
    for turn in ("first", "second"):
        folders = [tmp_path / turn / part for part in ("model", "inputs")]
        for folder in folders:
            folder.mkdir(parents=True)
        make(plan, *folders)
        files = [path for folder in folders for path in sorted(folder.iterdir())]
        made.append({f"{path.parent.name}/{path.name}": path.read_bytes() for path in files})
    assert made[0] == made[1]
    assert {"model/README.md", "model/config.json", "model/model.safetensors", "model/tokenizer.json"} <= made[0].keys()


def test_speech_depends_on_nothing_that_was_said_before() -> None:
    text, voice = "The boy sees six boats.", Voice("en-us+f2", 170, 60)
    with Speaker() as speaker:
        first = speaker.speak(text, voice)
        with pytest.raises(ValueError, match="no voice 'none'"):
            speaker.speak(text, Voice("none"))
    with Speaker() as speaker:
        again = speaker.speak(text, voice)
    np.testing.assert_array_equal(first.wave, again.wave)
    assert (first.words, first.phonemes) == (again.words, again.phonemes)
    assert [text[place:].split()[0] for place, _ in first.words] == text.split()
    assert 0.7 < first.phonemes[-1][1] < len(first.wave) / RATE_HZ < 4


def test_a_token_is_looked_for_where_it_is_heard() -> None:
    """The words of one label after the other begin later, inside of the sentence that its timestamps enclose."""
    pool = recordings.spoken(0, 20)
    tokenizer = new_tokenizer((f" {one.text}" for some in pool.values() for one in some), 400)
    extractor = whisper.WhisperFeatureExtractor(chunk_length=round(STEPS * STEP_S))
    batch = next(Batches(pool, tokenizer, extractor, seed=0).stream(40))
    first = tokenizer.get_vocab()["<|0.00|>"]
    stamped = 0
    for labels, sounds in zip(batch.labels, batch.sounds, strict=True):
        heard = (sounds[:, 1] > sounds[:, 0]).nonzero().flatten()
        begins = sounds[heard, 0].tolist()
        assert begins == sorted(begins)
        for label, (begin, end) in zip(labels[heard].tolist(), sounds[heard].tolist(), strict=True):
            if label >= first:
                stamped += 1
                assert begin <= label - first <= end
    assert stamped > 20


def test_what_is_there_is_not_trained_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = []
    monkeypatch.setattr(zoo, "_train", lambda name: ran.append(name) or int(name == "llama"))
    (tmp_path / "whisper").mkdir()
    with pytest.raises(SystemExit, match=r"error: not trained: llama$"):
        zoo.main(tmp_path)
    assert sorted(ran) == ["llama", "marian"]
    assert f"{tmp_path / 'whisper'}: is there" in capsys.readouterr().out


def test_a_recipe_that_breaks_off_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "zoo" / "any"
    monkeypatch.setattr(sys, "argv", ["any", "--output", str(output), "--steps", "5", "--seed", "6"])

    def broken(steps: int, seed: int, folder: Path, inputs: Path) -> None:
        assert (steps, seed) == (5, 6)
        (folder / "config.json").write_text("{}")
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        _recipe.run("any", 7, broken)
    assert not list(output.parent.iterdir())
    _recipe.run("any", 7, lambda steps, seed, folder, inputs: _recipe.write_lines(inputs / "lines.txt", ["a"]))
    assert (tmp_path / "zoo" / "any-inputs" / "lines.txt").read_text() == "a\n"
    for arguments, message in (([], "exists; expected a new folder"), (["--steps", "0"], "expected 1 or more")):
        monkeypatch.setattr(sys, "argv", ["any", "--output", str(output), *arguments])
        with pytest.raises(SystemExit):
            _recipe.run("any", 7, broken)
        assert message in capsys.readouterr().err.splitlines()[-1]
