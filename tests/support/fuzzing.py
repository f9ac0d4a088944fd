"""Fuzzing with hypothesis: mutated files and JSON, and the property that every target has.

Whatever it is given, a target ends, raises no errors but the project's own, each of one line, and keeps little memory.
"""

from __future__ import annotations

import faulthandler
import json
import math
import os
import random
import resource
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import hypothesis
from hypothesis import strategies as st
from hypothesis.database import DirectoryBasedExampleDatabase
from hypothesis.errors import HypothesisWarning

from support.memory import clear_peak, memory_bytes
from tightbeam.deploy.errors import BundleError, GenerationError, InputError

__all__ = ["CORPUS", "HOSTILE", "bytes_like", "corpus", "fuzz", "json_like"]

FOLDER, CORPUS = Path("build/fuzz"), Path(__file__).parent.parent / "fuzz" / "corpus"
SECONDS = float(os.environ.get("TIGHTBEAM_FUZZ_SECONDS", 5))
"""Processor time of each target."""
MOST_SECONDS, HANGS_SECONDS, MOST_BYTES = 5.0, 300, 1 << 30
"""Bounds of one example: processor time of its thread, seconds after which it hangs, and memory above that before it.

They are generous, since a fuzzer that runs beside others has to find the hangs and the bombs alone.
"""
MOST_COPIED = 1 << 20
"""Characters that a mutation adds: longer documents take time for their length alone."""
Edit = tuple[int, int, int, bytes]

NUMBERS = (0, 1, -1, 2, 127, 255, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1)
HOSTILE: tuple[Any, ...] = (
    *(None, True, False, "", "x", "../x", "/", "\0", "\ud800", "\n", "x" * 5000, "\u202e", "never", "a.b"),
    *(0, 1, -1, 2, 3, 50, 2**31, -(2**31), 2**63, 2**64, 2**70, 10**400, 0.5, -0.0, 1e-300, 1e300, math.nan, math.inf),
    *([], {}, [[]], [0], [[0]], [[[0]]], [0] * 3000, [[0]] * 3000, {"x": 1}, [None], ["x"], [{}], {"": {}}),
)


def corpus(folder: str) -> list[bytes]:
    """The files of a folder of the corpus: findings, and forms that a mutation rarely finds."""
    return [file.read_bytes() for file in sorted((CORPUS / folder).glob("*"))]


def _mutated(data: bytes, edits: Sequence[Edit], others: Sequence[bytes]) -> bytes:
    found = bytearray(data)
    for kind, place, size, content in edits:
        # Half of the edits are in the first bytes, which are a header.
        at = place % (min(len(found), 64) + 1) if kind % 2 else place % (len(found) + 1)
        length = size % 64
        if kind < 4:
            found[at : at + len(content)] = content
        elif kind < 6:
            found[at:at] = content * (1 + size % 8)
        elif kind < 8:
            del found[at : at + length]
        elif kind < 10:
            width = 1 << size % 4
            number = NUMBERS[place % len(NUMBERS)] & ((1 << 8 * width) - 1)
            found[at : at + width] = number.to_bytes(width, "little" if size % 8 < 4 else "big")
        elif kind < 12:
            found[at:at] = found[at : at + length] * (1 + size % 16)
        elif kind < 13:
            other = others[size % len(others)]
            found[at:] = other[place % (len(other) + 1) :]
        elif kind < 14:
            del found[at:]
        elif at < len(found):
            found[at] ^= 1 << size % 8
    return bytes(found)


