"""The options of an export: name, type, default, help text and check of each stand here alone.

``export-model``, ``export_model`` and their reference pages are made of the fields of ``ExportOptions``. Checks against
a checkpoint are in ``preparation.py``. What a check needs is imported inside it, so that ``--help`` does not wait.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict

from tightbeam.export.auto.workload import Workload
from tightbeam.export.errors import ExportError
from tightbeam.export.option import Option, check_options

if TYPE_CHECKING:
    from tightbeam.export.accuracy.divergence import Budget
    from tightbeam.export.choice import Choice

__all__ = ["ExportKeywords", "ExportOptions"]


MAX_DIVERGENCE = 0.002
"""Default of ``max_divergence`` of caches in int8, and the least of products: a fifth of what changes the perplexity by
1 %."""
MAX_DIVERGENCE_INT4 = 0.02
"""The same in int4: what changes the perplexity by 2 %."""
SHARE_OF_Q8_0 = 0.6
"""Rows take 16 bits until the divergence is this part of Q8_0's. The whole of Q8_0's is the budget of int8."""


def check_variant(options: ExportOptions) -> None:
    """Check the variant, and the kinds of cache in place of its own."""
    options.choice()


def check_precision(options: ExportOptions) -> None:
    """Check the precision, and that the workload gives no rates that are not the precision's."""
    from tightbeam.deploy.bundle.manifest import PRECISIONS
    from tightbeam.graph_passes.precision.lower_precision import INTEGERS

    precision, workload = options.precision, options.workload
    if precision == "bf16":
        raise ExportError(
            "a bundle cannot be in bf16: numpy and ONNX Runtime's CPU provider lack it, so that nothing could "
            "compare it with torch; take --precision fp16, or export in fp32 and then build-engine --precision bf16"
        )
    if precision not in PRECISIONS:
        raise ExportError(f"precision {precision!r} is not supported; expected {', '.join(PRECISIONS)}")
    if precision in INTEGERS and workload.gflop_s is not None:
        raise ExportError(
            f"the rate of {precision} products is measured on this machine, so none can be given; leave --gflop-s "
            "out, or pass --precision fp32"
        )
    if precision != "fp16" and workload.gpu is not None:
        raise ExportError(
            f"the times of a GPU's kernels are known in float16, not for --precision {precision}; pass "
            "--precision fp16, or the GPU's --bandwidth-gb-s and --gflop-s"
        )


def check_cache_precision(options: ExportOptions) -> None:
    """Check the precision of the source cache beside the other precision and the kind of cache."""
    from tightbeam.export.choice import DEFAULT
    from tightbeam.graph_passes import QUANTIZED_KINDS

    if options.cache_precision is None:
        return
    _check_int8(options, "cache_precision", "source")
    preset = options.choice().preset
    if preset is not None and preset.source not in QUANTIZED_KINDS:
        raise ExportError(
            f"source cache {preset.source} cannot be in int8; expected {', '.join(QUANTIZED_KINDS[:-1])} or "
            f"{QUANTIZED_KINDS[-1]}, as of --variant {DEFAULT}, kcache or el"
        )


def check_generated_cache_precision(options: ExportOptions) -> None:
    """Check the precision of the generated cache beside the other precision and the kind of cache."""
    from tightbeam.export.choice import DEFAULT
    from tightbeam.graph_passes import QUANTIZED_GENERATED

    if options.generated_cache_precision is None:
        return
    _check_int8(options, "generated_cache_precision", "generated")
    preset = options.choice().preset
    if preset is not None and preset.generated not in QUANTIZED_GENERATED:
        raise ExportError(
            f"generated cache {preset.generated} cannot be in int8; expected {' or '.join(QUANTIZED_GENERATED)}, as of "
            f"--variant {DEFAULT} or el"
        )


def _check_int8(options: ExportOptions, name: str, cache: str) -> None:
    """Check that a cache is to be in int8, and that the products' precision goes with it."""
    from tightbeam.graph_passes.precision.lower_precision import INTEGERS

    given = getattr(options, name)
    if given != "int8":
        raise ExportError(f"{name} {given!r} is not supported; expected int8, or nothing for that of --precision")
    if options.precision not in ("fp32", *INTEGERS):
        raise ExportError(
            f"an int8 {cache} cache does not go with --precision {options.precision}; expected fp32, int8 or int4"
        )


def check_max_new_tokens(options: ExportOptions) -> None:
    """Check that something is generated."""
    if options.max_new_tokens is not None and options.max_new_tokens < 1:
        raise ExportError(f"max_new_tokens={options.max_new_tokens} leaves nothing to generate; expected 1 or more")


def check_weight_threshold(options: ExportOptions) -> None:
    """Check that the threshold is a probability below 1."""
    if not 0 <= options.weight_threshold < 1:
        raise ExportError(
            f"weight_threshold={options.weight_threshold:g} is not a share below 1; expected 0 (exact), or e.g. 0.001"
        )


