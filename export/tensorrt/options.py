"""The options of an engine: name, type, default, help text and check of each stand here alone.

``build-engine`` and its reference page are made of the fields. Limits are checked against the bundle, in ``limits.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from tightbeam.export.errors import ExportError
from tightbeam.export.option import Option, check_options

__all__ = ["EngineOptions"]


def capabilities_of(text: str) -> list[str]:
    """Split compute capabilities at their commas."""
    return [part.strip() for part in text.split(",") if part.strip()]


def check_precision(options: EngineOptions) -> None:
    """Check the precision."""
    from tightbeam.deploy.bundle.manifest import ENGINE_PRECISIONS

    if options.precision not in ENGINE_PRECISIONS:
        raise ExportError(f"precision {options.precision!r} is not supported; expected {', '.join(ENGINE_PRECISIONS)}")


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """The options of a TensorRT engine. Raises ExportError for values that no bundle has an engine for."""

    capabilities: Annotated[
        Sequence[str],
        Option(
            "Compute capabilities of the GPUs to build for, such as 80,89,120; current: this machine's GPU.",
            parse=capabilities_of,
            flag="--compute-capability",
        ),
    ] = ("current",)
    precision: Annotated[
        str,
        Option("Precision of the engine: fp32, fp16 or bf16; softmax and norms stay float32.", check=check_precision),
    ] = "fp32"
    max_batch_size: Annotated[int, Option("Largest batch, in samples.")] = 8
    max_num_beams: Annotated[int | None, Option("Largest number of beams; by default the bundle's, at least 4.")] = None
    max_source_length: Annotated[int | None, Option("Longest source, in tokens; by default the model's limit.")] = None
    max_new_tokens: Annotated[int | None, Option("Longest output, in tokens; by default the bundle's.")] = None
    max_candidates: Annotated[
        int | None, Option("Most candidates of a sample in a step; by default 8 a beam, for up to 7 end tokens.")
    ] = None
    name: Annotated[
        str | None, Option("Name of the engine; by default its capabilities and precision, such as sm80-fp16.")
    ] = None
    check: Annotated[bool, Option("Skip the measurement of the error of fp16 or bf16.")] = True
    kernels: Annotated[
        bool, Option("Carry no compiled kernels of the plugins: a machine compiles them at its first step.")
    ] = True
    force: Annotated[bool, Option("Replace an engine of that name.")] = False

    def __post_init__(self) -> None:
        check_options(self)
