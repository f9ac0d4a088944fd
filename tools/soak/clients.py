"""The clients of the soak, and the tally of what they get."""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from tools.soak.models import DEADLINE_S
from tools.soak.requests import UNREAD, Ask, hostile_request, long_stream

__all__ = ["Clients", "Tally"]

LOST_S = DEADLINE_S + 60
"""A request without an answer or an error after this time is lost: the model's deadline, and a minute for a restart."""
DEFECT = re.compile(r"defect of Tightbeam|Traceback|generation failed")
KINDS = {"good": 60, "hostile": 25, "cancelled": 6, "slow": 4, UNREAD: 3, "half": 2}
"""What clients do, and how often."""


@dataclass
class Tally:
    """What became of the requests.

    Attributes
    ----------
    counts : Counter
        Requests by what became of them.
    latencies_s : list of float
        Seconds of the good requests that were answered.
    reasons : Counter
        Errors, without their numbers.
    bad : list of str
        What must not be: lost and wrong requests, and defects.
    """

    counts: Counter[str] = field(default_factory=Counter)
    latencies_s: list[float] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)
    bad: list[str] = field(default_factory=list)

    def add(self, outcome: str, ask: Ask, note: str = "") -> None:
        """Count a request. ``note``: the server's error."""
        self.counts[outcome] += 1
        if note and outcome != "cut":
            self.reasons[f"{outcome}: {re.sub(r'[0-9]+', 'N', note)[:110]}"] += 1
        if DEFECT.search(note):
            self.counts["defects"] += 1
        if outcome in ("lost", "wrong") or DEFECT.search(note):
            self.bad.append(f"{outcome} ({ask.kind}, {ask.model}): {note[:600]} <- {ask.body[-700:]!r}")


