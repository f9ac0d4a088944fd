"""The worker process and the watchdog: whichever process ends, no process or memory is left behind."""

from __future__ import annotations

import dataclasses
import errno
import gc
import multiprocessing
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from multiprocessing.connection import Connection
from pathlib import Path
from socket import socketpair
from typing import Any

import pytest

from support.bundles.cache import BundleCache
from support.checkpoints.families import SENTENCES
from support.serving.triton_requests import ids_request, text_request
from tightbeam.deploy import Bundle, Runner
from tightbeam.deploy.errors import BundleError
from tightbeam.deploy.model.model import Model
from tightbeam.deploy.serving.dispatch.worker_process import WorkerError, WorkerProcess, threads_per_worker
from tightbeam.deploy.serving.protocol.messages import (
    Cancel,
    Event,
    Ready,
    Refused,
    Report,
    Request,
    Requests,
    Row,
    Server,
    Started,
    Token,
    WorkerSettings,
)
from tightbeam.deploy.serving.worker import __main__ as worker_main
from tightbeam.deploy.serving.worker import watchdog
from tightbeam.deploy.serving.worker.__main__ import visible_device
from tightbeam.deploy.serving.worker.running import RunningRequests
from tightbeam.deploy.serving.worker.watchdog import reload_model
from tightbeam.plugins.library import cpu_library

NO_SERVER = Server(pid=2**22 + 1, url="http://127.0.0.1:9", model="m", region="")
SECONDS = 60

DATA = Path(__file__).resolve().parents[2] / "data" / "bundle-format-2"
"""A bundle whose files are older than the test."""
LONG = dataclasses.replace(
    ids_request(0, *[[5 + row, 6, 2] for row in range(64)], num_beams=1, max_new_tokens=60, min_new_tokens=60),
    stream=True,
)
"""A request whose events do not fit into the pipe, so that the worker blocks before the end."""


@pytest.fixture(scope="module")
def folder(bundles: BundleCache) -> Path:
    return bundles("dedup", tokenizer=True)


def settings_for(folder: Path, server: Server = NO_SERVER) -> WorkerSettings:
    return WorkerSettings(bundle=str(folder), engine="onnxruntime", threads=1, device=None, max_rows=64, server=server)


@pytest.fixture(scope="module")
def shared_worker(folder: Path) -> Iterator[WorkerProcess]:
    worker = WorkerProcess(settings_for(folder))
    yield worker
    worker.stop()


@pytest.fixture
def worker(shared_worker: WorkerProcess) -> WorkerProcess:
    if not shared_worker.alive:
        shared_worker.start()
    return shared_worker


def events_of(worker: WorkerProcess, *requests: Request) -> list[Event]:
    """The events of requests that are sent together, and stream, up to the last one."""
    worker.send(Requests(tuple(dataclasses.replace(request, stream=True) for request in requests)))
    events: list[Event] = []
    left = {request.number for request in requests}
    while left:
        report = worker.receive()
        events += report.events
        left -= {event.number for event in report.events if isinstance(event, Row | Refused)}
    return events


def until_tokens(worker: WorkerProcess) -> None:
    while not any(isinstance(event, Token) for event in worker.receive().events):
        pass


def texts_of(worker: WorkerProcess) -> list[str]:
    """The texts of two requests."""
    requests = [text_request(100 + number, text, max_new_tokens=6) for number, text in enumerate(SENTENCES[:2])]
    rows = [event for event in events_of(worker, *requests) if isinstance(event, Row) and event.number >= 100]
    return [row.output.texts[0] for row in sorted(rows, key=lambda row: row.number) if row.output.texts]


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[str]:
    return Runner.load(folder, threads=1).generate_text(SENTENCES[:2], max_new_tokens=6)


def test_requests_that_come_together(worker: WorkerProcess, expected: list[str]) -> None:
    assert texts_of(worker) == texts_of(worker) == expected
    events = events_of(worker, text_request(0, "a town", max_new_tokens=4, num_beams=2), text_request(1, ""))
    assert sorted({type(event).__name__ for event in events}) == ["Refused", "Row", "Started", "Token"]
    assert worker.alive


