"""``generation_config=``: the settings of `model.generate(generation_config=...)`, and their origin in errors."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GenerationConfig

from support.audio import chirp
from support.bundles.cache import BundleCache, with_generation
from support.checkpoints.families import SENTENCES, WHISPER_GENERATION
from tightbeam.deploy import GenerationError, NoEffectWarning, Runner
from tightbeam.deploy.generation.fields import DORMANT, INERT, SAMPLING, WARPERS
from tightbeam.deploy.generation.layers import read_generation_config
from tightbeam.deploy.generation.without_effect import remove_settings_without_effect

IDS = [[5, 6, 7, 2], [8, 9, 30, 2]]
DEFAULTS = {"num_beams": 2, "max_length": 11, "min_length": 5, "length_penalty": 0.5, "no_repeat_ngram_size": 2}
"""Settings of the checkpoint, which a config overrides field by field."""


@pytest.fixture(scope="module")
def model(bundles: BundleCache) -> Any:
    return bundles.trace("bart", tokenizer=True)[0].model


@pytest.fixture
def both(bundles: BundleCache, model: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[Runner, Any]:
    """The runner and the model, both with `DEFAULTS`."""
    runner = Runner.load(bundles("el", tokenizer=True), threads=1)
    generation = {**runner.manifest.generation, **DEFAULTS}
    monkeypatch.setattr(model, "generation_config", GenerationConfig(**generation))
    runner = with_generation(runner, generation)
    return runner, model


CONFIGS: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    ({}, {}),
    ({"num_beams": 3}, {}),
    ({"num_beams": 1}, {}),  # a default of transformers' that the checkpoint does not have
    ({"num_beams": 4, "max_new_tokens": 7, "length_penalty": 2.0}, {}),
    ({"min_length": 0, "no_repeat_ngram_size": 0, "max_length": 20}, {}),
    ({"num_beams": 3, "max_length": 9}, {"num_beams": 1}),
    ({"num_beams": 3, "max_new_tokens": 9}, {"max_new_tokens": None}),
    ({"num_beams": 2, "repetition_penalty": 1.4, "bad_words_ids": [[9], [12, 13]]}, {"min_new_tokens": 8}),
    ({"early_stopping": "never", "forced_eos_token_id": 7}, {"num_beams": 4, "num_return_sequences": 2}),
    ({"temperature": 0.6, "top_p": 0.9, "output_scores": False, "use_cache": True}, {}),
)


@pytest.mark.parametrize(("config", "settings"), CONFIGS, ids=str)
def test_tokens_are_those_of_generate(
    both: tuple[Runner, Any], tmp_path: Path, config: dict[str, Any], settings: dict[str, Any]
) -> None:
    runner, model = both
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        given = GenerationConfig(**config)
        expected = model.generate(torch.tensor(IDS), generation_config=given, **settings).numpy()
        path = tmp_path / "g1.json"
        given.to_json_file(path)
        for form in (given, config, path, str(path)):
            found = runner.generate(IDS, generation_config=form, **settings).sequences
            np.testing.assert_array_equal(found, expected, err_msg=repr(form))


def test_configs_of_the_table_differ_in_their_tokens(both: tuple[Runner, Any]) -> None:
    """Otherwise a config that is not read could not be seen."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = {both[0].generate(IDS, generation_config=config).sequences.tobytes() for config, _ in CONFIGS[:6]}
    assert len(found) >= 5


def test_the_config_of_a_speech_model(bundles: BundleCache) -> None:
    """The config carries the languages, the tasks and facts of the model, which ask for nothing."""
    arguments = {"generation": WHISPER_GENERATION}
    model = bundles.trace("whisper", **arguments)[0].model
    runner = Runner.load(bundles("el", "whisper", **arguments), threads=1)
    assert runner.log_mel is not None
    features = np.stack([runner.log_mel.features(chirp(1.0))])
    config = GenerationConfig(**model.generation_config.to_dict())
    config.language, config.alignment_heads = "de", [[0, 0]]
    config.update(num_beams=2, max_length=12)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = model.generate(
            torch.tensor(features), generation_config=config, return_dict_in_generate=True, output_scores=True
        ).sequences.numpy()
    found = runner.generate_from_features(features, generation_config=config).sequences
    np.testing.assert_array_equal(found, expected)
    assert found[0, :2].tolist() == [3, WHISPER_GENERATION["lang_to_id"]["<|de|>"]]
    for method in (runner.transcribe_segments, runner.stream_segments):
        with pytest.warns(NoEffectWarning) as caught, pytest.raises(GenerationError, match="timestamps"):
            method([chirp(1.0)], output_scores=True)
        assert {warning.filename for warning in caught} == {__file__}


def test_every_method_takes_a_config(both: tuple[Runner, Any]) -> None:
    runner, _ = both
    config = GenerationConfig(num_beams=3, max_new_tokens=4)
    texts = list(SENTENCES)
    assert runner.generate_text(texts, generation_config=config) == runner.generate_text(
        texts, num_beams=3, max_new_tokens=4
    )
    assert runner.options(generation_config=config, num_beams=1) == runner.options(num_beams=1, max_new_tokens=4)
    assert runner.options(generation_config=None) == runner.options()


