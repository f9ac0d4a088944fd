"""The backend: requests go to its worker and come back, whatever happens to the worker meanwhile."""

from __future__ import annotations

import errno
import io
import json
import os
import queue
import signal
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.bundles.cache import BundleCache
from support.checkpoints.families import SENTENCES
from support.serving.fake_triton import FakeRequest, FakeTriton
from support.serving.served import until
from tightbeam.deploy import Runner
from tightbeam.deploy.inputs.output import Output
from tightbeam.deploy.serving import backend as backend_module
from tightbeam.deploy.serving.backend import Backend
from tightbeam.deploy.serving.dispatch import dispatcher, responder, worker_process
from tightbeam.deploy.serving.dispatch.worker_process import WorkerError, WorkerProcess
from tightbeam.deploy.serving.protocol.messages import (
    Cancel,
    Event,
    Reading,
    Refused,
    Report,
    Request,
    Requests,
    Row,
    Server,
    Started,
    Stats,
    Token,
    WorkerSettings,
)
from tightbeam.deploy.serving.protocol.parameters import BUNDLE

IDS = np.array([[5, 6, 2]])
ENDED = WorkerError("the process that generates was killed by SIGKILL")


@pytest.fixture
def triton() -> FakeTriton:
    return FakeTriton()


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


def run(backend: Backend, *requests: FakeRequest) -> None:
    """Send requests, and wait for their last responses."""
    backend.execute(requests)
    until(lambda: all(request.over for request in requests))


# ---- with a real worker ----


def test_good_and_bad_requests_each_get_a_response(backend: Backend, triton: FakeTriton, version: Path) -> None:
    runner = Runner.load(version / BUNDLE, threads=1)
    requests = [
        text(SENTENCES[0]),
        text(" "),
        FakeRequest({"TEXT": ValueError("no text")}),
        text(SENTENCES[1], num_beams=3),
        text(SENTENCES[1], num_beams=17),
    ]
    run(backend, *requests)
    assert [request.error is None for request in requests] == [True, False, False, True, False]
    expected = runner.generate_text([SENTENCES[1]], num_beams=3, max_new_tokens=5)
    assert requests[3].responses[0].outputs["TEXT"].tolist() == [[expected[0].encode()]]
    assert requests[4].error and "16 rows" in requests[4].error.message
    until(lambda: triton.metrics["tightbeam_samples_total"] == 2)
    until(lambda: triton.metrics["tightbeam_refused_total"] == 3)
    assert triton.metrics["tightbeam_prefills_total"] == 2, "the two have different beams"
    assert triton.metrics["tightbeam_batch_fill"] == 1 / 8
    assert triton.metrics["tightbeam_tokens_per_second"] > 0
    assert "tightbeam_restarts_total" not in triton.metrics
    run(backend, FakeRequest({"TEXT": ValueError("no text")}))


def test_worker_killed_while_idle_is_restarted(backend: Backend, triton: FakeTriton) -> None:
    process = backend._dispatcher._worker._process
    process.send_signal(signal.SIGKILL)
    request = text(SENTENCES[0])
    run(backend, request)
    assert request.error is None
    until(lambda: triton.metrics["tightbeam_restarts_total"] == 1)


