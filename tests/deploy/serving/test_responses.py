"""Responses through a fake of Triton's module: each request gets exactly one last response."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from support.serving.fake_triton import FakeRequest, FakeTriton, broadcast
from tightbeam.deploy.inputs.output import Output, TextSegment
from tightbeam.deploy.inputs.token_alternatives import TokenAlternatives
from tightbeam.deploy.serving.backend.responses import TritonResponder
from tightbeam.deploy.serving.dispatch.tensors import tensors_of, tensors_of_event
from tightbeam.deploy.serving.protocol.messages import Event, FoundSegment, Refused, Row, Token

NONE = -np.inf
IDS = np.array([[5, 6, 2], [7, 8, 2]])


# ---- tensors ----


def test_tensors_of_rows_of_several_lengths() -> None:
    outputs = [
        Output([[2, 5, 6], [2, 9]], [-0.5, -1.5], ["a\u00e9", ""], 3, finish_reasons=["end_token", "length"]),
        Output([[2], [2, 7, 8, 9]], [-0.25, float("-inf")], ["\u96ea", "b"], 3, source_tokens=4),
    ]
    arrays = tensors_of(outputs, 1)
    assert {name: (array.dtype, array.shape) for name, array in arrays.items()} == {
        "TEXT": (np.dtype(object), (2, 2)),
        "SCORES": (np.dtype(np.float32), (2, 2)),
        "OUTPUT_IDS": (np.dtype(np.int64), (2, 2, 4)),
        "OUTPUT_LENGTHS": (np.dtype(np.int32), (2, 2)),
        "FINISH_REASON": (np.dtype(object), (2, 2)),
        "SOURCE_TOKENS": (np.dtype(np.int32), (2, 1)),
        "NEW_TOKENS": (np.dtype(np.int32), (2, 1)),
    }
    assert arrays["TEXT"].tolist() == [["a\u00e9".encode(), b""], ["\u96ea".encode(), b"b"]]
    assert arrays["SCORES"].tolist() == [[-0.5, -1.5], [-0.25, float("-inf")]]
    assert arrays["OUTPUT_IDS"].tolist() == [[[2, 5, 6, 1], [2, 9, 1, 1]], [[2, 1, 1, 1], [2, 7, 8, 9]]]
    assert arrays["OUTPUT_LENGTHS"].tolist() == [[3, 2], [1, 4]]
    assert arrays["FINISH_REASON"].tolist() == [[b"end_token", b"length"], [b"", b""]]
    assert (arrays["SOURCE_TOKENS"].tolist(), arrays["NEW_TOKENS"].tolist()) == ([[0], [4]], [[3], [3]])


def test_tensors_of_rows_that_were_cut() -> None:
    arrays = tensors_of([Output([[2]], None, ["a"], cut=7, cut_side="left"), Output([[2]], None, ["b"])], 1)
    assert (arrays["TRUNCATED_TOKENS"].tolist(), arrays["TRUNCATED_SIDE"].tolist()) == ([[7], [0]], [[b"left"], [b""]])
    assert arrays["TRUNCATED_TOKENS"].dtype == np.int32


def test_tensors_of_greedy_search_without_a_tokenizer() -> None:
    arrays = tensors_of([Output([[2, 5]], None, None), Output([[]], None, None)], 0)
    assert arrays["TEXT"].tolist() == [[b""], [b""]]
    assert "SCORES" not in arrays
    assert arrays["OUTPUT_IDS"].tolist() == [[[2, 5]], [[0, 0]]]
    assert arrays["OUTPUT_LENGTHS"].tolist() == [[2], [0]]


def test_tensors_of_token_scores_and_alternatives() -> None:
    outputs = [
        Output([[2, 5, 6], [2, 9]], None, None, 0, [[None, -0.5, -1.5], [None, -0.25]]),
        Output([[2, 7], [2, 8]], None, None, 0, [[None, -2.0], [None, -3.0]]),
    ]
    arrays = tensors_of(outputs, 1)
    assert arrays["TOKEN_SCORES"].tolist() == [[[0, -0.5, -1.5], [0, -0.25, 0]], [[0, -2, 0], [0, -3, 0]]]
    assert "ALTERNATIVE_IDS" not in arrays
    best = TokenAlternatives.behind(
        1, np.array([[5, 6, -1], [6, -1, -1]]), np.array([[-0.5, -1.5, NONE], [-0.75, NONE, NONE]])
    )
    none = TokenAlternatives.behind(1, np.zeros((0, 3), np.int64), np.zeros((0, 3), np.float32))
    assert list(best) == [None, [(5, -0.5), (6, -1.5)], [(6, -0.75)]] and list(none) == [None]
    arrays = tensors_of(
        [Output([[2, 5, 6]], None, None, 0, None, [best]), Output([[2]], None, None, 0, None, [none])], 1
    )
    assert arrays["ALTERNATIVE_IDS"].tolist() == [[[[-1, -1], [5, 6], [6, -1]]], [[[-1, -1]] * 3]]
    assert arrays["ALTERNATIVE_SCORES"].tolist() == [[[[0, 0], [-0.5, -1.5], [-0.75, 0]]], [[[0, 0]] * 3]]
    assert arrays["ALTERNATIVE_SCORES"].dtype == np.float32 and "TOKEN_SCORES" not in arrays


def test_no_tensor_is_empty() -> None:
    """Triton 24.10 never frees what it allocates for an empty one: 8 MB after 80,000 tokens of streams."""
    nothing = TokenAlternatives.behind(0, np.zeros((0, 3), np.int64), np.zeros((0, 3), np.float32))
    silence = Output([[]], None, [""], 0, [[]], [nothing])
    token = tensors_of_event(Token(1, 0, 3, 17, ""))
    for arrays in (tensors_of([silence], 1), tensors_of_event(Row(1, 0, silence, 1)), token):
        assert all(array.size for array in arrays.values())
    assert tensors_of([silence], 7)["OUTPUT_IDS"].tolist() == [[[7]]]


# ---- one responder ----


def row(number: int, place: int, *sequences: list[int]) -> Row:
    return Row(number, place, Output(list(sequences), None, ["x"] * len(sequences)), fill=1)


@pytest.fixture
def triton() -> FakeTriton:
    return FakeTriton()


def read(request: FakeRequest, triton: FakeTriton, *, stream: bool = False) -> TritonResponder:
    responder = TritonResponder(request, triton, stream=stream)
    assert responder.read(3) is not None
    return responder


def test_request_is_read_unchanged(triton: FakeTriton) -> None:
    request = FakeRequest({"INPUT_IDS": IDS, "LENGTHS": IDS[:, :1]}, '{"num_beams": 2}')
    found = TritonResponder(request, triton, stream=False).read(3)
    assert found is not None
    assert (found.number, found.parameters, set(found.inputs)) == (3, '{"num_beams": 2}', {"INPUT_IDS", "LENGTHS"})
    np.testing.assert_array_equal(found.inputs["INPUT_IDS"], IDS)
    assert request.responses == []


def test_rows_in_any_order_are_one_response(triton: FakeTriton) -> None:
    request = FakeRequest({"INPUT_IDS": IDS})
    responder = read(request, triton)
    responder.add(row(3, 1, [2, 9, 9]))
    assert responder.open and request.responses == []
    responder.add(row(3, 0, [2, 8]))
    assert not responder.open and request.over
    (response,) = request.responses
    assert response.outputs["OUTPUT_IDS"].tolist() == [[[2, 8, 1]], [[2, 9, 9]]]


def test_only_requested_outputs_are_sent(triton: FakeTriton) -> None:
    request = FakeRequest({"INPUT_IDS": IDS[:1]}, outputs=("OUTPUT_LENGTHS", "TEXT"))
    read(request, triton).add(row(3, 0, [2, 8]))
    assert set(request.responses[0].outputs) == {"OUTPUT_LENGTHS", "TEXT"}


def test_a_stream_of_several_rows_ends_with_the_last_row(triton: FakeTriton) -> None:
    request = FakeRequest({"INPUT_IDS": IDS})
    responder = read(request, triton, stream=True)
    events: list[Event] = [
        Token(3, 0, 1, 9, "a"),
        Token(3, 1, 1, 8, "b"),
        row(3, 1, [2, 8]),
        Token(3, 0, 2, 7, "c"),
        row(3, 0, [2, 9, 7]),
    ]
    for event in events:
        responder.add(event)
    assert request.flags == [0, 0, 0, 0, 1]
    sent = [
        (response.outputs["INDEX"].tolist(), response.outputs["FINISHED"].tolist(), response.outputs["OUTPUT_IDS"])
        for response in request.responses
    ]
    assert [(index, finished, ids.tolist()) for index, finished, ids in sent] == [
        ([[0]], [[False]], [[[9]]]),
        ([[1]], [[False]], [[[8]]]),
        ([[1]], [[True]], [[[2, 8]]]),
        ([[0]], [[False]], [[[7]]]),
        ([[0]], [[True]], [[[2, 9, 7]]]),
    ]
    assert [response.outputs["TEXT"].tolist() for response in request.responses][:2] == [[[b"a"]], [[b"b"]]]
    assert {response.outputs["INDEX"].dtype for response in request.responses} == {np.dtype(np.int32)}
    assert {response.outputs["FINISHED"].dtype for response in request.responses} == {np.dtype(np.bool_)}


def test_events_of_a_row_that_runs_again_are_sent_once(triton: FakeTriton) -> None:
    request = FakeRequest({"INPUT_IDS": IDS})
    responder = read(request, triton, stream=True)
    first: list[Event] = [Token(3, 0, 1, 9, "a"), Token(3, 1, 1, 8, "b"), Token(3, 1, 2, 6, "d"), row(3, 0, [2, 9])]
    again: list[Event] = [Token(3, 1, 1, 8, "b"), Token(3, 0, 1, 9, "a"), row(3, 0, [2, 9]), Token(3, 1, 2, 6, "d")]
    for event in (*first, *again, Token(3, 1, 3, 5, "e"), row(3, 1, [2, 8, 6, 5])):
        responder.add(event)
    texts = [response.outputs["TEXT"].item() for response in request.responses]
    assert texts == [b"a", b"b", b"d", b"x", b"e", b"x"] and request.over


def test_segments_are_responses_of_their_own_and_sent_once(triton: FakeTriton) -> None:
    request = FakeRequest({"AUDIO": IDS[:1]}, outputs=("TEXT", "OUTPUT_IDS", "SEGMENTS", "INDEX", "FINISHED"))
    responder = read(request, triton, stream=True)
    parts = [TextSegment(0.0, 0.5, [5, 6], "a"), TextSegment(0.5, 1.0, [7], "b c")]
    segments = [FoundSegment(3, 0, 1, parts[0], "a"), FoundSegment(3, 0, 2, parts[1], " b c")]
    for event in (segments[0], *segments, Row(3, 0, Output([[5, 6, 7]], None, ["a b c"], segments=parts), fill=1)):
        responder.add(event)
    assert request.over
    sent = [response.outputs for response in request.responses]
    assert [outputs["TEXT"].item() for outputs in sent] == [b"a", b" b c", b"a b c"]
    assert [outputs["OUTPUT_IDS"].tolist() for outputs in sent] == [[[[5, 6]]], [[[7]]], [[[5, 6, 7]]]]
    assert [outputs["FINISHED"].item() for outputs in sent] == [False, False, True]
    each = [json.loads(outputs["SEGMENTS"].item()) for outputs in sent]
    assert each[0] + each[1] == each[2] and each[1] == [{"start": 0.5, "end": 1.0, "text": "b c", "tokens": [7]}]


@pytest.mark.parametrize(("client_error", "code"), [(True, "INVALID_ARG"), (False, "UNAVAILABLE")])
@pytest.mark.parametrize("stream", [False, True])
def test_a_refusal_is_the_last_response(triton: FakeTriton, client_error: bool, code: str, stream: bool) -> None:
    request = FakeRequest({"INPUT_IDS": IDS})
    responder = read(request, triton, stream=stream)
    responder.add(row(3, 0, [2, 8]))
    responder.add(Refused(3, "too long; cut it", client_error=client_error))
    responder.add(row(3, 1, [2, 8]))
    responder.fail("later", client_error=True)
    assert request.over and len(request.responses) == 1 + stream
    assert request.error is not None
    assert (request.error.message, request.error.code) == ("too long; cut it", code)


def test_cancelled_request_gets_one_last_response(triton: FakeTriton) -> None:
    request = FakeRequest({"INPUT_IDS": IDS}, cancelled_at=1)
    responder = read(request, triton, stream=True)
    assert not responder.was_cancelled()
    assert responder.open
    assert responder.was_cancelled() and responder.outcome == "cancelled"
    assert not responder.was_cancelled()
    responder.add(row(3, 0, [2, 8]))
    responder.fail("later", client_error=False)
    assert request.over and request.error is not None
    assert request.error.code == "CANCELLED"


def test_finished_request_cannot_be_cancelled(triton: FakeTriton) -> None:
    request = FakeRequest({"INPUT_IDS": IDS[:1]}, cancelled_at=0)
    responder = read(request, triton)
    responder.add(row(3, 0, [2, 8]))
    assert not responder.was_cancelled()
    assert request.over and request.error is None


@pytest.mark.parametrize(
    ("inputs", "expected", "code"),
    [
        ({"TEXT": ValueError("bytes of no text")}, r"the inputs cannot be read \(bytes of no text\)", "INVALID_ARG"),
        ({"INPUT_IDS": broadcast((1, 4))}, r"cannot read numpy 2.*; pip install 'numpy<2'", "UNAVAILABLE"),
    ],
)
def test_a_request_that_cannot_be_read(triton: FakeTriton, inputs: dict[str, Any], expected: str, code: str) -> None:
    request = FakeRequest(inputs)
    assert TritonResponder(request, triton, stream=False).read(0) is None
    assert request.over and request.error is not None
    with pytest.raises(type(request.error), match=expected):
        raise request.error
    assert request.error.code == code


@pytest.mark.parametrize("failing", [(1,), (2,), (1, 2), (2, 3)])
def test_response_that_triton_refuses_becomes_an_error(
    triton: FakeTriton, failing: tuple[int, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    request = FakeRequest({"INPUT_IDS": IDS}, failing=failing)
    responder = read(request, triton, stream=True)
    responder.add(row(3, 0, [2, 8]))
    responder.add(row(3, 1, [2, 9]))
    assert not responder.open
    if len(failing) == 1:
        assert request.over and request.error is not None
        assert "the response cannot be sent (No space left on device)" in request.error.message
        assert request.error.code == "UNAVAILABLE"
    else:  # sending the error fails too
        assert "No space left on device" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("/my models/m/1/bundle/weights.safetensors was changed", "weights.safetensors was changed"),
        ("/my models/m/1/tries/a.trie is not a whole trie: no", "a.trie is not a whole trie: no"),
        ("/my models/m/1/glossaries/a.csv has no term", "a.csv has no term"),
        ("bundle /my models/m/1/bundle has no engine 'a'", "bundle bundle has no engine 'a'"),
        ("FileNotFoundError: no such file: '/usr/lib/python3.12/json/x.py'", "FileNotFoundError: no such file: 'x.py'"),
        (
            "pass </s></s>, 1/2, and/or, http://a/b/c, a/b/c or /",
            "pass </s></s>, 1/2, and/or, http://a/b/c, a/b/c or /",
        ),
    ],
)
def test_a_client_is_told_no_folder_and_the_log_is(
    triton: FakeTriton, capsys: pytest.CaptureFixture[str], message: str, told: str
) -> None:
    request = FakeRequest({"INPUT_IDS": IDS})
    responder = TritonResponder(request, triton, stream=False, folder="/my models/m")
    responder.fail(message, client_error=False)
    assert request.error is not None and request.error.message == told
    assert (message in capsys.readouterr().err) == (message != told)
