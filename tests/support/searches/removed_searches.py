"""Write the results of searches that transformers 5 has no more: tests/data/removed-searches/.

Run it in an environment of its own, at the root of the repository:

    python -m venv build/removed && build/removed/bin/pip install transformers==4.56.2 torch==2.13.0 numpy
    build/removed/bin/python tests/support/searches/removed_searches.py

Each file is a list of cases: the settings, the rows that the samples begin with, and the sequences and scores of
`model.generate`.
"""

from __future__ import annotations

import json
import random
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForSeq2SeqLM, GenerationConfig, GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.generation.beam_search import ConstrainedBeamSearchScorer
from transformers.modeling_outputs import CausalLMOutput

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests"))

from support.searches.hashed_logits import VOCABULARY, hashed_logits  # noqa: E402

FOLDER = ROOT / "tests" / "data" / "removed-searches"
RELEASE = "4.56.2"


class Hashed(PreTrainedModel, GenerationMixin):
    """A decoder-only model of `hashed_logits`, without a cache."""

    config_class = PretrainedConfig

    def __init__(self) -> None:
        super().__init__(PretrainedConfig(vocab_size=VOCABULARY))
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.ends: dict[int, float] = {}

    def prepare_inputs_for_generation(
        self, input_ids: torch.Tensor, attention_mask: Any = None, **_: Any
    ) -> dict[str, Any]:
        return {"input_ids": input_ids}

    def forward(self, input_ids: torch.Tensor, attention_mask: Any = None, **_: Any) -> CausalLMOutput:
        rows = [hashed_logits(row, self.ends) for row in input_ids.tolist()]
        return CausalLMOutput(logits=torch.stack([torch.from_numpy(row) for row in rows])[:, None])


def without_indices(method: Any) -> Any:
    """A scorer's method without the indices of beams, which the release cannot put together in every case."""
    return lambda self, *given, **named: method(self, *given, **{**named, "beam_indices": None})


ConstrainedBeamSearchScorer.process = without_indices(ConstrainedBeamSearchScorer.process)
ConstrainedBeamSearchScorer.finalize = without_indices(ConstrainedBeamSearchScorer.finalize)


def hashed_case(model: Hashed, ends: dict[int, float], rows: list[list[int]], settings: dict[str, Any]) -> Any:
    model.ends = ends
    model.generation_config = GenerationConfig(use_cache=False)
    ids = torch.tensor(rows)
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), return_dict_in_generate=True, output_scores=True, **settings
    )
    found = {
        "sequences": out.sequences.tolist(),
        "scores": [round(score, 6) for score in out.sequences_scores.tolist()],
    }
    return {"ends": {str(token): more for token, more in ends.items()}, "rows": rows, "settings": settings, **found}


def processors(draw: random.Random) -> dict[str, Any]:
    """Settings that every beam search has."""
    some: list[dict[str, Any]] = [
        {"repetition_penalty": draw.choice([0.8, 1.3, 2.0])},
        {"no_repeat_ngram_size": draw.choice([1, 2])},
        {"bad_words_ids": [[draw.randrange(4, VOCABULARY)], [draw.randrange(4, VOCABULARY), 7]]},
        {"suppress_tokens": [draw.randrange(4, VOCABULARY) for _ in range(4)]},
        {"begin_suppress_tokens": [draw.randrange(4, VOCABULARY) for _ in range(9)]},
        {"min_new_tokens": draw.choice([2, 4])},
        {"forced_eos_token_id": 2},
    ]
    settings = {
        "max_new_tokens": draw.choice([1, 4, 7, 10]),
        "length_penalty": draw.choice([1.0, 1.0, 0.0, 2.0, -0.5]),
        "early_stopping": draw.choice([False, False, True, "never"]),
        "eos_token_id": draw.choice([2, 2, [2, 11], [11, 2, 5]]),
        "pad_token_id": draw.choice([1, 2, 0]),
    }
    for each in draw.sample(some, draw.choice([0, 0, 1, 2])):
        settings |= each
    return settings


def group_cases() -> list[Any]:
    model, draw, cases = Hashed(), random.Random(0), []
    for index in range(72):
        beams, groups = draw.choice([(2, 2), (4, 4), (4, 2), (6, 3), (6, 2), (9, 3), (5, 5), (4, 4)])
        settings = {"num_beams": beams, "num_beam_groups": groups, **processors(draw)}
        settings["diversity_penalty"] = draw.choice([0.2, 1.0, 3.5, 50.0])
        settings["num_return_sequences"] = draw.randint(1, min(beams, 4))
        if index % 9 == 0:
            settings["eos_token_id"] = None
            settings.pop("forced_eos_token_id", None)
        ends = {2: draw.choice([-4.0, 0.0, 2.0, 4.0]), 11: 1.0}
        if index % 6 == 1:  # groups that are done choose a pad token that others would choose, too
            settings |= {"early_stopping": True, "pad_token_id": 11, "eos_token_id": 2, "min_new_tokens": 2}
            settings |= {"max_new_tokens": 10, "num_beam_groups": beams, "diversity_penalty": 2.0}
            ends = {2: 2.5, 11: 3.0}
        rows = [[draw.randrange(3, VOCABULARY) for _ in range(1 + index % 2)] for _ in range(2)]
        if index % 8 == 4:
            settings["forced_bos_token_id"] = 9
        cases.append(hashed_case(model, ends, rows, settings))
    return cases


