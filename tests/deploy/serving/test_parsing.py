"""Threads and the loop of a worker keep no request in memory that is done."""

from __future__ import annotations

import gc
import threading
import weakref
from multiprocessing.connection import Connection
from pathlib import Path
from socket import socketpair
from types import SimpleNamespace
from typing import Any

import pytest

from support.serving.served import until
from support.serving.triton_requests import text_request
from tightbeam.deploy.serving.protocol.messages import Requests, Server, Shutdown, WorkerSettings
from tightbeam.deploy.serving.worker import __main__ as worker_main
from tightbeam.deploy.serving.worker.parsing import Job, ParsingThreads
from tightbeam.deploy.serving.worker.running import RunningRequests


def is_gone(reference: weakref.ref[Any] | None) -> bool:
    gc.collect()
    return reference is not None and reference() is None


def test_a_thread_keeps_no_job() -> None:
    threads = ParsingThreads()
    job = Job(1, lambda: bytes(10), lambda outcome: None)
    reference = weakref.ref(job)
    threads.put(job)
    del job
    assert [taken.outcome for taken in threads.take(30)] == [bytes(10)]
    until(lambda: is_gone(reference), 5)


def test_the_outcome_of_a_cancelled_job_is_freed_when_its_work_ends() -> None:
    begun, goes_on = threading.Event(), threading.Event()
    made: list[weakref.ref[Any]] = []

    def work() -> Read:
        begun.set()
        goes_on.wait(30)
        read = Read()
        made.append(weakref.ref(read))
        return read

    threads = ParsingThreads()
    threads.put(Job(1, work, lambda outcome: None))
    assert begun.wait(30)
    threads.cancel(1)
    assert threads.working and not threads.active
    goes_on.set()
    until(lambda: not threads.working, 10)
    assert is_gone(made[0])
    threads.close()


class Read:
    """Content that was read, in a cycle with itself, as an error is with its frames."""

    def __init__(self) -> None:
        self.itself = self


def test_idle_workers_free_cycles_before_they_give_memory_back() -> None:
    found = []
    reference = weakref.ref(Read())
    scheduler = SimpleNamespace(release_buffers=lambda: found.append(reference()))
    running: Any = SimpleNamespace(_scheduler=scheduler)
    gc.disable()
    try:
        RunningRequests.release_buffers(running)
    finally:
        gc.enable()
    assert found == [None]


def test_closed_threads_end() -> None:
    threads = ParsingThreads()
    for number in range(2):
        threads.put(Job(number, lambda: None, lambda outcome: None))
    assert all(thread.is_alive() for thread in threads._threads)
    threads.close()
    until(lambda: not any(thread.is_alive() for thread in threads._threads), 5)


@pytest.mark.parametrize("started", [0, 1])
def test_without_a_further_thread_the_first_one_does_all(started: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    threads = ParsingThreads()
    if started:
        threads.put(Job(0, lambda: 0, lambda outcome: None))
    monkeypatch.setattr(threading.Thread, "start", start)
    job = Job(1, lambda: 1, lambda outcome: None)
    if not started:
        with pytest.raises(OSError, match="can't start new thread"):
            threads.put(job)
        assert not threads.active
        return
    threads.put(job)
    found = []
    until(lambda: found.extend(job.outcome for job in threads.take(0.1)) or len(found) == 2, 10)
    assert found == [0, 1]
    threads.close()


def test_memory_is_released_again_once_the_reading_of_a_cancelled_request_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_main, "IDLE_SECONDS", 0.01)
    reads, released = [True, True, False], []

    class Running:
        @property
        def reading(self) -> bool:
            return reads[len(released)]

        def release_buffers(self) -> None:
            released.append(None)

    ours, theirs = (Connection(each.detach()) for each in socketpair())
    running: Any = Running()
    worker_main._release_when_idle(theirs, running)
    assert len(released) == len(reads), "a thread still read at the first two"
    ours.close()


def test_the_loop_keeps_no_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Running:
        active = reading = False
        seen: weakref.ref[Any] | None = None

        def __init__(self, *arguments: object, **named: object) -> None:
            pass

        def add(self, request: Any) -> None:
            Running.seen = weakref.ref(request)

        def report(self) -> None:
            pass

        def release_buffers(self) -> None:
            pass

        def close(self) -> None:
            pass

    monkeypatch.setattr(worker_main, "RunningRequests", Running)
    server = Server(pid=1, url="", model="m", region="")
    settings = WorkerSettings(
        bundle=str(tmp_path), engine="", threads=1, device=None, max_rows=1, stream=False, server=server
    )
    sockets = socketpair()
    ours, theirs = (Connection(each.detach()) for each in sockets)
    runner: Any = SimpleNamespace(model=None)
    thread = threading.Thread(target=worker_main._run, args=(runner, theirs, settings))
    thread.start()
    ours.send(Requests((text_request(1, "a town"),)))
    try:
        until(lambda: is_gone(Running.seen), 5)
    finally:
        ours.send(Shutdown())
        thread.join()
