"""One request -> the samples to run, and the settings to run them with. All that can be wrong with it is told here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tightbeam.deploy.arrays import Array
from tightbeam.deploy.audio.files import audio_fault, windows
from tightbeam.deploy.errors import InputError
from tightbeam.deploy.generation.options import GenerationError, GenerationOptions
from tightbeam.deploy.runner import Runner
from tightbeam.deploy.serving.messages import Request
from tightbeam.deploy.text.output import Output

__all__ = ["AUDIO", "INPUT_IDS", "LENGTHS", "TEXT", "ParsedRequest", "Sample", "parse_request"]

TEXT, INPUT_IDS, AUDIO, LENGTHS = "TEXT", "INPUT_IDS", "AUDIO", "LENGTHS"
MIN_BYTES, MAX_BYTES, BYTES_PER_POSITION = 1 << 16, 1 << 20, 64
"""Of a text; a tokenizer takes a second for the most, in which nobody else is served."""
MAX_PARAMETER_BYTES = 1 << 16
MAX_WINDOWS = 120
"""Of a recording, an hour at Whisper's 30 seconds."""
WORDS = frozenset({"language", "task"})
"""Parameters whose text is not read as JSON."""
OWN = "triton_"
"""What parameters of Triton itself begin with."""


@dataclass(eq=False)
class Sample:
    """One sample: a source's token ids, or the features [mels, frames] of a window. ``row``: which of the request's."""

    job: ParsedRequest
    row: int
    length: int
    batch_key: tuple[int, ...] = ()
    """what it must have in common with those it is run with (``Runner.batch_key``)"""
    tokens: list[int] = field(default_factory=list)
    features: Array | None = None
    output: Output | None = None
    said: int = 0
    """tokens that were told while it ran"""


@dataclass(eq=False)
class ParsedRequest:
    """A request that can be run. ``parts``: of each row one, but of a recording as many as it has windows."""

    number: int
    settings: dict[str, Any]
    options: GenerationOptions
    parts: list[list[Sample]] = field(default_factory=list)
    over: bool = False
    """refused or cancelled"""


def parse_request(runner: Runner, request: Request, max_rows: int) -> ParsedRequest:
    """Raises InputError and GenerationError, which name what is wrong with the request.

    ``max_rows``: samples x beams that are run together at most.
    """
    settings = _settings(request.parameters)
    truncate = settings.pop("truncate", False)
    if not isinstance(truncate, bool):
        raise InputError(f"truncate={truncate!r} is neither true nor false")
    options = runner.options_for(1, settings)  # not as keywords: a parameter may have any name
    if options.num_beams > max_rows:
        raise InputError(
            f"num_beams={options.num_beams} is more than the {max_rows} rows that this server runs together; "
            f"pass {max_rows} or less"
        )
    job = ParsedRequest(request.number, settings, options)
    given = [name for name in (TEXT, INPUT_IDS, AUDIO) if name in request.inputs]
    takes = AUDIO if runner.log_mel else f"{TEXT} or {INPUT_IDS}" if runner.has_tokenizer else INPUT_IDS
    if len(given) != 1 or (given == [AUDIO]) != (runner.log_mel is not None):
        raise InputError(f"the request has {' and '.join(given) or 'no source'}, expected {takes}")
    if truncate and given != [TEXT]:
        raise InputError(f"truncate=True is for {TEXT}; leave it out, and pass {given[0]} that fits")
    source = request.inputs[given[0]]
    if not len(source):
        raise InputError(f"{given[0]} has no row; expected one at least")
    lengths = _lengths(request.inputs, given[0], source)
    for row, value in enumerate(source):
        try:
            if given == [TEXT]:
                tokens, _ = runner.encode(_text(value, runner.manifest.sizes.max_source), truncate=truncate, **settings)
                job.parts.append([Sample(job, row, len(tokens), tokens=tokens)])
            elif given == [INPUT_IDS]:
                ids = value[: lengths[row]].tolist()
                runner.check_ids(ids)
                job.parts.append([Sample(job, row, len(ids), tokens=ids)])
            else:
                features = _features(runner, value[: lengths[row]])
                job.parts.append([Sample(job, row, 0, features=window) for window in features])
            for part in job.parts[row]:
                part.batch_key = runner.batch_key(
                    part.length, settings
                )  # refuses a prompt that is too long for the settings
        except (InputError, GenerationError) as error:
            raise type(error)(f"row {row}: {error}" if len(source) > 1 else str(error)) from None
    return job


def _settings(parameters: str) -> dict[str, Any]:
    """Triton's parameters are numbers, words, true and false; whatever else a setting takes comes as JSON in a text."""
    if len(parameters) > MAX_PARAMETER_BYTES:
        raise InputError(f"the parameters have {len(parameters):,} bytes, expected {MAX_PARAMETER_BYTES:,} at most")
    settings = {name: value for name, value in json.loads(parameters or "{}").items() if not name.startswith(OWN)}
    for name, value in settings.items():
        if isinstance(value, str) and name not in WORDS:
            try:
                settings[name] = json.loads(value)
            except (ValueError, RecursionError):
                continue  # never, of early_stopping; or it is refused by name
    return settings


def _text(value: Array, positions: int) -> str:
    (text,) = value.reshape(-1).tolist()
    data = text if isinstance(text, bytes) else str(text).encode("utf-8", "surrogatepass")
    most = min(max(MIN_BYTES, positions * BYTES_PER_POSITION), MAX_BYTES)
    if len(data) > most:
        raise InputError(f"the text has {len(data):,} bytes, expected {most:,} at most; shorten it")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"not UTF-8 (byte {error.start} is 0x{data[error.start]:02x}); convert the text") from None


def _lengths(inputs: Mapping[str, Array], name: str, source: Array) -> list[int]:
    """How much of each row of ``source`` [b, n] counts."""
    if LENGTHS not in inputs:
        return [source.shape[1]] * len(source)
    if name == TEXT:
        raise InputError(f"{LENGTHS} is for {INPUT_IDS} and {AUDIO}; leave it out")
    lengths: list[int] = inputs[LENGTHS].reshape(-1).tolist()
    if len(lengths) != len(source):
        raise InputError(f"{LENGTHS} has {len(lengths)} numbers, expected {len(source)}, one for each row of {name}")
    wrong = next((length for length in lengths if not 1 <= length <= source.shape[1]), None)
    if wrong is not None:
        raise InputError(f"{LENGTHS} holds {wrong}, expected 1 to {source.shape[1]}, the width of {name}")
    return lengths


def _features(runner: Runner, samples: Array) -> list[Array]:
    """Of each window of a sound, float32 [n]."""
    assert runner.log_mel is not None
    if fault := audio_fault(samples):
        raise InputError(f"{AUDIO} {fault}")
    if len(samples) > MAX_WINDOWS * runner.log_mel.samples:
        seconds = MAX_WINDOWS * runner.log_mel.samples / runner.log_mel.sampling_rate_hz
        raise InputError(f"{AUDIO} is longer than {seconds:,.0f} seconds; cut it into pieces")
    sound = np.ascontiguousarray(samples, dtype=np.float32)
    return [runner.log_mel.features(window) for window in windows(sound, runner.log_mel.samples)]
