"""Languages and punctuation of speech models by name: which tokens begin the output, and what is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tightbeam.deploy.errors import GenerationError
from tightbeam.deploy.generation.resolve import resolve_settings
from tightbeam.deploy.generation.spoken_language import spoken_language

CANARY: dict[str, Any] = {
    "decoder_start_token_id": 7,
    "eos_token_id": 2,
    "language_prompts": {"de": [7, 10, 71, 71, 20], "fr": [7, 10, 73, 73, 20]},
    "language_prompt_target": 3,
    "language_prompt_unpunctuated": [4, 21],
}
SIZES = SimpleNamespace(vocabulary=101, max_target=64, decoder_only=False)


def prompt(defaults: dict[str, Any] = CANARY, **settings: Any) -> tuple[int, ...]:
    return resolve_settings(defaults, settings, SIZES, speech=False).for_prompt(1).prompt


def test_names_become_the_beginning_of_the_output() -> None:
    assert prompt() == (7,)
    assert prompt(language="de") == (7, 10, 71, 71, 20)
    assert prompt(language="German ", target_language="FR", punctuation=False) == (7, 10, 71, 73, 21)
    own = {**CANARY, "decoder_start_token_id": 5}
    assert prompt(own, language="fr", punctuation=True) == (5, 7, 10, 73, 73, 20)


def test_layers_are_taken_together() -> None:
    """A line may name the text's language where the command line has the language spoken."""
    config = {"language": "de", "punctuation": False}
    assert prompt(generation_config=config, target_language="fr") == (7, 10, 71, 73, 21)
    assert prompt(generation_config=config, language="fr") == (7, 10, 73, 73, 21)
    assert prompt(generation_config=config, decoder_input_ids=[7, 9]) == (7, 9)


@pytest.mark.parametrize("target", ["de", "fr"])
@pytest.mark.parametrize("punctuation", [True, False])
def test_the_language_is_read_back(target: str, punctuation: bool) -> None:
    row = prompt(language="fr", target_language=target, punctuation=punctuation)
    assert spoken_language(CANARY, row) == spoken_language(CANARY, (5, *row)) == "fr"
    assert spoken_language(CANARY, (7, 10, 1, 71, 20)) is None
    assert spoken_language(CANARY, (7,)) is None


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"language_prompts": [1]}, "language_prompts=.*is not lists of token ids by code; export the model again"),
        ({"language_prompts": {"de": 3}}, "is not lists of token ids by code"),
        ({"language_prompts": {"de": []}}, "is not lists of token ids by code"),
        ({"language_prompt_target": 5}, "is not a place in each of the prompts"),
        ({"language_prompt_target": "3"}, "is not a place in each of the prompts"),
        ({"language_prompt_unpunctuated": [9, 1]}, "is not a place and a token"),
        ({"language_prompt_unpunctuated": 4}, "is not a place and a token"),
        ({"language_prompts": {"de": [7, 10, 71, 71, 999]}}, "outside the vocabulary"),
    ],
)
def test_other_prompts_of_a_bundle_are_refused(change: dict[str, Any], problem: str) -> None:
    with pytest.raises(GenerationError, match=problem):
        prompt({**CANARY, **change}, language="de")
