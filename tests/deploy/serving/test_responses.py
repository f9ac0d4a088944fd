"""Responses through a fake of Triton's module: each request gets exactly one last response."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.bundles import BundleCache
from support.checkpoints import SENTENCES
from support.fake_triton import FakeRequest, FakeTriton, broadcast
from tightbeam.deploy import Runner
from tightbeam.deploy.serving import backend as backend_module
from tightbeam.deploy.serving.backend import BUNDLE, Backend
from tightbeam.deploy.serving.messages import Event, Refused, Request, Row, Stats, Token, WorkerSettings
from tightbeam.deploy.serving.responses import Responder, tensors_of
from tightbeam.deploy.serving.worker_process import WorkerError, WorkerProcess
from tightbeam.deploy.text.output import Output

IDS = np.array([[5, 6, 2], [7, 8, 2]])


# ---- tensors ----


def test_tensors_of_rows_of_several_lengths() -> None:
    outputs = [
        Output([[2, 5, 6], [2, 9]], [-0.5, -1.5], ["a\u00e9", ""]),
        Output([[2], [2, 7, 8, 9]], [-0.25, float("-inf")], ["\u96ea", "b"]),
    ]
    arrays = tensors_of(outputs, 1)
    assert {name: (array.dtype, array.shape) for name, array in arrays.items()} == {
        "TEXT": (np.dtype(object), (2, 2)),
        "SCORES": (np.dtype(np.float32), (2, 2)),
        "OUTPUT_IDS": (np.dtype(np.int64), (2, 2, 4)),
        "OUTPUT_LENGTHS": (np.dtype(np.int32), (2, 2)),
    }
    assert arrays["TEXT"].tolist() == [["a\u00e9".encode(), b""], ["\u96ea".encode(), b"b"]]
    assert arrays["SCORES"].tolist() == [[-0.5, -1.5], [-0.25, float("-inf")]]
    assert arrays["OUTPUT_IDS"].tolist() == [[[2, 5, 6, 1], [2, 9, 1, 1]], [[2, 1, 1, 1], [2, 7, 8, 9]]]
    assert arrays["OUTPUT_LENGTHS"].tolist() == [[3, 2], [1, 4]]


def test_tensors_of_greedy_search_without_a_tokenizer() -> None:
    arrays = tensors_of([Output([[2, 5]], None, None), Output([[]], None, None)], 0)
    assert arrays["TEXT"].tolist() == [[b""], [b""]]
    assert arrays["SCORES"].shape == (2, 0)
    assert arrays["OUTPUT_IDS"].tolist() == [[[2, 5]], [[0, 0]]]
    assert arrays["OUTPUT_LENGTHS"].tolist() == [[2], [0]]


# ---- one responder ----


def row(number: int, place: int, *sequences: list[int]) -> Row:
    return Row(number, place, Output(list(sequences), None, ["x"] * len(sequences)), fill=1)


@pytest.fixture
def triton() -> FakeTriton:
    return FakeTriton()


def read(request: FakeRequest, triton: FakeTriton, *, stream: bool = False) -> Responder:
    responder = Responder(request, triton, stream=stream)
    assert responder.read(3) is not None
    return responder


def test_request_is_read_unchanged(triton: FakeTriton) -> None:
    request = FakeRequest({"INPUT_IDS": IDS, "LENGTHS": IDS[:, :1]}, '{"num_beams": 2}')
    found = Responder(request, triton, stream=False).read(3)
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
        Token(3, 0, 9, "a"),
        Token(3, 1, 8, "b"),
        row(3, 1, [2, 8]),
        Token(3, 0, 7, "c"),
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
    assert Responder(request, triton, stream=False).read(0) is None
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


# ---- the whole backend ----


def arguments(version_folder: Path, *, decoupled: bool = False, kind: str = "CPU", count: int = 1) -> dict[str, str]:
    config = {
        "max_batch_size": 8,
        "instance_group": [{"count": count}],
        "model_transaction_policy": {"decoupled": decoupled},
        "parameters": {
            "engine": {"string_value": "onnxruntime"},
            "max_rows": {"string_value": "16"},
            "url": {"string_value": "http://127.0.0.1:9"},
        },
    }
    return {
        "model_config": json.dumps(config),
        "model_repository": str(version_folder.parent),
        "model_version": version_folder.name,
        "model_name": "m",
        "model_instance_kind": kind,
        "model_instance_device_id": "3",
    }


@pytest.fixture(scope="module")
def version(bundles: BundleCache, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a version, as triton-repo writes it."""
    folder = tmp_path_factory.mktemp("m") / "1"
    folder.mkdir()
    (folder / BUNDLE).symlink_to(bundles("dedup", tokenizer=True))
    return folder