def bytes_like(valid: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    """Contents of files: one of ``valid`` with up to eight edits, or a few bytes of any kind."""
    edit = st.tuples(
        st.integers(0, 15), st.integers(0, 1 << 20), st.integers(0, 1 << 16), st.binary(min_size=1, max_size=8)
    )
    edited = st.builds(_mutated, st.sampled_from(valid), st.lists(edit, max_size=8), st.just(valid))
    return st.one_of(edited, edited, edited, edited, st.binary(max_size=200))


def _replaced(document: Any, choices: Sequence[tuple[int, int, Any]]) -> Any:
    """Return a copy of a JSON document with some of its parts replaced, removed, moved or added."""
    document = json.loads(json.dumps(document))
    for path, kind, given in choices:
        value, draw, holder, key = json.loads(json.dumps(given)), random.Random(path), None, None  # shares no list
        inner = document
        while isinstance(inner, dict | list) and inner and (holder is None or draw.random() < 0.8):
            holder = inner
            key = draw.choice(list(inner)) if isinstance(inner, dict) else draw.randrange(len(inner))
            inner = holder[key]
        if holder is None:
            return value
        if kind == 0:
            del holder[key]
        elif kind == 1 and isinstance(holder, dict):
            holder[str(value)[:50]] = inner
        elif kind == 2 and isinstance(holder, list):
            copies = min(1 + path % 50, MOST_COPIED // (1 + len(json.dumps(inner))))
            holder.extend(json.loads(json.dumps(inner)) for _ in range(copies))
        elif kind == 3 and isinstance(inner, int | float):
            integer = isinstance(inner, int)  # which may be too large for a float
            holder[key] = inner + (-1, 1, 2 if integer else 0.5, 1 << 31)[path % 4]
        else:
            holder[key] = value
    return document


def json_like(valid: Sequence[Any], more: Sequence[Any] = ()) -> st.SearchStrategy[Any]:
    """JSON documents: one of ``valid`` with up to four parts exchanged for hostile values, or for one of ``more``."""
    leaf = st.one_of(st.sampled_from([*HOSTILE, *more]), st.integers(), st.floats(), st.text(max_size=20))
    value = st.recursive(
        leaf,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=6,
    )
    choice = st.tuples(st.integers(0, 1 << 30), st.integers(0, 9), value)
    return st.builds(_replaced, st.sampled_from(valid), st.lists(choice, max_size=4))


def fuzz(
    name: str, examples: st.SearchStrategy[Any], run: Callable[[Any], object], *, first: Sequence[Any] = ()
) -> None:
    """Run a target on examples for the processor time of `SECONDS`, and on ``first`` before.

    The example that runs is written to ``build/fuzz/NAME.last``, which shows what ended the process.
    """
    (FOLDER / name).mkdir(parents=True, exist_ok=True)
    last = FOLDER / f"{name}.last"
    counts = {"accepted": 0, "refused": 0}
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    start = time.process_time()

    def checked(example: Any) -> None:
        last.write_bytes(example if isinstance(example, bytes) else repr(example).encode(errors="backslashreplace"))
        faulthandler.dump_traceback_later(HANGS_SECONDS, exit=True)
        clear_peak()
        before, begun = memory_bytes("VmRSS"), time.thread_time()
        try:
            run(example)
            counts["accepted"] += 1
        except (BundleError, InputError, GenerationError) as error:
            counts["refused"] += 1
            message = str(error)
            assert message and len(message.splitlines()) == 1 and len(message) < 10_000, message[:1000]
        finally:
            faulthandler.cancel_dump_traceback_later()
        assert time.thread_time() - begun < MOST_SECONDS
        assert memory_bytes("VmHWM") < before + MOST_BYTES

    once = hypothesis.given(examples)(checked)
    once = hypothesis.settings(
        max_examples=200,
        deadline=None,
        database=DirectoryBasedExampleDatabase(FOLDER / name),
        suppress_health_check=list(hypothesis.HealthCheck),
        report_multiple_bugs=False,
    )(once)
    resource.setrlimit(resource.RLIMIT_AS, (_address_space() + 8 * MOST_BYTES, hard))
    try:
        for example in first:
            checked(example)
        end = time.process_time() + SECONDS
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", HypothesisWarning)  # of examples whose repr is long
            while time.process_time() < end:
                once()
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        tried = f"{counts['accepted']:,} examples accepted, {counts['refused']:,} refused"
        print(f"\n{name}: {tried}, {time.process_time() - start:.0f} s of processor time", flush=True)
    last.unlink()


def _address_space() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
