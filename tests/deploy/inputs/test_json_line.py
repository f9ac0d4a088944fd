"""JSON objects with fields that stand twice."""

from __future__ import annotations

import json

import pytest

from tightbeam.deploy.errors import InputError
from tightbeam.deploy.inputs.json_line import json_object
from tightbeam.deploy.serving.worker.requests import TEXTS


def test_a_message_with_a_field_that_stands_twice_is_refused() -> None:
    text = '[{"role": "user", "content": "a", "content": "b"}]'
    with pytest.raises(InputError, match="the field 'content' stands twice"):
        TEXTS["MESSAGES"](text)


def test_a_long_name_that_stands_twice_is_clipped() -> None:
    name = json.dumps("x" * 10**6)
    with pytest.raises(InputError, match="stands twice") as refused:
        json_object(f"{{{name}: 1, {name}: 2}}")
    assert len(str(refused.value)) < 200