def check_screen_logits(options: ExportOptions) -> None:
    """Check that the output matrix is in float32 or int8."""
    if options.screen_logits and options.precision not in ("fp32", "int8"):
        raise ExportError(
            f"screen_logits is for fp32 and int8, the precision is {options.precision}; leave it out, or pass "
            "--precision int8"
        )


def check_global_tokens(options: ExportOptions) -> None:
    """Check that the number of tokens is not negative."""
    if options.global_tokens < 0:
        raise ExportError(
            f"global_tokens={options.global_tokens} is not a number of tokens; expected 0 (none), or 1 for the first"
        )


def check_short_audio(options: ExportOptions) -> None:
    """Check that the encoder is not in one graph with the search, which takes whole windows."""
    if options.short_audio and options.one_graph:
        raise ExportError("short_audio does not go with one_graph, whose windows are whole; leave one of them out")


def check_with_tokenizer(options: ExportOptions) -> None:
    """Check that there is a graph to put the tokenizer into."""
    if options.with_tokenizer and not options.one_graph:
        raise ExportError("with_tokenizer puts the tokenizer beside one graph; pass --one-graph too, or leave it out")


def check_max_differing(options: ExportOptions) -> None:
    """Check that the limit is a share, and that the bundle is inexact and compared."""
    if options.max_differing is None:
        return
    if not 0 <= options.max_differing <= 1:
        raise ExportError(f"max_differing={options.max_differing:g} is not a share; expected 0 to 1, e.g. 0.02")
    if options.is_exact:
        raise ExportError(
            "max_differing is for inexact bundles, and one differing token ends an export in fp32 anyway; leave "
            "it out, or pass --precision int8 or fp16, --cache-precision int8 or --weight-threshold"
        )
    if not options.check:
        raise ExportError("max_differing needs the comparison with torch; leave --no-check out")


