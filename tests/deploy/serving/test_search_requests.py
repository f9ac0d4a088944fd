"""Requests with the settings of each search beside one another: each as alone, or with an error of its own."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from support.bundles.cache import BundleCache
from support.serving.triton_requests import EventLog, ids_request, run
from tightbeam.deploy import Bundle, Runner
from tightbeam.deploy.inputs.output import Output, output_of
from tightbeam.deploy.serving.dispatch.tensors import tensors_of
from tightbeam.deploy.serving.repository.config import ServingSettings
from tightbeam.deploy.serving.repository.models import write_model
from tightbeam.deploy.tries.build import build_trie
from tightbeam.deploy.tries.file import write_trie

pytest.importorskip("tritonclient.grpc.model_config_pb2")
BIRDS = [[7, 8, 9], [7, 9], [7, 10, 11, 12], [13]]
OF_TOKENS: dict[str, Any] = {"return_token_scores": True, "return_alternatives": 3}
KINDS: tuple[dict[str, Any], ...] = (
    {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 1.0, "num_return_sequences": 3},
    {"num_beams": 6, "num_beam_groups": 3, "diversity_penalty": 0.5, "trie": "birds", "decoder_input_ids": "[7]"},
    {"num_beams": 3, "force_words_ids": "[[20, 21], [[30], [31, 32]]]", "num_return_sequences": 2},
    {"do_sample": True, "seed": 5, "temperature": 1.5, "num_return_sequences": 3, **OF_TOKENS},
    {"do_sample": True, "seed": 6, "top_k": 30, "return_alternatives": 2, "trie": "birds"},
    {"do_sample": True, "seed": 7, "num_beams": 3, "num_return_sequences": 2, **OF_TOKENS},
    {"do_sample": True, "seed": 8, "num_beams": 2, "top_k": 0, "top_p": 0.8},
    {"num_beams": 2, "trie": "birds", **OF_TOKENS},
    {"decoder_input_ids": "[9, 4]", "num_beams": 2, "num_return_sequences": 2, **OF_TOKENS},
    {"return_alternatives": 2, "normalize_logits": False, "eos_token_id": "[2, 17, 40]"},
)
ALL = str(list(range(101)))
GOOD: tuple[dict[str, Any], ...] = (KINDS[0], KINDS[2], KINDS[3], KINDS[7])


@pytest.fixture(scope="module")
def served(bundles: BundleCache, tmp_path_factory: pytest.TempPathFactory) -> Runner:
    folder = tmp_path_factory.mktemp("tries")
    write_trie(build_trie(BIRDS, end_token_id=2), folder / "birds.trie")
    bundle = Bundle.load(bundles("dedup"))
    version = write_model(
        bundle, tmp_path_factory.mktemp("repository"), ServingSettings("birds"), tries=[folder / "birds.trie"]
    )
    return Runner.load(version / "bundle", threads=1)


def alone(runner: Runner, row: list[int], asked: dict[str, Any]) -> Output:
    """The output of one row by the runner, from settings as a request has them."""
    settings = {name: json.loads(value) if str(value).startswith("[") else value for name, value in asked.items()}
    if "trie" in settings:
        settings["trie"] = runner.bundle.path.parent / "tries" / f"{settings['trie']}.trie"
    sample = runner.sample(0, row, settings)
    if "decoder_input_ids" in settings:
        settings["decoder_input_ids"] = [settings["decoder_input_ids"]]
    return output_of(runner.model, runner.generate([row], **settings), sample)


def assert_same(found: Output, expected: Output) -> None:
    assert found.sequences == expected.sequences
    for own, other in ((found.scores, expected.scores), (found.token_scores, expected.token_scores)):
        assert (own is None) is (other is None)
        for pair in zip(own or [], other or [], strict=True):
            np.testing.assert_allclose(*(np.array(each, float) for each in pair), rtol=1e-4, atol=1e-5)
    assert (found.alternatives is None) is (expected.alternatives is None)
    for own, other in zip(found.alternatives or [], expected.alternatives or [], strict=True):
        for best, wanted in zip(own, other, strict=True):
            assert [token for token, _ in best or []] == [token for token, _ in wanted or []]


def checked(runner: Runner, log: EventLog, number: int, rows: list[list[int]], asked: dict[str, Any]) -> None:
    """Assert that each row of a request has the output that it has alone, and that Triton's tensors have them all."""
    outputs = log.outputs(number)
    assert len(outputs) == len(rows)
    for row, output in zip(rows, outputs, strict=True):
        assert_same(output, alone(runner, row, asked))
    tensors = tensors_of(outputs, 1)
    assert ("TOKEN_SCORES" in tensors) is ("return_token_scores" in asked)
    assert ("ALTERNATIVE_IDS" in tensors) is ("return_alternatives" in asked)
    assert tensors["OUTPUT_IDS"].shape[:2] == (len(rows), asked.get("num_return_sequences", 1))
    if asked.get("num_beams", 1) > 1:
        assert tensors["SCORES"].shape == tensors["OUTPUT_LENGTHS"].shape
    else:
        assert "SCORES" not in tensors


@pytest.mark.parametrize("max_rows", [7, 60])
def test_each_search_beside_the_others(served: Runner, max_rows: int) -> None:
    generator = np.random.default_rng(max_rows)
    asked = [
        ([generator.integers(3, 90, n).tolist() for n in generator.integers(1, 12, 1 + index % 2)], {**kind, **length})
        for index, kind in enumerate(KINDS * 2)
        for length in [{"max_new_tokens": 5 + index % 4}]
    ]
    order = generator.permutation(len(asked)).tolist()
    log = run(
        served, [ids_request(number, *asked[number][0], **asked[number][1]) for number in order], max_rows=max_rows
    )
    assert not log.refusals()
    for number, (rows, settings) in enumerate(asked):
        checked(served, log, number, rows, settings)