@pytest.fixture
def backend(version: Path, triton: FakeTriton) -> Iterator[Backend]:
    made = Backend(arguments(version), triton)
    yield made
    made.close()


def text(value: str, **parameters: Any) -> FakeRequest:
    parameters = {"max_new_tokens": 5, **parameters}
    return FakeRequest({"TEXT": np.array([[value.encode()]], np.object_)}, json.dumps(parameters))


def test_good_and_bad_requests_each_get_a_response(backend: Backend, triton: FakeTriton, version: Path) -> None:
    runner = Runner.load(version / BUNDLE, threads=1)
    requests = [
        text(SENTENCES[0]),
        text(" "),
        FakeRequest({"TEXT": ValueError("no text")}),
        text(SENTENCES[1], num_beams=3),
        text(SENTENCES[1], num_beams=17),
    ]
    backend.execute(requests)
    assert all(request.over for request in requests)
    assert [request.error is None for request in requests] == [True, False, False, True, False]
    expected = runner.generate_text([SENTENCES[1]], num_beams=3, max_new_tokens=5)
    assert requests[3].responses[0].outputs["TEXT"].tolist() == [[expected[0].encode()]]
    assert requests[4].error and "16 rows" in requests[4].error.message
    assert (triton.metrics["tightbeam_batches_total"], triton.metrics["tightbeam_samples_total"]) == (2, 2)
    assert triton.metrics["tightbeam_batch_fill"] == 1 / 8
    assert triton.metrics["tightbeam_tokens_per_second"] > 0
    assert "tightbeam_restarts_total" not in triton.metrics
    nothing = [FakeRequest({"TEXT": ValueError("no text")})]
    backend.execute(nothing)
    assert nothing[0].over


def test_worker_killed_while_idle_is_restarted_for_the_next_request(backend: Backend, triton: FakeTriton) -> None:
    backend._worker._process.send_signal(signal.SIGKILL)
    backend._worker._process.wait()
    request = text(SENTENCES[0])
    backend.execute([request])
    assert request.over and request.error is None
    assert triton.metrics["tightbeam_restarts_total"] == 1


class Scripted:
    """A worker whose events a test scripts, and which an error ends."""

    starts: list[str | None]
    """The error of each start."""

    def __init__(self, settings: WorkerSettings) -> None:
        self.settings = settings
        self.alive = False
        self.events: Callable[[Callable[[], Sequence[int]]], Iterator[Event]]
        self.ran = 0
        self.start()

    def start(self) -> None:
        reason = self.starts.pop(0) if self.starts else None
        if reason:
            raise WorkerError(reason)
        self.alive = True

    def run(self, requests: Sequence[Request], gone: Callable[[], Sequence[int]], stats: Stats) -> Iterator[Event]:
        self.ran += 1
        over = False
        try:
            yield from self.events(gone)
            stats.batches, stats.samples, stats.tokens, stats.step_seconds = 1, len(requests), 10, 0.5
            over = True
        finally:
            self.alive = over

    def stop(self) -> None:
        self.alive = False


@pytest.fixture
def scripted(version: Path, triton: FakeTriton, monkeypatch: pytest.MonkeyPatch) -> tuple[Backend, Scripted]:
    monkeypatch.setattr(Scripted, "starts", [], raising=False)
    monkeypatch.setattr(backend_module, "WorkerProcess", Scripted)
    made = Backend(arguments(version, decoupled=True), triton)
    worker: Any = made._worker
    return made, worker


def ids() -> FakeRequest:
    return FakeRequest({"INPUT_IDS": IDS[:1]})


def test_worker_killed_while_running_fails_its_requests_and_restarts(
    scripted: tuple[Backend, Scripted], triton: FakeTriton
) -> None:
    backend, worker = scripted

    def dying(_: Any) -> Iterator[Event]:
        yield row(1, 0, [2, 5])
        yield Token(0, 0, 5, "a")
        raise WorkerError("the process that generates was killed by SIGKILL")

    worker.events = dying
    requests = [ids(), ids(), ids()]
    backend.execute(requests)
    assert all(request.over for request in requests)
    for request in (requests[0], requests[2]):
        assert request.error and request.error.code == "UNAVAILABLE"
        assert request.error.message == "the process that generates was killed by SIGKILL; send the request again"
    assert requests[1].error is None
    assert worker.alive and triton.metrics["tightbeam_restarts_total"] == 1