def check_max_divergence(options: ExportOptions) -> None:
    """Check that the budget is a number of nats, and that products have matrices of integers."""
    from tightbeam.graph_passes.precision.lower_precision import INTEGERS

    if options.max_divergence is None:
        return
    if not (0 < options.max_divergence < math.inf):
        raise ExportError(
            f"max_divergence={options.max_divergence:g} is not a budget in nats a token; expected a number above 0, "
            f"e.g. {MAX_DIVERGENCE:g}"
        )
    if options.precision not in INTEGERS and not options.int8_caches:
        raise ExportError(
            f"max_divergence is for int8 and int4, the precision is {options.precision}; leave it out, or pass "
            "--precision int8 or --cache-precision int8"
        )


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """The options of an export. Raises ExportError for values that no checkpoint could be exported with."""

    variant: Annotated[
        str | None,
        Option(
            "What the decoder caches, by a name for both caches: baseline, dedup, el, kcache, xcache, slim, hybrid, or "
            "auto (the one that is predicted to be fastest); dedup by default.",
            check=check_variant,
        ),
    ] = None
    source_cache: Annotated[
        str | None,
        Option("Cache of the source or prompt, in place of the variant's: kv-per-beam, kv, k, first-k or states."),
    ] = None
    generated_cache: Annotated[
        str | None,
        Option("Cache of the generated tokens, in place of the variant's: kv-reordered, kv, k or x."),
    ] = None
    precision: Annotated[
        str,
        Option(
            "Precision: fp32, which is exact; fp16 for products, caches and most weights (half the size, inexact); "
            "int8 for products and embeddings (a quarter of the size, only for CPUs, inexact); or int4 for their "
            "weights (an eighth, likewise), which is refused if it changes the model too much.",
            check=check_precision,
        ),
    ] = "fp32"
    cache_precision: Annotated[
        str | None,
        Option(
            "Precision of the cache of the source or prompt: int8, a quarter of the size (only for CPUs, inexact; with "
            "--precision fp32, int8 or int4); by default float32, or float16 with --precision fp16.",
            check=check_cache_precision,
        ),
    ] = None
    generated_cache_precision: Annotated[
        str | None,
        Option(
            "Precision of the cache of the generated tokens: int8, a quarter of the size (only for CPUs, inexact; with "
            "--precision fp32, int8 or int4); by default float32, or float16 with --precision fp16.",
            check=check_generated_cache_precision,
        ),
    ] = None
    max_new_tokens: Annotated[
        int | None,
        Option(
            "Limit on new tokens that the bundle has as its default, for runs that set no limit; by default the "
            "checkpoint's.",
            check=check_max_new_tokens,
        ),
    ] = None
    calibration: Annotated[
        str | os.PathLike[str] | None,
        Option(
            "Text file, one text a line, in place of the built-in texts; for a speech model a recording or a folder of "
            "them, whose first 8 are taken. The export measures the errors of rewritten attention, int8 and "
            "int4 on these, and compares an inexact bundle with torch on them.",
            parse=Path,
        ),
    ] = None
    weight_threshold: Annotated[
        float,
        Option(
            "Skip positions of the source or prompt whose attention probability is below this value, such as 0.001 "
            "(inexact).",
            check=check_weight_threshold,
        ),
    ] = 0.0
    screen_logits: Annotated[
        bool,
        Option(
            "Estimate the logits of greedy steps first, with a proven bound, and compute only those that may be the "
            "best: the same tokens, faster on CPUs with a large vocabulary. The output matrix takes a quarter of its "
            "bytes more in float32, and a quarter to three quarters more in int8.",
            check=check_screen_logits,
        ),
    ] = False
    global_tokens: Annotated[
        int,
        Option(
            "Number of first tokens of each source that have global attention, for LED, whose published summarizers "
            "take 1. By default none has it, as in model.generate without a global_attention_mask.",
            check=check_global_tokens,
        ),
    ] = 0
    short_audio: Annotated[
        bool,
        Option(
            "Encode the sound that a window of Whisper has, and a second of silence behind it, instead of whole "
            "windows: faster for recordings shorter than a window (inexact).",
            check=check_short_audio,
        ),
    ] = False
    one_graph: Annotated[
        bool,
        Option("Also write generate.onnx, one graph of encoder, decoder and search for ONNX Runtime in any language."),
    ] = False
    with_tokenizer: Annotated[
        bool,
        Option(
            "Also write generate_text.onnx, the same graph with the tokenizer in it: texts in, texts out. It needs "
            "onnxruntime-extensions, here and in the application, and --one-graph.",
            check=check_with_tokenizer,
        ),
    ] = False
    chat_template: Annotated[
        str | os.PathLike[str] | None,
        Option("Jinja file with the chat template, in place of the checkpoint's own.", parse=Path),
    ] = None
    max_differing: Annotated[
        float | None,
        Option(
            "Largest share of the compared sequences that may differ from torch's, such as 0.02; if more differ, the "
            "export fails. For inexact bundles (by --precision, a cache in int8, --weight-threshold, --short-audio).",
            check=check_max_differing,
        ),
    ] = None
    max_divergence: Annotated[
        float | None,
        Option(
            "How far int8 or int4 may move the distribution of the next token, in nats a token on the calibration "
            "inputs, such as 0.01 (1% of the perplexity). By default as far as llama.cpp's Q8_0 would move it, or Q4_0 "
            f"for int4, and at least {MAX_DIVERGENCE:g}, or {MAX_DIVERGENCE_INT4:g} for int4; int8 aims at "
            f"{SHARE_OF_Q8_0:g} of Q8_0's. Caches in int8 take their share, and products keep more bits until the rest "
            "holds.",
            check=check_max_divergence,
        ),
    ] = None
    check: Annotated[
        bool,
        Option("Do not compare the bundle with torch, and do not measure the error of fp16, int8 or int4."),
    ] = True
    force: Annotated[bool, Option("Replace an existing bundle in the folder of --output.")] = False
    workload: Workload = field(default_factory=Workload)

    def __post_init__(self) -> None:
        check_options(self)

    @property
    def cache_budget(self) -> float:
        """The largest divergence of caches in int8, in nats a token."""
        default = MAX_DIVERGENCE_INT4 if self.precision == "int4" else MAX_DIVERGENCE
        return default if self.max_divergence is None else self.max_divergence

    def budget(self, known: float | None, taken: float) -> Budget:
        """The bounds of the divergence of products.

        ``known``: the divergence of Q8_0, or Q4_0 in int4, on the same inputs, if it could be measured; ``taken``: what
        caches have of the budget already, since independent errors add up.
        """
        from tightbeam.export.accuracy.divergence import Budget

        least = self.cache_budget - taken
        if self.max_divergence is not None or known is None:
            return Budget(least, least)
        most = max(known, least)
        return Budget(most if self.precision == "int4" else SHARE_OF_Q8_0 * known, most)

    def choice(self) -> Choice:
        """Choose the kinds of cache. Raises ExportError for an unknown one."""
        from tightbeam.export.choice import choose

        return choose(self.variant, self.source_cache, self.generated_cache)

    @property
    def is_exact(self) -> bool:
        """True if the bundle's tokens must equal torch's in float32."""
        exact = self.precision == "fp32" and not self.int8_caches and not self.weight_threshold
        return exact and not self.short_audio

    @property
    def int8_caches(self) -> tuple[str, ...]:
        """The caches in int8: "source", "generated", both or none."""
        precisions = {"source": self.cache_precision, "generated": self.generated_cache_precision}
        return tuple(name for name, precision in precisions.items() if precision is not None)


class ExportKeywords(TypedDict, total=False):
    """The options as keywords of ``export_model``, for type checkers; a test compares them with ``ExportOptions``."""

    variant: str | None
    source_cache: str | None
    generated_cache: str | None
    precision: str
    cache_precision: str | None
    generated_cache_precision: str | None
    max_new_tokens: int | None
    calibration: str | os.PathLike[str] | None
    weight_threshold: float
    screen_logits: bool
    global_tokens: int
    short_audio: bool
    one_graph: bool
    with_tokenizer: bool
    chat_template: str | os.PathLike[str] | None
    max_differing: float | None
    max_divergence: float | None
    check: bool
    force: bool
