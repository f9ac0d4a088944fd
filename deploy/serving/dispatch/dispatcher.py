"""The open requests of a backend: sent to the worker, cancelled, answered, and sent again if the worker ends.

Triton's thread submits requests. A second thread sends them, looks for cancellations and updates the metrics. A third
one takes the worker's events, sends the responses, and restarts the worker.

A request may end its worker, when it is parsed or when it runs. The requests that the worker had are sent again to the
next worker. A request that was running, or that two workers had before it ran, is a suspect. Suspects run one at a
time, with no other request in the worker. So the next end is the fault of one request, which fails.
"""

from __future__ import annotations

import gc
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from tightbeam.deploy.runtimes.process.freed_memory import release_freed_memory
from tightbeam.deploy.serving.dispatch.responder import Outcome, Responder
from tightbeam.deploy.serving.dispatch.worker_process import WorkerError, WorkerProcess
from tightbeam.deploy.serving.protocol.log import log, log_exception
from tightbeam.deploy.serving.protocol.messages import Cancel, Event, Reading, Report, Request, Requests, Started, Stats

__all__ = ["Dispatcher"]

CANCEL_POLL_SECONDS = 0.005
"""Shortest time between two checks for cancelled requests."""
CANCEL_POLL_SHARE = 0.02
"""Largest share of the time that these checks may take."""
METRICS_SECONDS = 0.5
"""Time between two updates of the metrics, while requests run."""
MOST_ENDS = 2
"""A request fails if the worker has ended this often while it ran: once may be its neighbour's fault."""
MOST_LOSSES = 3
"""A request fails if this many workers have ended that had it and did not run it."""
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.1, 30.0
"""Pause before the second restart in a row without a response between them; it doubles with each further one."""
HEALTHY_SECONDS = 60.0
"""A worker that ends after this time begins a new row, though all its requests may have been cancelled."""
IDLE_SECONDS = 1.0
"""After this time without a request the memory of the last ones is given back to the system."""
SILENCE_SECONDS = 900.0
"""A worker that has requests and reports nothing for this time hangs, and is killed. A worker that works reports twice
a second, but between two steps alone."""
AGAIN = "send the request again"


@dataclass(eq=False)
class _Open:
    """A request without its last response.

    ``ends_at``: its deadline. ``reading``: its files are being decoded, or its texts tokenized. ``ends``: workers that
    ended while they ran it. ``losses``: workers that ended and had it, but did not run it. ``sent_to``: number of the
    worker that has it.
    """

    request: Request
    responder: Responder
    ends_at: float
    started: bool = False
    reading: bool = False
    ends: int = 0
    losses: int = 0
    sent_to: int = -1

    @property
    def suspect(self) -> bool:
        return self.ends > 0 or self.losses > 1


