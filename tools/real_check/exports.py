"""Every bundle that a checkpoint can have, of one trace and one comparison with torch."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tightbeam.deploy import Bundle, BundleError
from tightbeam.deploy.bundle.manifest import Manifest
from tightbeam.deploy.console import say
from tightbeam.export import ExportError, export_model
from tightbeam.export.choice import DEFAULT
from tightbeam.export.errors import InexactError
from tightbeam.graph_passes import PassError, presets_of
from tightbeam.graph_passes.model import Sizes
from tools.real_check.outcome import Counts
from tools.shared_steps import shared_steps

__all__ = ["Form", "Quality", "Result", "export_all", "findings", "forms_of"]


@dataclass(frozen=True)
class Form:
    """A variant in a precision.

    Attributes
    ----------
    variant : str
        A name of ``graph_passes.PRESETS``.
    precision : str
        One of ``PRECISIONS``.
    cache_precision : str or None
        "int8"; None for the precision of the products.
    """

    variant: str
    precision: str
    cache_precision: str | None = None

    @property
    def name(self) -> str:
        """The name in tables and of the folder."""
        return f"{self.variant}-{self.precision}" + ("-cache-int8" if self.cache_precision else "")

    @property
    def precision_label(self) -> str:
        """The precision in tables."""
        cache = ", int8 cache" if self.cache_precision else ""
        return {"fp32": "float32", "fp16": "float16"}.get(self.precision, self.precision) + cache

    @property
    def is_timed(self) -> bool:
        """True if its speed is measured."""
        return self.precision != "fp16" or self.variant == DEFAULT

    @property
    def is_exact(self) -> bool:
        """True if the tokens have to be torch's."""
        return self.precision == "fp32" and self.cache_precision is None


@dataclass(frozen=True)
class Quality:
    """How good texts are.

    Attributes
    ----------
    word_errors : dict of str to float
        Word error rates by name of a setting; empty if no outputs are expected.
    perplexity : float or None
        None if nothing was scored.
    languages : int or None
        Windows whose language the model found by itself; None if it chooses none.
    """

    word_errors: dict[str, float]
    perplexity: float | None
    languages: int | None


@dataclass
class Result:
    """A form of a checkpoint: its export, what its guards found, and how it compares with torch.

    Attributes
    ----------
    error : str
        Why it could not be exported or run; "" if it could.
    refused : bool
        A guard refused the form, as it has to.
    seconds : float
        Time of the export, with its comparison with torch. The first export's has the trace, too.
    bundle : Bundle or None
        None if the export failed.
    disk_mb, weights_mb, cache_mb : float
        Bytes of the bundle's files; of its weights; of both caches for 8 of the longest rows with 4 beams.
    divergence, distance : float or None
        How far the distributions of the scored tokens are from torch's (``measures``); None if nothing was scored.
    counts : dict of str to Counts
        By name of a setting.
    """

    form: Form
    error: str
    refused: bool
    seconds: float
    bundle: Bundle | None = None
    found: str = ""
    disk_mb: float = 0
    weights_mb: float = 0
    cache_mb: float = 0
    counts: dict[str, Counts] = field(default_factory=dict)
    quality: Quality | None = None
    divergence: float | None = None
    distance: float | None = None


def forms_of(sizes: Sizes, variants: Sequence[str], precisions: Sequence[str]) -> list[Form]:
    """The forms that a model of these sizes can have, the default first; int8's source cache goes with the default."""
    possible = [name for name in presets_of(sizes) if not variants or name in variants]
    possible.sort(key=lambda name: name != DEFAULT)
    forms = [Form(variant, precision) for precision in precisions for variant in possible]
    if "int8" in precisions and DEFAULT in possible:
        forms.append(Form(DEFAULT, "int8", "int8"))
    return forms


def export_all(checkpoint: str, forms: Sequence[Form], folder: Path) -> Iterator[Result]:
    """Export a checkpoint in each form; one that fails does not end the others."""
    with shared_steps("trace", "make_reference"):
        for form in forms:
            start = time.perf_counter()
            bundle, error, refused = None, "", False
            try:
                bundle = export_model(
                    checkpoint,
                    folder / form.name,
                    variant=form.variant,
                    precision=form.precision,
                    cache_precision=form.cache_precision,
                    force=True,
                )
            except (ExportError, PassError, BundleError) as failed:
                error, refused = str(failed), isinstance(failed, InexactError)
                say(f"{checkpoint}, {form.name}: the export failed: {error}")
            yield Result(form, error, refused, time.perf_counter() - start, bundle)


def findings(manifest: Manifest) -> str:
    """What the guards found: caches that were refused, products and embeddings that are not in int8; "" for none."""
    refused = Counter((entry.wanted, entry.kept) for entry in manifest.guard if entry.kept != entry.wanted)
    measured = Counter(entry.wanted for entry in manifest.guard)
    said = [f"{wanted} to {kept} in {count} of {measured[wanted]}" for (wanted, kept), count in refused.items()]
    forms = Counter(entry.kept for entry in manifest.quantized)
    said += [f"{forms[form]} of {len(manifest.quantized)} in {form}" for form in ("w8a16", "fp32") if forms[form]]
    return ", ".join(said)
