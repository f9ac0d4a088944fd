"""The options of an export, and every check of them: alone, against the checkpoint, and against the plan."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tightbeam.deploy.bundle.manifest import PRECISIONS
from tightbeam.export.accuracy.safer_kinds import needs_guard
from tightbeam.export.auto.reasons import why_not
from tightbeam.export.auto.workload import Workload
from tightbeam.export.errors import ExportError
from tightbeam.graph_passes import (
    GENERATED,
    PRESETS,
    QUANTIZED_KINDS,
    SOURCE,
    LayerPlan,
    Preset,
    RunSize,
    Sizes,
    passes_of,
    plan_bytes,
    same_for_all,
)
from tightbeam.graph_passes.precision.lower_precision import itemsize

__all__ = ["AUTO", "DEFAULT", "Choice", "ExportOptions", "choose"]

AUTO = "auto"
DEFAULT = "dedup"
"""The variant where none is named: exact in every model, and the least arithmetic of those that share the source."""


@dataclass(frozen=True)
class Choice:
    """The kinds of cache that the options request."""

    name: str
    """the variant that has both kinds, else both kinds, joined by a plus sign"""
    preset: Preset | None
    """None for ``auto``, until the variant is chosen"""
    reason: str
    """the options that requested it"""


def choose(variant: str, source_cache: str | None = None, generated_cache: str | None = None) -> Choice:
    """The kinds of cache of a variant, some of them replaced.

    Parameters
    ----------
    variant
        A name of ``graph_passes.PRESETS``, or "auto".
    source_cache, generated_cache
        Kinds of ``graph_passes.SOURCE`` and ``GENERATED`` in place of the variant's.

    Raises
    ------
    ExportError
        There is no such variant or kind, or a kind is given for "auto".
    """
    if variant == AUTO:
        if source_cache is not None or generated_cache is not None:
            raise ExportError("--variant auto chooses both caches; leave --source-cache and --generated-cache out")
        return Choice(AUTO, None, "")
    if variant not in PRESETS:
        raise ExportError(f"variant {variant!r} is unknown; expected one of {', '.join(PRESETS)}, {AUTO}")
    preset, reasons = PRESETS[variant], [f"preset {variant}"]
    for option, kinds, kind in (
        ("source-cache", SOURCE, source_cache),
        ("generated-cache", GENERATED, generated_cache),
    ):
        if kind is None:
            continue
        if kind not in kinds:
            raise ExportError(f"{option} {kind!r} is unknown; expected one of {', '.join(kinds)}")
        preset = replace(preset, **{option.partition("-")[0]: kind})
        reasons.append(f"--{option} {kind}")
    same = [name for name, other in PRESETS.items() if other == preset]
    return Choice((same or [f"{preset.source}+{preset.generated}"])[0], preset, ", ".join(reasons))


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """The options of ``export_model``, under its names. Raises ExportError for what no checkpoint could have."""

    variant: str | None = None
    source_cache: str | None = None
    generated_cache: str | None = None
    precision: str = "fp32"
    cache_precision: str | None = None
    max_new_tokens: int | None = None
    calibration: str | os.PathLike[str] | None = None
    weight_threshold: float = 0.0
    global_tokens: int = 0
    workload: Workload = field(default_factory=Workload)
    max_differing: float | None = None
    check: bool = True
    force: bool = False

    def __post_init__(self) -> None:
        self.choice()
        if self.precision == "bf16":
            raise ExportError(
                "a bundle cannot be in bf16: numpy and ONNX Runtime's CPU provider lack it, so that nothing could "
                "compare it with torch; take --precision fp16, or export in fp32 and then build-engine --precision bf16"
            )
        if self.precision not in PRECISIONS:
            raise ExportError(f"precision {self.precision!r} is not supported; expected {', '.join(PRECISIONS)}")
        self._check_int8()
        self._check_cache_precision()
        self._check_gpu()
        if self.max_new_tokens is not None and self.max_new_tokens < 1:
            raise ExportError(f"max_new_tokens={self.max_new_tokens} leaves nothing to generate; expected 1 or more")
        if not 0 <= self.weight_threshold < 1:
            raise ExportError(
                f"weight_threshold={self.weight_threshold:g} is not a share below 1; expected 0 (exact), or e.g. 0.001"
            )
        if self.global_tokens < 0:
            raise ExportError(
                f"global_tokens={self.global_tokens} is not a number of tokens; expected 0 (none), or 1 for the first"
            )
        self._check_max_differing()

    def _check_max_differing(self) -> None:
        """Raise ExportError for a share of differing sequences that is none, or that nothing would be compared with."""
        if self.max_differing is None:
            return
        if not 0 <= self.max_differing <= 1:
            raise ExportError(f"max_differing={self.max_differing:g} is not a share; expected 0 to 1, e.g. 0.02")
        if self.is_exact:
            raise ExportError(
                "max_differing is for inexact bundles, and one differing token ends an export in fp32 anyway; leave "
                "it out, or pass --precision int8 or fp16, --cache-precision int8 or --weight-threshold"
            )
        if not self.check:
            raise ExportError("max_differing needs the comparison with torch; leave --no-check out")

    def _check_int8(self) -> None:
        """Raise ExportError for a given matrix rate: that of integers is another, and is measured."""
        if self.precision == "int8" and self.workload.gflop_s is not None:
            raise ExportError(
                "the rate of int8 products is measured on this machine, so none can be given; leave --gflop-s out, or "
                "pass --precision fp32"
            )

    def _check_cache_precision(self) -> None:
        """Raise ExportError for what has no source cache in int8."""
        if self.cache_precision is None:
            return
        if self.cache_precision != "int8":
            raise ExportError(
                f"cache_precision {self.cache_precision!r} is not supported; expected int8, or nothing for that "
                "of --precision"
            )
        if self.precision not in ("fp32", "int8"):
            raise ExportError(
                f"an int8 source cache does not go with --precision {self.precision}; expected fp32 or int8"
            )
        preset = self.choice().preset
        if preset is not None and preset.source not in QUANTIZED_KINDS:
            raise ExportError(
                f"source cache {preset.source} cannot be in int8; expected {' or '.join(QUANTIZED_KINDS)}, as of "
                f"--variant {DEFAULT} or el"
            )

    def _check_gpu(self) -> None:
        """Raise ExportError for a GPU whose kernels' times are not those of the bundle's precision."""
        if self.workload.gpu is not None and self.precision != "fp16":
            raise ExportError(
                f"the times of a GPU's kernels are known in float16, not for --precision {self.precision}; pass "
                "--precision fp16, or the GPU's --bandwidth-gb-s and --gflop-s"
            )

    def check_rates(self) -> None:
        """Raise ExportError for rates of a machine in an export that predicts no times."""
        rates = self.workload.bandwidth_gb_s, self.workload.gflop_s, self.workload.gpu
        if rates != (None, None, None) and self.choice().preset is not None:
            raise ExportError(
                "bandwidth, matrix rate and GPU are for --variant auto and --dry-run; leave them out, or pass one of "
                "these"
            )

    @property
    def is_exact(self) -> bool:
        """True where the bundle's tokens must be those of torch in float32."""
        return self.precision == "fp32" and self.cache_precision is None and not self.weight_threshold

    @property
    def itemsize(self) -> int:
        """Bytes of a number in caches."""
        return itemsize(self.precision)

    @property
    def weight_itemsize(self) -> int:
        """Bytes of a number in products and embeddings; in int8, scales, biases and norms need more."""
        return 1 if self.precision == "int8" else self.itemsize

    def choice(self) -> Choice:
        """The kinds of cache asked for; those of `dedup` without a variant."""
        return choose(self.variant or DEFAULT, self.source_cache, self.generated_cache)

    def check_model(self, choice: Choice, sizes: Sizes) -> None:
        """Refuse what a model of these sizes cannot have, before it generates and is traced, which takes long.

        Raises
        ------
        PassError
            Kinds of cache that do not go together.
        ExportError
            A kind of cache that the model cannot have, calibration texts for an exact choice, or more new tokens than
            the model has positions.
        """
        if choice.preset is not None:
            plan = same_for_all(choice.preset, sizes.L, choice.reason)
            passes_of(plan, decoder_only=sizes.decoder_only)
            if reason := why_not(choice.preset, sizes):
                raise ExportError(f"variant {choice.name} {reason}; use --variant {DEFAULT}")
            if self.calibration is not None and self.is_exact and not needs_guard(plan):
                raise ExportError(
                    f"--calibration is for what is measured, and variant {choice.name} is exact; leave it out"
                )
        if self.max_new_tokens is not None and self.max_new_tokens >= sizes.max_target:
            raise ExportError(
                f"max_new_tokens={self.max_new_tokens} and the start token exceed the model's {sizes.max_target} "
                "positions; pass fewer"
            )

    def check_memory(self, weight_bytes: int, plan: Sequence[LayerPlan], sizes: Sizes, run: RunSize) -> None:
        """Raise ExportError where weights and the caches of a plan exceed the workload's memory limit."""
        limit = self.workload.memory_limit
        needed = weight_bytes + sum(plan_bytes(plan, sizes, run))
        if limit is not None and needed > limit:
            raise ExportError(
                f"weights and caches need {needed:,} bytes, over the limit of {limit:,}; pass --variant auto, which "
                "takes a variant that fits if there is one, or a smaller --batch-size"
            )