def test_failed_restart_is_retried_once_a_call(
    scripted: tuple[Backend, Scripted], triton: FakeTriton, capsys: pytest.CaptureFixture[str]
) -> None:
    backend, worker = scripted

    def dying(_: Any) -> Iterator[Event]:
        raise WorkerError("it ended")
        yield

    worker.events = dying
    worker.starts[:] = ["no memory", "no memory still"]
    backend.execute([ids()])
    assert "the model cannot be loaded again: no memory" in capsys.readouterr().err
    request = ids()
    backend.execute([request])
    assert request.error and request.error.message == "no memory still; send the request again"
    assert triton.metrics["tightbeam_restarts_total"] == 2
    worker.events = lambda _: iter([row(0, 0, [2, 5])])
    request = ids()
    backend.execute([request])
    assert request.over and request.error is None
    assert worker.ran == 2


def test_request_without_a_response_gets_an_error(scripted: tuple[Backend, Scripted]) -> None:
    backend, worker = scripted
    worker.events = lambda _: iter([row(0, 0, [2, 5])])
    requests = [ids(), ids()]
    backend.execute(requests)
    assert requests[0].error is None and requests[0].over
    assert requests[1].error and "got no response; this is a defect of Tightbeam" in requests[1].error.message


def test_defect_fails_all_requests_of_a_call(
    scripted: tuple[Backend, Scripted], capsys: pytest.CaptureFixture[str]
) -> None:
    backend, worker = scripted
    worker.events = lambda _: iter([row(7, 0, [2, 5])])  # there is no such request
    requests = [ids(), ids()]
    backend.execute(requests)
    assert all(request.over and request.error for request in requests)
    assert requests[0].error and "IndexError" in requests[0].error.message
    assert "Traceback" in capsys.readouterr().err
    assert worker.alive, "started again, since it was left in the middle of a batch"


def test_response_that_triton_refuses_fails_no_other_request(scripted: tuple[Backend, Scripted]) -> None:
    backend, worker = scripted
    worker.events = lambda _: iter([row(0, 0, [2, 5]), row(1, 0, [2, 6]), row(2, 0, [2, 7])])
    requests = [ids(), FakeRequest({"INPUT_IDS": IDS[:1]}, failing=(1,)), ids()]
    backend.execute(requests)
    assert all(request.over for request in requests)
    assert [request.error is None for request in requests] == [True, False, True]


def test_cancellations_are_counted(scripted: tuple[Backend, Scripted], triton: FakeTriton) -> None:
    backend, worker = scripted
    polled: list[Sequence[int]] = []

    def running(gone: Callable[[], Sequence[int]]) -> Iterator[Event]:
        polled.extend([gone(), gone()])
        yield row(0, 0, [2, 5])

    worker.events = running
    requests = [ids(), FakeRequest({"INPUT_IDS": IDS[:1]}, cancelled_at=0)]
    backend.execute(requests)
    assert polled == [[1], []]
    assert requests[1].error and requests[1].error.code == "CANCELLED" and requests[1].over
    assert triton.metrics["tightbeam_cancelled_total"] == 1
    assert triton.metrics["tightbeam_tokens_per_second"] == 20


def test_settings_of_the_worker(version: Path, triton: FakeTriton, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scripted, "starts", [], raising=False)
    monkeypatch.setattr(backend_module, "WorkerProcess", Scripted)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(8))
    monkeypatch.setenv("TIGHTBEAM_TRITON_URL", "http://10.0.0.1:80")
    worker: Any = Backend(arguments(version, decoupled=True, count=4), triton)._worker
    found = worker.settings
    assert (found.bundle, found.engine, found.max_rows) == (str(version / BUNDLE), "onnxruntime", 16)
    assert (found.threads, found.device, found.stream) == (2, None, True)
    assert (found.server.url, found.server.model, found.server.region) == ("http://10.0.0.1:80", "m", "")
    worker = Backend(arguments(version, kind="GPU"), triton)._worker
    assert (worker.settings.threads, worker.settings.device, worker.settings.stream) == (None, 3, False)


def test_a_model_that_cannot_be_loaded(version: Path, triton: FakeTriton) -> None:
    with pytest.raises(triton.TritonModelException, match="is no folder; expected a bundle made by export-model"):
        Backend(arguments(version.parent / "2"), triton)
    assert WorkerProcess is backend_module.WorkerProcess