def words(draw: random.Random) -> list[Any]:
    """Words that must occur: some with alternatives, of which several may begin alike."""
    few = draw.sample(range(3, VOCABULARY), 9)
    some: list[Any] = [
        [few[0], few[1]],
        [few[2]],
        [[few[3], few[4]], [few[3], few[5], few[6]], [few[3], few[6]]],
        [[few[7]], [few[8], few[0], few[0]]],
    ]
    return draw.sample(some, draw.choice([1, 1, 2, 3]))


def words_cases() -> list[Any]:
    model, draw, cases = Hashed(), random.Random(2), []
    for index in range(72):
        settings = {"num_beams": draw.choice([2, 3, 4, 6]), **processors(draw), "force_words_ids": words(draw)}
        settings["num_return_sequences"] = draw.randint(1, min(settings["num_beams"], 3))
        ends = {2: draw.choice([-4.0, 0.0, 2.0, 4.0]), 11: 1.0}
        if index % 9 == 0:
            settings["eos_token_id"] = None
            settings.pop("forced_eos_token_id", None)
        if index % 8 == 4:
            settings["forced_bos_token_id"] = 9
        rows = [[draw.randrange(3, VOCABULARY) for _ in range(1 + index % 2)] for _ in range(2)]
        cases.append(hashed_case(model, ends, rows, settings))
    return cases


def demo_cases(kinds: list[dict[str, Any]]) -> list[Any]:
    model = AutoModelForSeq2SeqLM.from_pretrained(ROOT / "export" / "demo", attn_implementation="eager").eval()
    draw, cases = random.Random(1), []
    vocabulary = model.config.vocab_size
    for settings in kinds:
        rows = [[0, *(draw.randrange(4, vocabulary) for _ in range(8)), 2] for _ in range(2)]
        out = model.generate(torch.tensor(rows), return_dict_in_generate=True, output_scores=True, **settings)
        scores = [round(score, 6) for score in out.sequences_scores.tolist()]
        cases.append({"rows": rows, "settings": settings, "sequences": out.sequences.tolist(), "scores": scores})
    return cases


def demo_groups() -> list[Any]:
    return demo_cases(
        [
            {"num_beams": 4, "num_beam_groups": 4, "diversity_penalty": 1.0, "max_new_tokens": 12},
            {"num_beams": 4, "num_beam_groups": 4, "diversity_penalty": 0.3, "num_return_sequences": 4},
            {"num_beams": 6, "num_beam_groups": 2, "diversity_penalty": 2.0, "num_return_sequences": 3},
            {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 5.0, "repetition_penalty": 1.5},
            {"num_beams": 9, "num_beam_groups": 3, "diversity_penalty": 0.7, "no_repeat_ngram_size": 2},
        ]
    )


def demo_words() -> list[Any]:
    return demo_cases(
        [
            {"num_beams": 4, "force_words_ids": [[300, 301]]},
            {"num_beams": 5, "force_words_ids": [[[40], [500, 600]], [77]], "num_return_sequences": 3},
            {"num_beams": 3, "force_words_ids": [[901]], "no_repeat_ngram_size": 2, "length_penalty": 0.5},
        ]
    )


def demo_group_tries() -> list[Any]:
    """Groups over a trie of ``entries``, of outputs that begin with given tokens."""
    model = AutoModelForSeq2SeqLM.from_pretrained(ROOT / "export" / "demo", attn_implementation="eager").eval()
    draw, cases = random.Random(3), []
    for begun in ([2, 0, 40], [2, 0, 40, 50]):
        firsts = [[40, 50 + draw.randrange(3)] for _ in range(60)]
        entries = [[*first, *(draw.randrange(60, 70) for _ in range(draw.randint(1, 4))), 2] for first in firsts]
        after: dict[tuple[int, ...], list[int]] = {}
        for entry in entries:
            for length, token in enumerate(entry):
                after.setdefault((2, 0, *entry[:length]), []).append(token)
        rows = [[0, *(draw.randrange(4, model.config.vocab_size) for _ in range(8)), 2] for _ in range(2)]
        settings: dict[str, Any] = {"num_beams": 6, "num_beam_groups": 3, "diversity_penalty": 1.5}
        settings |= {"num_return_sequences": 4, "max_new_tokens": 9}
        out = model.generate(
            torch.tensor(rows),
            decoder_input_ids=torch.tensor([begun] * len(rows)),
            prefix_allowed_tokens_fn=lambda _, row, after=after: after.get(tuple(row.tolist()), [2]),
            return_dict_in_generate=True,
            output_scores=True,
            **settings,
        )
        scores = [round(score, 6) for score in out.sequences_scores.tolist()]
        found = {"sequences": out.sequences.tolist(), "scores": scores}
        cases.append({"rows": rows, "entries": entries, "begun": begun, "settings": settings, **found})
    return cases


def main() -> None:
    if transformers.__version__ != RELEASE:
        raise SystemExit(f"transformers is {transformers.__version__}; install {RELEASE}, the last release with them")
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    FOLDER.mkdir(exist_ok=True)
    made = {
        "groups": group_cases,
        "groups-demo": demo_groups,
        "group-tries-demo": demo_group_tries,
        "words": words_cases,
        "words-demo": demo_words,
    }
    for name, make in made.items():
        cases = make()
        lines = ",\n".join(json.dumps(case) for case in cases)
        (FOLDER / f"{name}.json").write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