WRONG: dict[str, tuple[Any, ...]] = {
    "num_beam_groups": (0, -2, 3, 1.5, "two", "[2]", True, "null2", 10**30, "NaN", "{}"),
    "diversity_penalty": (0, -1.0, "NaN", "Infinity", "1e400", "much", "[1.0]", True, "1" * 400),
    "force_words_ids": (
        "[]",
        "[[]]",
        "[7]",
        "7",
        "[[7], 8]",
        "[[-1]]",
        "[[101]]",
        "[[7.5]]",
        "[[[7], []]]",
        "[[[7], [7, 8]]]",
        "[[true]]",
        '["a"]',
        "{}",
        "[" * 900,
        '[["7"]]',
        "[[[[7]]]]",
        "[[null]]",
    ),
    "trie": ("", "nobody", "../birds", "birds.trie", "7", "[]", "a\0b", "/", 7, 1.5, True),
    "decoder_input_ids": (
        "[]",
        "[[7]]",
        "[101]",
        "[-1]",
        "7",
        "x",
        "[1.5]",
        "[null]",
        "{}",
        "[true]",
        7,
        str([5] * 99),
    ),
    "do_sample": (1, 0, "yes", "[true]", "null1", 2.5),
    "temperature": (0, -1, "hot", "NaN", "Infinity", "[1.0]", "1e-40", "1e300", True),
    "top_k": (-1, 1.5, "many", "[5]", True, "NaN"),
    "top_p": (-0.1, 1.1, "NaN", "all", "[0.5]", True),
    "min_p": (-0.1, 1.1, "NaN", "x"),
    "typical_p": (0, -0.1, 1.1, "NaN", "x"),
    "seed": (-1, 1.5, 2**64, 10**40, "x", "[1]", True),
    "num_return_sequences": (0, -1, 5, 1.5, "x", 10**20, True),
    "return_token_scores": (1, "yes", "[true]", 0.0),
    "return_alternatives": (-1, 1025, 102, 1.5, "x", True, "[3]"),
    "normalize_logits": (1, "no", "[]"),
}
BESIDE: dict[str, dict[str, Any]] = {
    "num_beam_groups": {"num_beams": 4, "diversity_penalty": 1.0},
    "diversity_penalty": {"num_beams": 4, "num_beam_groups": 2},
    "force_words_ids": {"num_beams": 3},
    "num_return_sequences": {"num_beams": 4},
    "return_alternatives": {"num_beams": 2},
    "normalize_logits": {"return_token_scores": True},
    **{name: {"do_sample": True} for name in ("temperature", "top_k", "top_p", "min_p", "typical_p", "seed")},
}


@pytest.mark.parametrize("name", list(WRONG))
def test_a_wrong_value_is_the_error_of_its_request_alone(served: Runner, name: str) -> None:
    """The error is one line that names the field; the requests beside it have their results."""
    wrong = [
        ids_request(number, [5, 6], **BESIDE.get(name, {}), **{name: value}) for number, value in enumerate(WRONG[name])
    ]
    good = [ids_request(1000 + number, [5, 6, 7], **kind) for number, kind in enumerate(GOOD)]
    log = run(served, [*good[:2], *wrong, *good[2:]], max_rows=12)
    refused = log.refusals()
    for number, value in enumerate(WRONG[name]):
        assert number in refused, (name, value)
        told = refused[number]
        assert told.client_error and name in told.message and "\n" not in told.message, (value, told.message)
        assert "defect" not in told.message and len(told.message) < 400, (value, told.message)
    assert len(refused) == len(wrong)
    for number, kind in enumerate(GOOD):
        checked(served, log, 1000 + number, [[5, 6, 7]], kind)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (
            {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 1.0, "do_sample": True},
            "does not go with do_sample",
        ),
        (
            {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 1.0, **OF_TOKENS},
            "does not go with return_token",
        ),
        ({"num_beams": 3, "force_words_ids": "[[7]]", "do_sample": True}, "does not go with do_sample"),
        ({"force_words_ids": "[[7]]"}, 'needs beams; pass "num_beams": 2 or more'),
        (
            {"num_beams": 3, "force_words_ids": "[[7]]", "return_alternatives": 1},
            "does not go with return_alternatives",
        ),
        (
            {"trie": "birds", "decoder_input_ids": "[8]"},
            "leaves <Trie birds.trie: 4 entries> with 8; pass the beginning",
        ),
        (
            {"trie": "birds", "decoder_input_ids": "[13, 2]"},
            "is an entry of <Trie birds.trie: 4 entries>, which nothing",
        ),
        ({"temperature": 0.5}, "does nothing without do_sample"),
        ({"do_sample": True, "num_beams": 13}, "num_beams=13 is more than the 12 rows that this server runs together"),
        ({"do_sample": True, "num_return_sequences": 13}, "num_return_sequences=13 is more than the 12 rows"),
        ({"num_beams": 12, "num_beam_groups": 13, "diversity_penalty": 1.0}, "num_beam_groups=13"),
        ({"normalize_logits": True}, "does nothing without return_token_scores or return_alternatives"),
        ({"do_sample": True, "num_beams": 3, "forced_eos_token_id": "null", "suppress_tokens": ALL}, "every token is"),
    ],
)
def test_settings_that_contradict_each_other(served: Runner, asked: dict[str, Any], message: str) -> None:
    good = ids_request(2, [5, 6, 7], **KINDS[5])
    log = run(served, [ids_request(1, [5, 6], **asked), good], max_rows=12)
    assert message in log.refusals()[1].message and len(log.refusals()) == 1
    checked(served, log, 2, [[5, 6, 7]], KINDS[5])
