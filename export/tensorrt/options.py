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
            "Compute capabilities of the GPUs to build for, such as 80,89,120; current is this machine's GPU.",
            parse=capabilities_of,
            flag="--compute-capability",
        ),
    ] = ("current",)
    precision: Annotated[
        str,
        Option("Precision of the engine: fp32, fp16 or bf16; softmax and norms stay float32.", check=check_precision),
    ] = "fp32"
    max_batch_size: Annotated[int, Option("The most inputs that a run of the engine takes together.")] = 8
    max_num_beams: Annotated[
        int | None, Option("The most beams of an input; by default the bundle's, but at least 4.")
    ] = None
    max_source_length: Annotated[
        int | None, Option("The most tokens of a source or prompt; by default the model's limit.")
    ] = None
    max_new_tokens: Annotated[int | None, Option("The most new tokens of an output; by default the bundle's.")] = None
    max_candidates: Annotated[
        int | None,
        Option("The most candidates of an input in a step; by default 8 for each beam, enough for 7 end tokens."),
    ] = None
    name: Annotated[
        str | None, Option("Name of the engine; by default its capabilities and precision, such as sm80-fp16.")
    ] = None
    check: Annotated[bool, Option("Do not measure the error of fp16 or bf16.")] = True
    kernels: Annotated[
        bool, Option("Leave the compiled kernels of the plugins out; a machine then compiles them in its first step.")
    ] = True
    force: Annotated[bool, Option("Replace an engine of the same name.")] = False

    def __post_init__(self) -> None:
        check_options(self)
