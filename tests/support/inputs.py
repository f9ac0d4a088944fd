"""Inputs through the loop that runs them, as keyword calls: settings beside the other arguments."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from typing import Any

import numpy as np

from tightbeam.deploy import Runner
from tightbeam.deploy.arrays import Array
from tightbeam.deploy.inputs.files.audio import read_audio, windows
from tightbeam.deploy.inputs.images import run_images as _run_images
from tightbeam.deploy.inputs.lines import LineFormat
from tightbeam.deploy.inputs.lines import run_lines as _run_lines
from tightbeam.deploy.inputs.open_input import OpenInput
from tightbeam.deploy.inputs.output import Output, join, output_of
from tightbeam.deploy.inputs.recordings import run_recordings as _run_recordings
from tightbeam.deploy.inputs.result import InputResult
from tightbeam.deploy.inputs.run import finished
from tightbeam.deploy.inputs.windows import run_windows as _run_windows


def run_lines(
    runner: Runner,
    lines: Iterable[bytes],
    line_format: LineFormat | None = None,
    *,
    batch_size: int = 8,
    max_rows: int | None = None,
    typed: bool = False,
    first: int = 1,
    **settings: Any,
) -> Generator[InputResult, None, None]:
    how: dict[str, Any] = {"batch_size": batch_size, "max_rows": max_rows, "typed": typed, "first": first}
    return _run_lines(runner.model, lines, line_format or LineFormat(), settings=settings, **how)


def run_windows(
    runner: Runner, sources: Iterable[Any], *, batch_size: int = 8, typed: bool = False, **settings: Any
) -> Iterator[OpenInput]:
    return finished(_run_windows(runner.model, sources, batch_size=batch_size, typed=typed, settings=settings))


def run_recordings(
    runner: Runner, sources: Iterable[Any], *, batch_size: int = 8, typed: bool = False, **settings: Any
) -> Iterator[OpenInput]:
    return _run_recordings(runner.model, sources, batch_size=batch_size, typed=typed, settings=settings)


def run_images(
    runner: Runner, sources: Iterable[Any], *, batch_size: int = 8, typed: bool = False, **settings: Any
) -> Iterator[OpenInput]:
    return _run_images(runner.model, sources, batch_size=batch_size, typed=typed, settings=settings)


def read_features(runner: Runner, path: str) -> Array:
    """The features float32 [windows, mels, frames] of an audio file that is cut into windows."""
    log_mel = runner.model.require_windows()
    samples = read_audio(path, log_mel.sampling_rate_hz)
    return np.stack([log_mel.features(window) for window in windows(samples, log_mel.samples)])


def transcribe(runner: Runner, features: Array, **settings: Any) -> Output:
    """The output of the windows of one file, each alone, joined."""
    samples = [runner.model.sample_of_features(number, own, settings) for number, own in enumerate(features)]
    found = runner.scheduler(sum(own.options.num_beams for own in samples)).run(samples)
    return join([output_of(runner.model, found[own.number], own) for own in samples])