def test_a_full_disk_is_not_the_end_of_the_backend(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker ends with its traceback, and leaves the shared memory of the backend, which runs, alone."""

    def full(*arguments: object, **named: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Model, "load", full)
    ours, theirs = socketpair()
    with ours, theirs, pytest.raises(OSError, match="No space left"):
        worker_main._serve(Connection(os.dup(theirs.fileno())), settings_for(folder))


def test_request_joins_others_that_run(worker: WorkerProcess, expected: list[str]) -> None:
    """A short request ends before the long ones that run, and gets what it gets alone."""
    rows = [[5 + row, 6, 2] for row in range(8)]
    long = ids_request(0, *rows, num_beams=1, max_new_tokens=60, min_new_tokens=60)
    worker.send(Requests((dataclasses.replace(long, stream=True),)))
    until_tokens(worker)
    request = text_request(1, SENTENCES[0], max_new_tokens=6, num_beams=1)
    events = [event for event in events_of(worker, request) if isinstance(event, Row)]
    assert [(event.number, event.output.texts) for event in events] == [(1, expected[:1])]
    worker.send(Cancel(0))
    assert texts_of(worker) == expected


def test_cancelled_request_gets_no_row(worker: WorkerProcess, expected: list[str]) -> None:
    worker.send(Requests((LONG,)))
    until_tokens(worker)
    worker.send(Cancel(LONG.number))
    worker.send(Requests((text_request(1, SENTENCES[0], max_new_tokens=6),)))
    rows, stats = [], []
    while not rows:
        report = worker.receive()
        rows += [event for event in report.events if isinstance(event, Row)]
        stats.append(report.stats)
    assert [row.number for row in rows] == [1]
    assert sum(each.tokens for each in stats) < 20
    worker.send(Cancel(1))  # late: it has ended
    assert texts_of(worker) == expected


def test_defect_fails_one_request_only(worker: WorkerProcess, expected: list[str]) -> None:
    broken = Request(0, None, "")  # type: ignore[arg-type]
    (refused,) = events_of(worker, broken)
    assert isinstance(refused, Refused) and not refused.client_error
    assert re.fullmatch(r"generation failed \(TypeError: .*\); this is a defect of Tightbeam", refused.message)
    assert worker.alive
    assert texts_of(worker) == expected


def test_requests_of_one_sample_each_report_their_start_first(worker: WorkerProcess) -> None:
    """The backend knows by that which of them a worker that ends may have been ended by."""
    requests = [ids_request(number, [5, 6, 2], max_new_tokens=3) for number in range(3)]
    events = events_of(worker, *requests)
    assert {event.number for event in events[:3] if isinstance(event, Started)} == {0, 1, 2}
    alone = [dataclasses.replace(request, alone=True) for request in requests]
    kinds = [(type(event), event.number) for event in events_of(worker, *alone) if not isinstance(event, Token)]
    assert kinds == [(kind, number) for number in range(3) for kind in (Started, Row)]


def test_worker_ignores_interrupts(worker: WorkerProcess, expected: list[str]) -> None:
    os.kill(worker._process.pid, signal.SIGINT)
    time.sleep(0.05)
    assert texts_of(worker) == expected


def test_error_gives_the_number_of_a_signal_without_a_name(folder: Path) -> None:
    worker = WorkerProcess(settings_for(folder))
    os.kill(worker._process.pid, signal.SIGRTMIN + 6)
    with pytest.raises(WorkerError, match=f"generates was killed by signal {signal.SIGRTMIN + 6}$"):
        worker.receive()


def test_killed_worker_is_noticed_and_restarted(worker: WorkerProcess, expected: list[str]) -> None:
    pid = worker._process.pid
    worker.send(Requests((LONG,)))
    until_tokens(worker)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(WorkerError, match=r"generates was killed by SIGKILL; the kernel does that where memory runs"):
        while worker.receive():
            pass
    assert not worker.alive
    with pytest.raises(WorkerError, match="killed by SIGKILL"):
        texts_of(worker)
    worker.start()
    assert worker.alive and worker._process.pid != pid
    assert texts_of(worker) == expected


def test_a_worker_that_starts_again_knows_the_files_that_were_compared() -> None:
    worker = WorkerProcess(settings_for(DATA))
    verified = worker._settings.verified
    worker.kill()
    worker._process.wait()
    worker.start()
    given = WorkerSettings.model_validate_json(worker._process.args[-1])  # type: ignore[index, arg-type]
    worker.stop()
    assert len(verified) == len(Bundle.load(DATA, verify=False).manifest.files())
    assert given.verified == verified == worker._settings.verified


def test_stop_leaves_no_process(folder: Path) -> None:
    before = sorted(os.listdir("/proc/self/fd"))
    worker = WorkerProcess(settings_for(folder))
    process = worker._process
    worker.stop()
    assert process.returncode == 0, "expected it to end of its own accord"
    assert not worker.alive
    assert sorted(os.listdir("/proc/self/fd")) == before
    worker.stop()  # harmless


def test_unresponsive_worker_is_killed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tightbeam.deploy.serving.dispatch.worker_process.SHUTDOWN_SECONDS", 0.2)
    worker = WorkerProcess(settings_for(folder))
    os.kill(worker._process.pid, signal.SIGSTOP)
    worker.stop()
    assert worker._process.returncode == -signal.SIGKILL


def test_error_of_a_bundle_that_cannot_be_loaded(folder: Path, tmp_path: Path) -> None:
    broken = Path(shutil.copytree(folder, tmp_path / "bundle"))
    with (broken / "weights.safetensors").open("r+b") as file:
        file.truncate(1000)
    with pytest.raises(BundleError) as wanted:
        Bundle.load(broken)
    for place, message in ((broken, str(wanted.value)), (tmp_path / "none", "is not a folder; expected a bundle")):
        with pytest.raises(WorkerError) as caught:
            WorkerProcess(settings_for(place))
        assert message in str(caught.value)


def test_a_worker_of_changed_weights_never_gets_ready(folder: Path, tmp_path: Path) -> None:
    changed = Path(shutil.copytree(folder, tmp_path / "bundle"))
    with (changed / "weights.safetensors").open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last[0] ^ 1]))
    with pytest.raises(WorkerError, match=r"weights\.safetensors was changed since the export"):
        WorkerProcess(settings_for(changed))


def test_threads_per_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    assert [threads_per_worker(instances) for instances in (0, 1, 2, 3, 8, 20)] == [None, None, 4, 2, 1, 1]


# ---- the backend ends ----


class FakeServer:
    """A process in place of Triton's server, and its HTTP address."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.status, self.body = 200, b""
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = int(self.headers["Content-Length"])
                fake.asked.append(f"{self.path} {self.rfile.read(length).decode()}")
                self.send_response(fake.status)
                self.send_header("Content-Length", str(len(fake.body)))
                self.end_headers()
                self.wfile.write(fake.body)

            def log_message(self, *_: Any) -> None: ...

        self._http = HTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        self.process = subprocess.Popen(["sleep", "100"])
        self.memory = Path("/dev/shm") / f"triton_python_backend_shm_region_{os.getpid()}_{self._http.server_port}"
        self.memory.write_bytes(b"shared")
        self.settings = Server(
            pid=self.process.pid,
            url=f"http://127.0.0.1:{self._http.server_port}",
            model="a.model",
            region=self.memory.name,
        )

    def end(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        self.end()
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()
        self.memory.unlink(missing_ok=True)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    monkeypatch.setattr(watchdog, "MIN_LIFETIME_SECONDS", 0.0)
    monkeypatch.setattr(watchdog, "EXIT_GRACE_SECONDS", 0.1)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # no proxy listens there
    fake = FakeServer()
    yield fake
    fake.close()


BOTH = [f"/v2/repository/models/a.model/{action} {{}}" for action in ("unload", "load")]
SHORT_LIVED = (
    "from tightbeam.deploy.serving.worker import __main__, watchdog; "
    "watchdog.MIN_LIFETIME_SECONDS = 0.1; __main__.main()"
)
STUCK_BRIEFLY = (
    "from tightbeam.deploy.serving.worker import __main__, watchdog; watchdog.STUCK_SECONDS = 0.1; __main__.main()"
)


def orphan(settings: WorkerSettings) -> tuple[subprocess.Popen[str], Connection]:
    """A worker with this process as its backend."""
    ours, theirs = socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-c", SHORT_LIVED, str(theirs.fileno()), settings.model_dump_json()],
            pass_fds=[theirs.fileno()],
            stderr=subprocess.PIPE,
            text=True,
        )
    pipe = Connection(ours.detach())
    assert isinstance(pipe.recv(), Ready)
    return process, pipe


@pytest.mark.parametrize("busy", [False, True])
def test_killed_backend_is_reloaded(folder: Path, server: FakeServer, busy: bool) -> None:
    process, pipe = orphan(settings_for(folder, server.settings))
    if busy:
        pipe.send(Requests((LONG,)))
        report: Report = pipe.recv()
        assert isinstance(report.events[0], Started)
    assert server.memory.exists()
    pipe.close()
    _, said = process.communicate(timeout=SECONDS)
    assert process.returncode == 0
    assert server.asked == BOTH
    assert not server.memory.exists()
    first, last = said.splitlines()
    assert first.endswith("the backend of model a.model was killed; loading it again")
    assert last.endswith("model a.model is loaded again")


def test_killed_backend_of_an_ended_server_is_cleaned_up(folder: Path, server: FakeServer) -> None:
    """The backend is a script that is killed without a message to its worker."""
    script = (
        "import sys, time\n"
        "from tightbeam.deploy.serving.protocol.messages import WorkerSettings\n"
        "from tightbeam.deploy.serving.dispatch.worker_process import WorkerProcess\n"
        "worker = WorkerProcess(WorkerSettings.model_validate_json(sys.argv[1]))\n"
        "print(worker._process.pid, flush=True)\n"
        "time.sleep(100)\n"
    )
    command = [sys.executable, "-c", script, settings_for(folder, server.settings).model_dump_json()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as backend:
        assert backend.stdout and backend.stderr
        descriptor = os.pidfd_open(int(backend.stdout.readline()))
        backend.kill()
        server.end()
        said = backend.stderr.read()  # until the worker closes it
    ended, _, _ = select.select([descriptor], [], [], SECONDS)
    os.close(descriptor)
    assert ended
    assert (server.asked, said) == ([], "")
    assert not server.memory.exists()


@pytest.mark.parametrize("ends", ["before the worker", "later"])
def test_a_backend_that_outlives_its_server_is_killed(folder: Path, server: FakeServer, ends: str) -> None:
    """The backend is a script that waits without an end, as one inside a call to its server does."""
    script = (
        "import subprocess, sys, time\n"
        "from socket import socketpair\n"
        "ours, theirs = socketpair()\n"
        "worker = subprocess.Popen([sys.executable, '-c', sys.argv[2], str(theirs.fileno()), sys.argv[1]],"
        " pass_fds=[theirs.fileno()])\n"
        "theirs.close()\n"
        "print(worker.pid, flush=True)\n"
        "time.sleep(1000)\n"
    )
    settings = settings_for(folder, server.settings).model_dump_json()
    if ends != "later":
        server.end()
    with subprocess.Popen(
        [sys.executable, "-c", script, settings, STUCK_BRIEFLY],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as backend:
        assert backend.stdout and backend.stderr
        descriptor = os.pidfd_open(int(backend.stdout.readline()))
        server.end()
        try:
            assert backend.wait(SECONDS) == -signal.SIGKILL
        finally:
            backend.kill()
        said = backend.stderr.read()  # until the worker closes it
    ended, _, _ = select.select([descriptor], [], [], SECONDS)
    os.close(descriptor)
    assert ended
    assert said.endswith("the server has ended, and the backend of model a.model has not; it is killed\n")
    assert not server.memory.exists()


@pytest.mark.skipif(cpu_library() is None, reason="the native library was not built")
@pytest.mark.parametrize("ends", ["before", "later"])
def test_a_backend_without_a_worker_is_killed_though_a_call_holds_the_lock(server: FakeServer, ends: str) -> None:
    """The worker was killed in the same moment as the server, for whose answer a call waits.

    PyDLL makes calls that hold the interpreter's lock, as some of Triton's do.
    """
    script = (
        "import ctypes, sys\n"
        "from tightbeam.deploy.serving.protocol import messages, server_end\n"
        "server_end.STUCK_SECONDS = 0.3\n"
        "server_end.end_with_server(messages.Server.model_validate_json(sys.argv[1]))\n"
        "print(flush=True)\n"
        "ctypes.PyDLL(None).pause()\n"
    )
    if ends == "before":
        server.end()
    command = [sys.executable, "-c", script, server.settings.model_dump_json()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as backend:
        assert backend.stdout and backend.stderr
        backend.stdout.readline()
        assert backend.poll() is None
        server.end()
        try:
            assert backend.wait(SECONDS) == -signal.SIGKILL
        finally:
            backend.kill()
        said = backend.stderr.read()
    assert said == "tightbeam: the server has ended, and the backend of model a.model has not; it is killed\n"
    assert not server.memory.exists()


def test_server_that_exits_within_the_grace_period_is_not_reloaded(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(watchdog, "EXIT_GRACE_SECONDS", 20.0)
    threading.Timer(0.1, server.process.kill).start()
    reload_model(server.settings, 100.0)
    assert (server.asked, capfd.readouterr().err) == ([], "")
    assert not server.memory.exists()


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (400, b'{"error":"load / unload is not\\n allowed"}', "load / unload is not allowed"),
        (404, b"<html>\nnone</html>", "the server answered 404 Not Found"),
        (500, b"", "the server answered 500 Internal Server Error"),
        (403, b"[1]", "the server answered 403 Forbidden"),
        (403, b'{"error": null}', "the server answered 403 Forbidden"),
    ],
)
def test_refused_reload_is_logged_with_the_fix(
    server: FakeServer, capfd: pytest.CaptureFixture[str], status: int, body: bytes, expected: str
) -> None:
    server.status, server.body = status, body
    reload_model(server.settings, 100.0)
    _, line = capfd.readouterr().err.splitlines()
    fix = "start the server with --model-control-mode=explicit"
    assert line.endswith(f"model a.model stays down: {expected}; {fix}")
    assert server.asked == BOTH[:1]


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "", "127.0.0.1:8000", "http://127.0.0.1:port", "ftp:/x"])
def test_unreachable_server_is_logged(server: FakeServer, capfd: pytest.CaptureFixture[str], url: str) -> None:
    reload_model(server.settings.model_copy(update={"url": url}), 100.0)
    _, line = capfd.readouterr().err.splitlines()
    assert f"model a.model stays down: no server at {url} (" in line and line.endswith("); see its README")
    assert not server.memory.exists()


def test_backend_that_crashes_at_once_is_reloaded_later(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(watchdog, "MIN_LIFETIME_SECONDS", 10.0)
    monkeypatch.setattr(watchdog.time, "sleep", waits.append)
    for lived in (3.0, 30.0):
        reload_model(server.settings, lived)
    assert waits == [7.0, 0.0]
    assert server.asked == BOTH * 2
    assert "loaded again" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("number", "visible", "device"), [(1, "", "1"), (1, "2,3", "3"), (0, " GPU-8f , GPU-9a", "GPU-8f"), (4, "2", "4")]
)
def test_visible_device(number: int, visible: str, device: str) -> None:
    assert visible_device(number, visible) == device


@pytest.mark.parametrize("waiting", [False, True])
def test_an_idle_worker_gives_the_memory_of_the_last_requests_back(
    folder: Path, waiting: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_main, "IDLE_SECONDS", 0.0)
    runner = Runner.load(folder, threads=1)
    running = RunningRequests(runner.model, max_rows=64, send=lambda report: None)
    running.add(text_request(1, SENTENCES[0], num_beams=4, max_new_tokens=4))
    buffers: list[weakref.ref[Any]] = []
    while running.active:
        running.turn()
        for lane in running._scheduler._lanes.values():
            if lane.batch is not None:
                buffers += [weakref.ref(array) for array in lane.batch.decoding._caches.values()]
    assert buffers and any(buffer() is not None for buffer in buffers), "they serve the next request"
    near, far = multiprocessing.Pipe()
    if waiting:
        near.send(Cancel(1))
    worker_main._release_when_idle(far, running)
    gc.collect()
    assert any(buffer() is not None for buffer in buffers) == waiting