def test_backend_watches_its_server(version: Path, triton: FakeTriton, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does so from its beginning, since the model takes time to load."""
    watched: list[Server] = []
    monkeypatch.setattr(backend_module, "end_with_server", watched.append)
    monkeypatch.setattr(Scripted, "starts", ["no model"], raising=False)
    monkeypatch.setattr(backend_module, "WorkerProcess", Scripted)
    with pytest.raises(triton.TritonModelException):
        Backend(arguments(version), triton)
    assert [(server.pid, server.model) for server in watched] == [(os.getppid(), "m")]


@pytest.mark.parametrize("decoupled", [False, True])
def test_worker_killed_while_running_loses_no_request(version: Path, triton: FakeTriton, decoupled: bool) -> None:
    """Some run and some wait. All get what they get alone, and a stream has no token twice."""
    backend = Backend(arguments(version, decoupled=decoupled), triton)
    runner = Runner.load(version / BUNDLE, threads=1)
    settings = {"num_beams": 1, "max_new_tokens": 50, "min_new_tokens": 50}
    requests = [text(sentence[:20], **settings) for sentence in SENTENCES[:4] * 6]
    sending = threading.Thread(target=lambda: [backend.execute([request]) for request in requests])
    sending.start()
    open_requests = backend._dispatcher._open
    until(lambda: any(each.started for each in list(open_requests.values())))
    backend._dispatcher._worker._process.send_signal(signal.SIGKILL)
    sending.join()
    until(lambda: all(request.over for request in requests))
    for request, sentence in zip(requests, SENTENCES[:4] * 6, strict=True):
        assert request.error is None
        found = runner.generate([runner.encode(sentence[:20])[0]], **settings).sequences[0].tolist()
        assert request.responses[-1].outputs["OUTPUT_IDS"].tolist() == [[found]]
        if decoupled:
            tokens = [response.outputs["OUTPUT_IDS"].item() for response in request.responses[:-1]]
            assert tokens == found[1:]
    until(lambda: triton.metrics["tightbeam_restarts_total"] == 1)
    backend.close()


@pytest.mark.parametrize("loading", [False, True], ids=["running", "loading"])
def test_stopped_worker_is_killed_when_the_model_is_unloaded(
    version: Path, triton: FakeTriton, loading: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker reads no message, so that the pipe is full; or it is about to load the model again after a crash."""
    monkeypatch.setattr(worker_process, "SHUTDOWN_SECONDS", 0.3)
    backend = Backend(arguments(version), triton)
    worker = backend._dispatcher._worker
    first = worker._process
    if loading:
        first.kill()
        until(lambda: worker._process is not first)
    process = worker._process
    process.send_signal(signal.SIGSTOP)
    request = FakeRequest({"INPUT_IDS": np.full((1, 200_000), 5, np.int64)})
    backend.execute([request])
    closing = threading.Thread(target=backend.close)
    closing.start()
    closing.join(60)
    assert not closing.is_alive()
    assert process.returncode == -signal.SIGKILL
    assert request.over and request.error and "the model is being unloaded" in request.error.message
    assert worker._process is process, "no worker is started while the model is being unloaded"


# ---- with a worker whose reports a test writes ----


class Scripted:
    """A worker whose reports a test writes. A `WorkerError` among them ends it."""

    starts: list[str | None]
    """The error of each start."""

    def __init__(self, settings: WorkerSettings) -> None:
        self.settings = settings
        self.sent: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.start()

    def start(self) -> None:
        self.reports: queue.SimpleQueue[Report | WorkerError] = queue.SimpleQueue()
        reason = self.starts.pop(0) if self.starts else None
        if reason:
            raise WorkerError(reason)

    def send(self, message: Any) -> None:
        self.sent.put(message)

    def receive(self) -> Report:
        report = self.reports.get()
        if isinstance(report, WorkerError):
            raise report
        return report

    stopping = nullcontext

    def kill(self) -> None:
        self.reports.put(ENDED)

    def stop(self) -> None:
        self.reports.put(WorkerError("stopped"))

    def requests(self) -> list[Request]:
        """The next requests that were sent."""
        message = self.sent.get(timeout=30)
        assert isinstance(message, Requests)
        return list(message.requests)

    def report(self, *events: Event, **stats: Any) -> None:
        self.reports.put(Report(events, Stats(**stats)))


Scene = tuple[Backend, Scripted]


@pytest.fixture
def scripted(version: Path, triton: FakeTriton, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    monkeypatch.setattr(Scripted, "starts", [], raising=False)
    monkeypatch.setattr(backend_module, "WorkerProcess", Scripted)
    made = Backend(arguments(version, decoupled=True), triton)
    worker: Any = made._dispatcher._worker
    yield made, worker
    made.close()


def ids(parameters: str = "{}", **options: Any) -> FakeRequest:
    return FakeRequest({"INPUT_IDS": IDS}, parameters, **options)


def row(number: int) -> Row:
    return Row(number, 0, Output([[2, 5]], None, ["x"]), fill=1)


def test_response_is_sent_while_others_run(scripted: Scene, triton: FakeTriton) -> None:
    backend, worker = scripted
    first, second = ids(), ids()
    backend.execute([first])
    (running,) = worker.requests()
    worker.report(Started(running.number))
    backend.execute([second])
    (joined,) = worker.requests()
    worker.report(Started(joined.number), row(joined.number), tokens=2, steps=4, sample_steps=6, step_seconds=0.5)
    until(lambda: second.over)
    assert second.error is None and not first.responses
    worker.report(row(running.number))
    until(lambda: first.over and triton.metrics["tightbeam_tokens_total"] == 2)
    assert triton.metrics["tightbeam_tokens_per_second"] == 4
    assert triton.metrics["tightbeam_batch_fill"] == 1.5 / 8


def test_a_backend_without_requests_keeps_nothing_of_the_last_one(
    scripted: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    released: list[None] = []
    collected: list[int] = []
    monkeypatch.setattr(dispatcher, "IDLE_SECONDS", 0.05)
    monkeypatch.setattr(dispatcher, "release_freed_memory", lambda: released.append(None))
    monkeypatch.setattr(dispatcher.gc, "collect", lambda: collected.append(len(released)))
    backend, worker = scripted
    for count in (1, 2):
        backend.execute([request := ids()])
        (sent,) = worker.requests()
        event = row(sent.number)
        seen = weakref.ref(event)
        worker.report(Started(sent.number), event)
        del event
        until(lambda: request.over and seen() is None and len(released) == count)  # noqa: B023
    time.sleep(0.2)
    assert len(released) == 2, "once after the last request"
    assert collected == [0, 1], "cycles are freed before"


def test_request_that_ends_the_worker_twice_fails_alone(scripted: Scene, triton: FakeTriton) -> None:
    """Requests that ran when it first ended are sent again one at a time, and those that waited after them."""
    backend, worker = scripted
    guilty, neighbour, done, waiting = requests = [ids() for _ in range(4)]
    backend.execute(requests)
    numbers = [request.number for request in worker.requests()]
    worker.report(*map(Started, numbers[:3]), row(numbers[2]))
    worker.reports.put(ENDED)
    assert [(request.number, request.alone) for request in worker.requests()] == [(numbers[0], True)]
    worker.report(Started(numbers[0]))
    worker.reports.put(ENDED)
    until(lambda: guilty.over)
    assert guilty.error and guilty.error.code == "UNAVAILABLE"
    assert guilty.error.message == "the process that generates was killed by SIGKILL; send the request again"
    assert [(request.number, request.alone) for request in worker.requests()] == [(numbers[1], True)]
    worker.report(Started(numbers[1]), row(numbers[1]))
    assert [(request.number, request.alone) for request in worker.requests()] == [(numbers[3], False)]
    worker.report(Started(numbers[3]), row(numbers[3]))
    until(lambda: all(request.over for request in requests))
    assert neighbour.error is done.error is waiting.error is None
    until(lambda: triton.metrics["tightbeam_restarts_total"] == 2)
    until(lambda: triton.metrics["tightbeam_failed_total"] == 1)


def test_request_whose_file_ends_the_worker_fails_at_once(scripted: Scene, triton: FakeTriton) -> None:
    """Such a request would end every worker. Requests that ran, or whose files were read before, are sent again."""
    backend, worker = scripted
    guilty, neighbour, read = requests = [ids() for _ in range(3)]
    backend.execute(requests)
    numbers = [request.number for request in worker.requests()]
    worker.report(Reading(numbers[2]), Reading(numbers[2], ended=True), Started(numbers[1]), Reading(numbers[0]))
    worker.reports.put(ENDED)
    until(lambda: guilty.over)
    assert guilty.error and guilty.error.code == "UNAVAILABLE"
    assert guilty.error.message == (
        "the process that generates was killed by SIGKILL, while it read the request; send the request again"
    )
    assert [request.number for request in worker.requests()] == [numbers[1]]
    worker.report(row(numbers[1]))
    assert [request.number for request in worker.requests()] == [numbers[2]]
    worker.report(row(numbers[2]))
    until(lambda: all(request.over for request in requests))
    assert neighbour.error is read.error is None


def test_request_that_ends_each_worker_before_it_runs_fails_alone(scripted: Scene, triton: FakeTriton) -> None:
    """Two ends make suspects of all requests that no worker ran. The third end is the fault of one of them."""
    backend, worker = scripted
    guilty, neighbour, late = requests = [ids() for _ in range(3)]
    backend.execute(requests[:2])
    numbers = [request.number for request in worker.requests()]
    worker.reports.put(ENDED)
    assert [request.number for request in worker.requests()] == numbers
    worker.reports.put(ENDED)
    assert [request.number for request in worker.requests()] == numbers[:1]
    backend.execute([late])
    worker.reports.put(ENDED)
    until(lambda: guilty.over)
    assert guilty.error and guilty.error.code == "UNAVAILABLE"
    assert guilty.error.message == "the process that generates was killed by SIGKILL; send the request again"
    assert [request.number for request in worker.requests()] == numbers[1:]
    worker.report(Started(numbers[1]), row(numbers[1]))
    (last,) = worker.requests()
    worker.report(row(last.number))
    until(lambda: all(request.over for request in requests))
    assert neighbour.error is late.error is None
    until(lambda: triton.metrics["tightbeam_restarts_total"] == 3)


def test_restarts_without_a_response_between_them_come_at_longer_and_longer_pauses(
    scripted: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, worker = scripted
    pauses: list[float] = []
    wait_for = threading.Condition.wait_for

    def waited(self: threading.Condition, predicate: Any, timeout: float | None = None) -> bool:
        if timeout is not None:
            pauses.append(timeout)
            return True
        return wait_for(self, predicate)

    monkeypatch.setattr(threading.Condition, "wait_for", waited)
    for _ in range(12):
        request = ids()
        backend.execute([request])
        worker.requests()
        worker.reports.put(ENDED)
        until(lambda: not worker.sent.empty())
        worker.requests()
        worker.reports.put(ENDED)
        until(lambda: not worker.sent.empty())
        worker.requests()
        worker.reports.put(ENDED)
        until(lambda request=request: request.over)
    assert pauses[:4] == [0.1, 0.2, 0.4, 0.8] and max(pauses) == 30
    pauses.clear()
    request = ids()
    backend.execute([request])
    (sent,) = worker.requests()
    worker.report(row(sent.number))
    until(lambda: request.over)
    worker.reports.put(ENDED)
    until(lambda: backend._dispatcher._starts == 37)
    assert not pauses


def test_a_worker_that_served_for_long_is_restarted_at_once_though_its_requests_were_cancelled(
    scripted: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatcher, "HEALTHY_SECONDS", 0.0)
    monkeypatch.setattr(dispatcher, "FIRST_PAUSE_SECONDS", 3600.0)
    monkeypatch.setattr(dispatcher, "LONGEST_PAUSE_SECONDS", 3600.0)
    backend, worker = scripted
    for starts in (1, 2, 3):
        request = ids(cancelled_at=2)
        backend.execute([request])
        until(lambda request=request: request.over)
        worker.reports.put(ENDED)
        until(lambda starts=starts: backend._dispatcher._starts == starts)


def test_a_start_that_failed_is_tried_again_after_a_pause(
    scripted: Scene, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(dispatcher, "FIRST_PAUSE_SECONDS", 3600.0)
    monkeypatch.setattr(dispatcher, "LONGEST_PAUSE_SECONDS", 3600.0)
    backend, worker = scripted
    worker.starts[:] = ["no memory", "no memory still"]
    worker.reports.put(ENDED)
    until(lambda: not backend._dispatcher._up)
    request = ids()
    run(backend, request)
    assert request.error and request.error.message == "the process that generates has ended; send the request again"
    assert worker.starts == ["no memory still"]


class FullDisk(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_below_the_log_ends_no_thread(scripted: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatcher, "FIRST_PAUSE_SECONDS", 0.0)
    backend, worker = scripted
    worker.starts[:] = ["no memory"]
    running, served = ids(), ids()
    backend.execute([running])
    worker.requests()
    with monkeypatch.context() as patched:
        patched.setattr("sys.stderr", FullDisk())
        worker.reports.put(ENDED)
        until(lambda: running.over and not backend._dispatcher._recovering)
    backend.execute([served])
    (request,) = worker.requests()
    worker.report(row(request.number))
    until(lambda: served.over)
    assert served.error is None


def test_triton_without_shared_memory_ends_no_thread(
    scripted: Scene, triton: FakeTriton, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither its metrics nor the question whether a request was cancelled."""
    backend, worker = scripted
    asked: list[object] = []

    def full(*arguments: object) -> None:
        asked.append(arguments)
        raise RuntimeError("Failed to increase the shared memory pool size")

    with monkeypatch.context() as patched:
        patched.setattr(FakeRequest, "is_cancelled", full)
        patched.setattr(backend._dispatcher, "_add_metrics", full)
        request = ids()
        backend.execute([request])
        (sent,) = worker.requests()
        until(lambda: {len(arguments) for arguments in asked} == {1, 3})
        worker.report(row(sent.number))
        until(lambda: request.over)
    served = ids()
    backend.execute([served])
    (sent,) = worker.requests()
    worker.report(row(sent.number))
    until(lambda: served.over)
    assert request.error is served.error is None


def test_failed_restart_is_retried_once_a_call(
    scripted: Scene, triton: FakeTriton, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(dispatcher, "FIRST_PAUSE_SECONDS", 0.0)
    backend, worker = scripted
    worker.starts[:] = [f"{worker.settings.bundle}/weights: no memory", "no memory still"]
    running, failing, served = ids(), ids(), ids()
    backend.execute([running])
    worker.requests()
    worker.reports.put(ENDED)
    until(lambda: running.over)
    assert running.error and running.error.message == "weights: no memory; send the request again"
    assert f"the model cannot be loaded again: {worker.settings.bundle}/weights: no memory" in capsys.readouterr().err
    run(backend, failing)
    assert failing.error and failing.error.message == "the process that generates has ended; send the request again"
    assert "no memory still" in capsys.readouterr().err
    backend.execute([served])
    (request,) = worker.requests()
    worker.report(row(request.number))
    until(lambda: served.over and triton.metrics["tightbeam_restarts_total"] == 3)
    assert served.error is None


def test_a_request_fails_at_its_deadline_and_leaves_the_worker(scripted: Scene, triton: FakeTriton) -> None:
    backend, worker = scripted
    late, neighbour = ids(parameters='{"deadline_s": 0.05}'), ids()
    backend.execute([late, neighbour])
    numbers = [request.number for request in worker.requests()]
    until(lambda: late.over)
    assert late.error and late.error.code == "UNAVAILABLE"
    assert late.error.message == "the request has no result at its deadline; ask for less"
    assert worker.sent.get(timeout=30) == Cancel(numbers[0])
    worker.report(row(numbers[1]))
    until(lambda: neighbour.over)
    assert neighbour.error is None


def test_a_worker_that_hangs_is_killed(scripted: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    backend, worker = scripted
    monkeypatch.setattr(dispatcher, "SILENCE_SECONDS", 0.1)
    request = ids()
    backend.execute([request])
    (sent,) = worker.requests()
    worker.report(Started(sent.number))
    assert [again.number for again in worker.requests()] == [sent.number], "it runs again in the next worker"
    worker.report(row(sent.number))
    until(lambda: request.over)
    assert request.error is None and backend._dispatcher._starts == 1


def test_a_request_of_too_many_bytes_is_refused_before_it_is_sent(
    scripted: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, worker = scripted
    monkeypatch.setattr(responder, "MOST_BYTES", 100)
    large = [text("a" * 101), FakeRequest({"INPUT_IDS": np.zeros((1, 13), np.int64)})]
    backend.execute([*large, text("a" * 100)])
    assert len(worker.requests()) == 1
    assert [request.error and request.error.message for request in large] == [
        f"the request has {size} bytes, expected 100 at most; send its rows as requests of their own"
        for size in (101, 104)
    ]


def test_response_that_triton_refuses_fails_no_other_request(scripted: Scene) -> None:
    backend, worker = scripted
    requests = [ids(), ids(failing=(1,)), ids()]
    backend.execute(requests)
    worker.report(*(row(request.number) for request in worker.requests()))
    until(lambda: all(request.over for request in requests))
    assert [request.error is None for request in requests] == [True, False, True]


def test_cancelled_request_is_dropped_by_the_worker(scripted: Scene, triton: FakeTriton) -> None:
    backend, worker = scripted
    cancelled, other = ids(cancelled_at=3), ids()
    backend.execute([cancelled, other])
    first, second = worker.requests()
    message = worker.sent.get(timeout=30)
    assert message == Cancel(first.number)
    assert cancelled.over and cancelled.error and cancelled.error.code == "CANCELLED"
    worker.report(Token(first.number, 0, 1, 5, "a"), row(first.number), row(second.number))
    until(lambda: other.over and triton.metrics["tightbeam_cancelled_total"] == 1)
    assert len(cancelled.responses) == 1


def test_no_more_than_a_batch_waits_in_the_worker(scripted: Scene) -> None:
    """The rest waits in Triton's queue, whose limit and metrics count it."""
    backend, worker = scripted
    backend.execute([ids() for _ in range(7)])
    numbers = [request.number for request in worker.requests()]
    backend.execute([ids()])
    worker.requests()
    entered = threading.Event()

    def one_more() -> None:
        backend.execute([ids()])
        entered.set()

    thread = threading.Thread(target=one_more)
    thread.start()
    assert not entered.wait(0.1)
    worker.report(Started(numbers[0]))
    assert entered.wait(30)
    thread.join()


def test_refused_request_leaves_the_others(scripted: Scene, triton: FakeTriton) -> None:
    backend, worker = scripted
    requests = [ids(), ids()]
    backend.execute(requests)
    first, second = worker.requests()
    worker.report(Refused(first.number, "too long; cut it"))
    until(lambda: requests[0].over)
    assert requests[0].error and requests[0].error.code == "INVALID_ARG" and not requests[1].responses
    worker.report(row(second.number))
    until(lambda: requests[1].over and triton.metrics["tightbeam_refused_total"] == 1)


def test_requests_left_at_the_end_get_an_error(version: Path, triton: FakeTriton, scripted: Scene) -> None:
    backend, worker = scripted
    request = ids()
    backend.execute([request])
    worker.requests()
    backend.close()
    assert request.over and request.error
    assert request.error.message == "the model is being unloaded; send the request again"


def test_warm_up_request_generates_two_tokens(scripted: Scene) -> None:
    backend, worker = scripted
    backend._cold = True
    lengths = []
    for _ in range(2):
        backend.execute([ids()])
        lengths.append(json.loads(worker.requests()[0].parameters).get("max_new_tokens"))
    assert lengths == [2, None]


def test_settings_of_the_worker(version: Path, triton: FakeTriton, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scripted, "starts", [], raising=False)
    monkeypatch.setattr(backend_module, "WorkerProcess", Scripted)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(8))
    monkeypatch.setenv("TIGHTBEAM_TRITON_URL", "http://10.0.0.1:80")
    made = Backend(arguments(version, decoupled=True, count=4), triton)
    worker: Any = made._dispatcher._worker
    found = worker.settings
    assert (found.bundle, found.engine, found.max_rows) == (str(version / BUNDLE), "onnxruntime", 16)
    assert (found.threads, found.device) == (2, None)
    assert (found.server.url, found.server.model, found.server.region) == ("http://10.0.0.1:80", "m", "")
    made.close()
    made = Backend(arguments(version, kind="GPU"), triton)
    worker = made._dispatcher._worker
    made.close()
    assert (worker.settings.threads, worker.settings.device) == (None, 3)


def test_a_model_that_cannot_be_loaded(version: Path, triton: FakeTriton) -> None:
    with pytest.raises(triton.TritonModelException, match="is not a folder; expected a bundle made by export-model"):
        Backend(arguments(version.parent / "2"), triton)
    assert WorkerProcess is backend_module.WorkerProcess