class Clients:
    """Clients that send requests until they are stopped.

    Parameters
    ----------
    address
        Host and port of HTTP.
    good
        The good requests.
    seed
        Seed of what they do.
    tally
        Takes the outcomes.
    starts
        Function that returns how often the server was started or killed: if that changes while a request is open, the
        request was cut.
    """

    def __init__(self, address: str, good: list[Ask], seed: int, tally: Tally, starts: Callable[[], int]) -> None:
        self._address, self._good, self._tally, self._starts = address, good, tally, starts
        self._seed, self._first = seed, iter(list[Ask]())
        self._go = asyncio.Event()
        self._open = 0
        self._stopped = False

    def resume(self) -> None:
        """Let the clients send."""
        self._go.set()

    def begin_with(self, asks: Iterable[Ask]) -> None:
        """Let the clients send each of these before they choose again."""
        self._first = iter(asks)

    def hold(self) -> None:
        """Let no client begin a request."""
        self._go.clear()

    async def drain(self) -> None:
        """Hold the clients, and wait until no request is open."""
        self.hold()
        while self._open:
            await asyncio.sleep(0.05)

    async def run(self, count: int) -> None:
        """Run ``count`` clients until `stop`."""
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(
            f"http://{self._address}", timeout=timeout, connector=aiohttp.TCPConnector(limit=0, force_close=True)
        ) as session:
            await asyncio.gather(*(self._client(session, random.Random(f"{self._seed}/{n}")) for n in range(count)))

    def stop(self) -> None:
        """End the clients when their requests are over."""
        self._stopped = True
        self._go.set()

    async def _client(self, session: aiohttp.ClientSession, rng: random.Random) -> None:
        while True:
            await self._go.wait()
            if self._stopped:
                return
            kind, ask = self._choice(rng)
            starts = self._starts()
            self._open += 1
            self._tally.counts["sent"] += 1
            begin = time.monotonic()
            try:
                async with asyncio.timeout(LOST_S):
                    if kind in (UNREAD, "half"):
                        await self._do_not_read(ask, rng, half=kind == "half")
                    elif kind == "cancelled":
                        await self._cancel(session, ask, rng)
                    else:
                        await self._send(session, ask, rng if kind == "slow" else None)
                        if ask.expected is not None:
                            self._tally.latencies_s.append(time.monotonic() - begin)
            except TimeoutError:
                self._tally.add("cut" if starts != self._starts() else "lost", ask)
            except (aiohttp.ClientError, OSError) as error:
                if starts != self._starts():
                    self._tally.add("cut", ask)
                else:
                    self._tally.add("lost", ask, f"{type(error).__name__}: {error}")
            finally:
                self._open -= 1

    def _choice(self, rng: random.Random) -> tuple[str, Ask]:
        """Choose what a client does next, and with which request."""
        if (first := next(self._first, None)) is not None:
            return first.kind, first
        kind = rng.choices(list(KINDS), list(KINDS.values()))[0]
        if kind == UNREAD:
            return kind, long_stream(rng)
        return kind, hostile_request(rng) if kind == "hostile" else rng.choice(self._good)

    async def _send(self, session: aiohttp.ClientSession, ask: Ask, slow: random.Random | None) -> None:
        """Send a request, its body in pieces with pauses if it is ``slow``, and judge the answer."""
        body: Any = ask.body
        if slow is not None:
            body = _pieces(ask.body, slow.uniform(1, 8))
        headers = {"Content-Type": "application/json", "Content-Length": str(len(ask.body))}
        starts = self._starts()
        async with session.post(f"/v2/models/{ask.model}/{ask.verb}", data=body, headers=headers) as response:
            text = await response.text(errors="replace")
        if starts != self._starts():
            self._tally.add("cut", ask)
        else:
            self._tally.add(*_judged(ask, response.status, text))

    async def _cancel(self, session: aiohttp.ClientSession, ask: Ask, rng: random.Random) -> None:
        """Close the connection at some time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(rng.choice((0.01, 0.1, 0.5))):
                async with session.post(f"/v2/models/{ask.model}/{ask.verb}", data=ask.body) as response:
                    await response.content.readany()
        self._tally.add("cancelled", ask)

    async def _do_not_read(self, ask: Ask, rng: random.Random, *, half: bool) -> None:
        """Send a request, or ``half`` of one, and read nothing for some time; then hang up."""
        host, _, port = self._address.partition(":")
        _, writer = await asyncio.open_connection(host, int(port), limit=1)
        try:
            head = f"POST /v2/models/{ask.model}/{ask.verb} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            data = head.encode() + b"Content-Length: %d\r\n\r\n" % len(ask.body) + ask.body
            writer.write(data[: len(data) // 2] if half else data)
            await writer.drain()
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            await asyncio.sleep(rng.uniform(1, 20))
        finally:
            writer.transport.abort()
        self._tally.add("unread", ask)


async def _pieces(data: bytes, seconds: float) -> Any:
    count = 20
    size = -(-len(data) // count)
    for begin in range(0, len(data), size):
        yield data[begin : begin + size]
        await asyncio.sleep(seconds / count)


def _judged(ask: Ask, status: int, text: str) -> tuple[str, Ask, str]:
    """Return what became of a request: answered, refused (by a fault of it), failed (of the server) or wrong."""
    try:
        events = [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: ")]
        answer = events[-1] if ask.verb == "generate_stream" and events else json.loads(text)
        error = answer.get("error")
        if status == 200 and error is None:
            found = _tokens(answer) if ask.expected is not None else None
            if found == ask.expected:
                return "answered", ask, ""
            return "wrong", ask, f"{found} instead of {ask.expected}"
    except (ValueError, KeyError, IndexError, AttributeError) as fault:
        return "wrong", ask, f"status {status}, {fault!r}: {text[:300]}"
    if status == 503 or re.search("send the request again|at its deadline", str(error)):
        return "failed", ask, str(error)
    if ask.expected is not None or DEFECT.search(str(error)):
        return "wrong", ask, f"status {status}: {error}"
    return "refused", ask, str(error)


def _tokens(answer: dict[str, Any]) -> list[list[list[int]]]:
    """Return the token ids of each row's sequences."""
    if "outputs" not in answer:  # the last event of a stream, flat
        lengths = answer["OUTPUT_LENGTHS"]
        lengths = lengths if isinstance(lengths, list) else [lengths]
        ids, shape = answer["OUTPUT_IDS"], [1, len(lengths)]
    else:
        outputs = {output["name"]: output for output in answer["outputs"]}
        lengths, ids = outputs["OUTPUT_LENGTHS"]["data"], outputs["OUTPUT_IDS"]["data"]
        shape = outputs["OUTPUT_LENGTHS"]["shape"]
    ids = ids if isinstance(ids, list) else [ids]
    width = len(ids) // len(lengths)
    flat = [ids[width * n : width * n + length] for n, length in enumerate(lengths)]
    return [flat[row * shape[1] : (row + 1) * shape[1]] for row in range(shape[0])]
