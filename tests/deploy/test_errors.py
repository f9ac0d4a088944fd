"""Errors of callers: each front end writes the settings of a fix as its users give them."""

from __future__ import annotations

import pickle

import pytest

from tightbeam.deploy.errors import (
    JSON,
    PYTHON,
    BundleError,
    Constant,
    Fix,
    FrontEnd,
    GenerationError,
    InputError,
    PerFrontEnd,
    Setting,
    message_for,
)

COMMAND_LINE = FrontEnd("command line", {"num_beams", "temperature", "do_sample", "early_stopping"})


@pytest.mark.parametrize(
    ("fix", "python", "command_line", "json"),
    [
        (Setting("num_beams", 4), "num_beams=4", "--num-beams 4", '"num_beams": 4'),
        (Setting("do_sample", True), "do_sample=True", "--do-sample", '"do_sample": true'),
        (Setting("do_sample", False), "do_sample=False", "--no-do-sample", '"do_sample": false'),
        (
            Setting("temperature", (0.0, 0.2)),
            "temperature=(0.0, 0.2)",
            "--temperature 0.0,0.2",
            '"temperature": [0.0, 0.2]',
        ),
        (
            Setting("early_stopping", "never"),
            "early_stopping='never'",
            "--early-stopping never",
            '"early_stopping": "never"',
        ),
        (Setting("low_memory", False), "low_memory=False", "low_memory=False", '"low_memory": false'),
        (Constant(True), "True", "True", "true"),
        (Constant("first-segment"), "'first-segment'", "'first-segment'", '"first-segment"'),
        (PerFrontEnd("a", "b", "c"), "a", "b", "c"),
    ],
    ids=repr,
)
def test_each_front_end_writes_settings_its_own_way(
    fix: Setting | Constant | PerFrontEnd, python: str, command_line: str, json: str
) -> None:
    error = GenerationError(
        field="seed", value="a", source="the call", expected="an integer", fix=Fix("pass {}, or {{}}", fix)
    )
    problem = "seed='a' (from the call) is not an integer; pass"
    assert str(error) == f"{problem} {python}, or {{}}"
    written = [message_for(front_end, error) for front_end in (PYTHON, COMMAND_LINE, JSON)]
    assert written == [f"{problem} {text}, or {{}}" for text in (python, command_line, json)]


def test_an_error_without_a_setting_is_the_same_everywhere() -> None:
    for error in (InputError('{"a": True} is wrong; pass num_beams=4'), BundleError("there is no bundle")):
        assert message_for(JSON, error) == message_for(COMMAND_LINE, error) == str(error)


def test_an_error_at_a_place_keeps_its_fix() -> None:
    error = GenerationError("is wrong", field="num_beams", value=0, fix=Fix("pass {}", Setting("num_beams", 1)))
    placed = error.at("row 2").at("file a")
    assert str(placed) == "file a: row 2: num_beams=0 is wrong; pass num_beams=1"
    assert message_for(JSON, placed) == 'file a: row 2: num_beams=0 is wrong; pass "num_beams": 1'
    assert (type(placed), placed.field, placed.value) == (GenerationError, "num_beams", 0)


def test_an_error_goes_to_another_process() -> None:
    error = InputError("a text is empty", fix=Fix("pass {}", Constant(None))).at("row 2")
    copied = pickle.loads(pickle.dumps(error))
    assert (type(copied), str(copied)) == (InputError, str(error))
    assert message_for(JSON, copied) == "row 2: a text is empty; pass null"