class Dispatcher:
    """Sends requests to a worker, and its events to the requests' responders.

    Parameters
    ----------
    worker
        The worker, which runs.
    most_waiting
        The most rows that wait in the worker; `submit` waits before it sends more.
    add_metrics
        Function that takes the work that was done, the number of requests of each outcome, and restarts.
    deadline_s
        Seconds after which a request without its last response fails. A request may ask for less.
    """

    def __init__(
        self,
        worker: WorkerProcess,
        most_waiting: int,
        add_metrics: Callable[[Stats, Counter[Outcome], int], None],
        deadline_s: float,
    ) -> None:
        self._worker, self._most_waiting, self._add_metrics = worker, most_waiting, add_metrics
        self._deadline_s = deadline_s
        self._changed = threading.Condition()  # guards all that follows, but the pipe
        self._open: dict[int, _Open] = {}
        self._numbers = 0
        self._up, self._closing = True, False
        self._starts = 0  # of the worker; a request is sent once to each
        self._recovering = False  # the worker has ended, and no other one has started
        self._heard = time.monotonic()  # when the worker reported last, or was sent something while it had nothing
        self._started = self._heard  # when the worker started
        self._next_start = 0.0  # of a worker that could not be started
        self._ends_in_a_row = 0  # of workers, without a response between them
        self._stats, self._outcomes, self._restarts = Stats(), Counter[Outcome](), 0
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()  # of the sender
        self._sending = threading.Lock()  # held while the pipe is written to, or replaced
        self._sender = threading.Thread(target=self._send_all, name="sender")
        self._sender.start()
        self._receiver = self._start_receiver()

    @property
    def up(self) -> bool:
        """True while the worker runs, or is being started again; False if it could not be started."""
        return self._up

    def submit(self, responders: Sequence[Responder], change: Callable[[Request], Request]) -> None:
        """Send requests to the worker. Returns when they are on their way, and before they are run.

        Parameters
        ----------
        responders
            Responders of requests that were not read yet.
        change
            Function that returns the request to send.
        """
        self._ensure_worker()
        new: list[_Open] = []
        with self._changed:
            for responder in responders:
                self._numbers += 1
                request = responder.read(self._numbers)
                if request is None:
                    self._count(responder)
                else:
                    deadline_s = min(self._deadline_s, responder.deadline_s)
                    new.append(_Open(change(request), responder, time.monotonic() + deadline_s))
            self._changed.wait_for(lambda: not self._up or self._waiting() < self._most_waiting)
            if not self._up:
                self._fail(new, "the process that generates has ended")
            else:
                self._open |= {each.request.number: each for each in new}
        self._wake.put(None)

    def close(self) -> None:
        """Stop the worker and the threads. Requests without a last response get an error."""
        with self._changed:
            self._closing = True
            self._fail(list(self._open.values()), "the model is being unloaded")
            self._changed.notify_all()
        self._wake.put(None)
        with self._worker.stopping():
            self._sender.join()
            self._worker.stop()
            self._receiver.join()

    # Triton's thread

    def _waiting(self) -> int:
        """Rows that the worker has not started."""
        return sum(each.responder.size for each in self._open.values() if not each.started)

    def _ensure_worker(self) -> None:
        """Start the worker if it could not be restarted before, and the pause since then is over."""
        if not self._up and time.monotonic() >= self._next_start:
            self._receiver.join()  # it starts no worker any more
            if self._restart():
                self._receiver = self._start_receiver()

    # The sender's thread

    def _send_all(self) -> None:
        next_check = next_update = 0.0
        rested = True  # the memory of the last requests was given back
        while not self._closing:
            idle = not self._open
            wait = IDLE_SECONDS if idle else max(0.0, min(next_check, next_update) - time.monotonic())
            try:
                self._wake.get(timeout=None if idle and rested else wait)
                rested = False
            except queue.Empty:
                if idle:
                    gc.collect()  # errors and their frames hold one another, and what the client sent
                    release_freed_memory()
                    rested = True
            self._send_requests()
            start = time.monotonic()
            if start >= next_check:
                self._cancel()
                end = time.monotonic()
                next_check = end + max(CANCEL_POLL_SECONDS, (end - start) / CANCEL_POLL_SHARE)
            if start >= next_update or not self._open:
                self._update_metrics()
                next_update = time.monotonic() + METRICS_SECONDS
        self._update_metrics()

    def _send_requests(self) -> None:
        with self._sending:
            with self._changed:
                due = self._due()
                if due and all(each.sent_to != self._starts for each in self._open.values()):
                    self._heard = time.monotonic()
                for each in due:
                    each.sent_to = self._starts
                requests = tuple(replace(each.request, alone=each.ends > 0) for each in due)
            if requests:
                self._send(Requests(requests))

    def _due(self) -> list[_Open]:
        """The requests to send: all that the worker does not have, or one suspect at a time."""
        suspects = [each for each in self._open.values() if each.suspect]
        if self._recovering or any(each.sent_to == self._starts for each in suspects):
            return []
        return suspects[:1] or [each for each in self._open.values() if each.sent_to != self._starts]

    def _send(self, message: Requests | Cancel) -> None:
        with suppress(WorkerError):  # the receiver notices the worker's end, too
            self._worker.send(message)

    def _cancel(self) -> None:
        """Drop the requests that were cancelled, or whose deadline is over; kill a worker that hangs."""
        now = time.monotonic()
        for number, each in list(self._open.items()):
            with self._changed:
                dropped = each.responder.was_cancelled()
                if not dropped and each.responder.open and now > each.ends_at:
                    each.responder.fail("the request has no result at its deadline; ask for less", client_error=False)
                    dropped = True
                if dropped:
                    self._close(number)
            if dropped:
                with self._sending:
                    self._send(Cancel(number))
        if now > self._heard + SILENCE_SECONDS and any(each.sent_to == self._starts for each in self._open.values()):
            self._heard = now
            self._worker.kill()

    def _update_metrics(self) -> None:
        with self._changed:
            stats, outcomes, restarts = self._stats, self._outcomes, self._restarts
            self._stats, self._outcomes, self._restarts = Stats(), Counter[Outcome](), 0
        try:
            self._add_metrics(stats, outcomes, restarts)
        except Exception as error:  # from Triton, such as full shared memory; the thread goes on without the numbers
            log_exception(error)

    # The receiver's thread

    def _start_receiver(self) -> threading.Thread:
        receiver = threading.Thread(target=self._receive_all, name="receiver")
        receiver.start()
        return receiver

    def _receive_all(self) -> None:
        while self._up:
            try:
                self._take(self._worker.receive())  # no variable keeps a report until the next one
            except WorkerError as error:
                if self._closing:
                    return
                self._recover(str(error))

    def _take(self, report: Report) -> None:
        with self._changed:
            self._heard = time.monotonic()
            for name, amount in vars(report.stats).items():
                setattr(self._stats, name, getattr(self._stats, name) + amount)
            for event in report.events:
                self._add(event)
        if not self._open or any(each.suspect for each in list(self._open.values())):
            self._wake.put(None)  # for the metrics, or for the next suspect

    def _add(self, event: Event) -> None:
        found = self._open.get(event.number)
        if found is None:
            return  # cancelled
        if isinstance(event, Started):
            found.started = True
            self._changed.notify_all()
            return
        if isinstance(event, Reading):
            found.reading = not event.ended
            return
        try:
            found.responder.add(event)
        except Exception as error:  # a defect must not end the thread
            log_exception(error)
            found.responder.fail(f"{type(error).__name__}: {error}; this is a defect of Tightbeam", client_error=False)
        if not found.responder.open:
            self._ends_in_a_row = 0
            self._close(event.number)

    def _recover(self, reason: str) -> None:
        """Restart a worker that has ended, after a pause if it ends again and again, and send its requests again."""
        with self._changed:
            self._recovering = True
            # What ends a decoder or a tokenizer would end every worker, so its request is not sent again.
            self._fail([each for each in self._open.values() if each.reading], f"{reason}, while it read the request")
            for each in self._open.values():
                each.ends += each.started
                each.losses += each.sent_to == self._starts and not each.started
                each.started = False
            ended = [each for each in self._open.values() if each.ends >= MOST_ENDS or each.losses >= MOST_LOSSES]
            self._fail(ended, reason)
            if time.monotonic() >= self._started + HEALTHY_SECONDS:
                self._ends_in_a_row = 0
            if pause := self._pause_s():
                self._changed.wait_for(lambda: self._closing, timeout=pause)
        self._restart()

    # Any of these threads

    def _pause_s(self) -> float:
        """Count an end of the worker; return the pause before it is started again."""
        self._ends_in_a_row += 1
        if self._ends_in_a_row == 1:
            return 0.0
        return min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0 ** min(self._ends_in_a_row - 2, 20))

    def _restart(self) -> bool:
        """Start the worker again, and send it the open requests. If it cannot start, fail them and return False."""
        with self._sending:
            try:
                self._worker.start()
                fault = None
            except WorkerError as error:  # a request after the pause tries it again
                fault = str(error)
                if not self._closing:
                    log(f"tightbeam: the model cannot be loaded again: {fault}")
            with self._changed:
                self._restarts += 1
                self._starts += 1
                self._recovering = False
                self._up = fault is None
                self._started = time.monotonic()
                if fault is not None:
                    self._next_start = self._started + self._pause_s()
                    self._fail(list(self._open.values()), fault)
                self._changed.notify_all()
        self._wake.put(None)
        return fault is None

    def _fail(self, failed: Sequence[_Open], reason: str) -> None:
        for each in failed:
            each.responder.fail(f"{reason}; {AGAIN}", client_error=False)
            self._open.setdefault(each.request.number, each)
            self._close(each.request.number)

    def _close(self, number: int) -> None:
        self._count(self._open.pop(number).responder)
        self._changed.notify_all()

    def _count(self, responder: Responder) -> None:
        if responder.outcome is not None:
            self._outcomes[responder.outcome] += 1