def test_a_file_is_read_once_a_call(both: tuple[Runner, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "g1.json"
    path.write_text('{"num_beams": 3}')
    reads: list[Path] = []
    read_text = Path.read_text
    monkeypatch.setattr(Path, "read_text", lambda self, **kwargs: reads.append(self) or read_text(self, **kwargs))
    both[0].generate_text(list(SENTENCES), generation_config=path, batch_size=1)
    assert reads == [path]


# Errors


@pytest.mark.parametrize(
    ("config", "settings", "message"),
    [
        ({"num_beams": 0}, {}, "num_beams=0 (from {source})"),
        ({"num_beams": 0}, {"num_beams": -1}, "num_beams=-1 (from the call)"),
        ({"num_beems": 3}, {}, "num_beems=3 (from {source}) is not a generation setting; did you mean num_beams?"),
        ({"do_sample": 1}, {}, "do_sample=1 (from {source}) is neither true nor false; pass True or False"),
        ({"length_penalty": "x"}, {"num_beams": 2}, "length_penalty='x' (from {source})"),
        ({"num_beams": 200}, {}, "num_beams"),
        ({}, {"temperature": 0.5}, "temperature=0.5 (from the call) does nothing without do_sample"),
        ({"num_beams": 2}, {"num_beams": 1, "num_return_sequences": 2}, "num_return_sequences=2 (from the call)"),
    ],
    ids=str,
)
def test_errors_name_the_origin(
    both: tuple[Runner, Any], tmp_path: Path, config: dict[str, Any], settings: dict[str, Any], message: str
) -> None:
    path = tmp_path / "g1.json"
    path.write_text(json.dumps(config))
    for form, source in ((config, "generation_config"), (path, str(path))):
        with pytest.raises(GenerationError) as caught:
            both[0].generate(IDS, generation_config=form, **settings)
        assert message.format(source=source) in str(caught.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (5, "generation_config=5 holds no settings by name; pass a GenerationConfig, a dict such as"),
        ([("num_beams", 4)], "holds no settings by name"),
        ({4: "num_beams"}, "holds no settings by name"),
        (GenerationConfig, "holds no settings by name"),
        ("nowhere.json", "there is no file nowhere.json; pass a JSON file such as"),
    ],
    ids=str,
)
def test_what_is_no_config_is_refused(both: tuple[Runner, Any], given: Any, message: str) -> None:
    with pytest.raises(GenerationError) as caught:
        both[0].generate(IDS, generation_config=given)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_none_in_a_config_is_not_set() -> None:
    layer = read_generation_config({"num_beams": None, "max_length": 4})
    assert (layer.source, layer.values, layer.asked) == ("generation_config", {"max_length": 4}, False)
    assert read_generation_config(layer) is layer


# Settings without effect


def test_settings_without_effect_are_a_warning_once(both: tuple[Runner, Any]) -> None:
    runner, _ = both
    texts = list(SENTENCES)
    asked = {"output_scores": True, "return_dict_in_generate": True, "use_cache": False}
    with pytest.warns(NoEffectWarning) as caught:
        found = runner.generate_text(texts, batch_size=1, **asked)
    assert [str(warning.message) for warning in caught] == [
        f"{name}={value} (from the call) has no effect here; leave it out" for name, value in asked.items()
    ]
    assert {warning.filename for warning in caught} == {__file__}
    assert found == runner.generate_text(texts)
    with pytest.warns(NoEffectWarning, match=r"top_p=0.9 \(from generation_config\) has no effect here, since"):
        runner.generate(IDS, generation_config=GenerationConfig(do_sample=False, top_p=0.9))


def test_values_that_ask_for_nothing_are_no_warning(both: tuple[Runner, Any]) -> None:
    runner, _ = both
    nothing: dict[str, Any] = {"output_scores": False, "output_attentions": None, "use_cache": True}
    runner.generate(IDS, generation_config={**nothing, "transformers_version": "5", "temperature": 1.0}, **nothing)


def test_a_checkpoint_may_have_settings_without_effect(both: tuple[Runner, Any]) -> None:
    runner, _ = both
    generation = {**runner.manifest.generation, "output_scores": True, "use_cache": False, "temperature": 0.1}
    runner = with_generation(runner, generation)
    runner.generate(IDS)


def test_each_field_without_effect_is_removed() -> None:
    kept, notes = remove_settings_without_effect(dict.fromkeys(INERT, 3), speech=False)
    assert (kept, len(notes)) == ({}, len(INERT) - 3)  # the three that a saved config carries
    given = {"generation_config": dict.fromkeys((*DORMANT, *SAMPLING), 3)}
    kept, notes = remove_settings_without_effect(given, speech=False)
    read = dict.fromkeys((*WARPERS, *SAMPLING), 3)  # while sampling, which a checkpoint may ask for
    assert kept["generation_config"][0].values == read
    assert len(notes) == len(DORMANT) - len(WARPERS)
    _, more = remove_settings_without_effect(given, speech=False, defaults={})
    assert set(more) - set(notes) == {
        f"{name}=3 (from generation_config) has no effect here, since nothing is sampled" for name in read
    }
    assert remove_settings_without_effect(given, speech=False, defaults={"do_sample": True})[1] == notes
    asked = {"return_segments": True, "return_token_timestamps": True}
    kept, notes = remove_settings_without_effect(asked, speech=False)
    (layer,) = kept["generation_config"]
    assert (layer.source, layer.values, layer.asked, notes) == ("the call", asked, True, [])
    assert len(remove_settings_without_effect(asked, speech=True)[1]) == 1
