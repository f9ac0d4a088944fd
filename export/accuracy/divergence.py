"""The end of int8 and int4: how far the distribution of the next token moves, and forms that keep it within a budget.

A product's own error does not say what it does to the output: an error in the logits' product changes every token, and
one in a key may change none. So an export measures the whole model too: the quantised graphs are fed the tokens that
the float32 graphs choose, and the divergence is the mean of KL(float32 || quantised) over the steps, in nats. It is
also what quantising adds to the mean negative log-probability of text that the float32 model would write: 0.01 nats are
1 % of the perplexity.

There are two bounds. Rows take 16 bits, which cost no memory, and weights 8 bits in place of 4, until the divergence is
at most the target. Only if it is over the budget with all of these, matrices stay in float32.

1. A group is all products of one graph and one shape, which have one role in all layers, with the products of the other
   graph that read the same matrices. Each group is made narrow while all others are wide. The growth of the divergence
   is the group's harm.
2. The divergence of a small error grows with its square, and independent errors add up. So a product's harm is its
   group's times the product's share in the group's sum of squared errors.
3. Products are widened in the order of the harm that is saved for each byte that a step then reads or multiplies more,
   until the predicted divergence is within the bound; what then turns out not to be needed, the largest first, stays
   narrow. The divergence is measured again, and so on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tightbeam.deploy.bundle.manifest import DivergenceEntry, QuantizedEntry
from tightbeam.export.accuracy.product_guard import is_allowed, limit
from tightbeam.graph_passes.model import Array
from tightbeam.graph_passes.precision.int4 import BYTES
from tightbeam.graph_passes.precision.sites import BITS, FORMS

__all__ = [
    "Budget",
    "Widening",
    "entries_of",
    "steps_before_end",
    "why_not",
    "widened",
    "within_budget",
]

MOST_TRIALS = 6
MARGIN = 0.8
"""The part of what is left of a bound to which the prediction is brought: harms do not add up exactly."""
NEAR = 1.1
"""Rows of 16 bits are not taken for less than a tenth of the divergence that the weights have."""
LEAST_SHARE = {"int8": 0.5, "int4": 0.3}
"""The share of the weights that has a precision's own bits in a bundle, at least: with less, a wider one is as good.
Tables that no operator reads in 4 bits do not count."""
COST = {"w4a16": BYTES, "int8": 1.0, "w8a16": 1.25, "blocks": 1.5, "fp32": 4.0}
"""Cost of a product in each form, relative to int8: bytes of the matrix, and for "w8a16" and "blocks" the time of 16
rows."""
STORED = {form: BYTES if bits == 4 else bits / 8 for form, bits in BITS.items()}
"""Bytes of a weight in each form."""

Forms = Mapping[str, str]
Measure = Callable[[Forms], float]


@dataclass(frozen=True)
class Budget:
    """Bounds of the divergence in nats a token: ``target`` for rows and for 4 bits, ``most`` for matrices in 8 bits."""

    target: float
    most: float


@dataclass(frozen=True)
class Widening:
    """One measurement on the way to the budget: the forms, and the divergence that they have."""

    forms: dict[str, str]
    divergence: float


def steps_before_end(tokens: Array, end: int | Sequence[int] | None) -> Array:
    """Bool [B, steps]: steps until a sample's end token, and the step that chooses it.

    Parameters
    ----------
    tokens
        int64 [B, steps], the token of each step.
    end
        The end tokens, if the model has any.
    """
    ends = np.isin(tokens, [] if end is None else end)
    return np.cumsum(ends, axis=1) - ends == 0


def within_budget(
    entries: Sequence[QuantizedEntry], readers: Mapping[str, Sequence[str]], measure: Measure, budget: Budget
) -> list[Widening]:
    """Widen products until the divergence is within a budget.

    Parameters
    ----------
    entries
        The products and embeddings, with the forms that the guard allows each and its errors in all of them.
    readers
        By the name of each, the names of all that read its matrix: all have it in the same bits.
    measure
        Gives the divergence of forms by name.
    budget
        The bounds.

    Returns
    -------
    list of Widening
        Every measurement in order. The last one is within the budget, unless even float32 is not.
    """
    kept = {entry.name: str(entry.kept) for entry in entries}
    search = _Search(entries, readers, measure, [Widening(kept, measure(kept))])
    if search.last.divergence <= budget.target:
        return search.tried
    wide = search.measured(_in_8_bits(entries, readers))
    if wide.divergence > budget.most:
        exact = Widening(dict.fromkeys(kept, "fp32"), 0.0)
        wide = search.between(wide, exact, budget.most)
    narrow = {name: "fp32" if wide.forms[name] == "fp32" else form for name, form in kept.items()}
    goal = max(budget.target, min(budget.most, NEAR * wide.divergence))
    last = search.between(search.measured(narrow), wide, goal)
    if search.last != last:
        search.tried.append(last)
    return search.tried


def widened(entries: Sequence[QuantizedEntry], last: Widening) -> tuple[QuantizedEntry, ...]:
    """The entries with the forms of a measurement; a product that was widened says why."""
    reason = "with less, the divergence of the model exceeds its budget"
    return tuple(
        entry
        if last.forms[entry.name] == entry.kept
        else entry.model_copy(
            update={"kept": last.forms[entry.name], "allowed": limit(last.forms[entry.name]), "reason": reason}
        )
        for entry in entries
    )


def entries_of(
    widenings: Sequence[Widening], entries: Sequence[QuantizedEntry], readers: Mapping[str, Sequence[str]]
) -> tuple[DivergenceEntry, ...]:
    """The measurements as ``bundle.json`` has them."""
    owners = {names[0] for names in readers.values()}
    sizes = {entry.name: int(np.prod(entry.shape)) for entry in entries if entry.name in owners}
    return tuple(
        DivergenceEntry(
            divergence=widening.divergence,
            bytes=round(sum(size * STORED[widening.forms[name]] for name, size in sizes.items())),
            **{form: sum(kept == form for kept in widening.forms.values()) for form in FORMS},
        )
        for widening in widenings
    )


def why_not(
    precision: str, entries: Sequence[QuantizedEntry], divergences: Sequence[DivergenceEntry], most: float
) -> str | None:
    """The reason why a model is not worth int8 or int4, in one line; None if most of its weights have the bits."""
    in_int4 = precision == "int4"
    own = ("w4a16",) if in_int4 else ("int8", "w8a16", "blocks")
    able = [entry for entry in entries if not (in_int4 and entry.embedding and entry.w4a16 is None)]
    numbers = {form: sum(int(np.prod(entry.shape)) for entry in able if entry.kept == form) for form in FORMS}
    share = sum(numbers[form] for form in own) / max(1, sum(numbers.values()))
    if not able or share >= LEAST_SHARE[precision]:
        return None
    first = divergences[0]
    wider = "int8" if in_int4 else "fp32"
    return (
        f"{precision} does not hold: within a divergence of {most:.2g} nats a token, {share:.0%} of the weights have "
        f"{4 if in_int4 else 8} bits, expected {LEAST_SHARE[precision]:.0%} at least; with "
        f"{sum(getattr(first, form) for form in own)} of {len(entries)} products and embeddings in {precision} the "
        f"divergence is {first.divergence:.2g}; pass --calibration with texts like yours, a larger --max-divergence, "
        f"or --precision {wider}"
    )


def _in_8_bits(entries: Sequence[QuantizedEntry], readers: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """The widest forms of 8 bits; float32 for a matrix that a reader cannot have in them."""
    widest = {entry.name: "w8a16" if entry.blocks is None else "blocks" for entry in entries}
    able = {
        entry.name: entry.kept != "fp32" and is_allowed(widest[entry.name], getattr(entry, widest[entry.name]))
        for entry in entries
    }
    return {name: form if all(able[reader] for reader in readers[name]) else "fp32" for name, form in widest.items()}


@dataclass
class _Search:
    """Forms between narrow and wide ones, with all measurements in order."""

    entries: Sequence[QuantizedEntry]
    readers: Mapping[str, Sequence[str]]
    measure: Measure
    tried: list[Widening]

    @property
    def last(self) -> Widening:
        return self.tried[-1]

    def measured(self, forms: dict[str, str]) -> Widening:
        """The measurement of forms, which is made once."""
        for widening in self.tried:
            if widening.forms == forms:
                return widening
        self.tried.append(Widening(forms, self.measure(forms)))
        return self.last

    def between(self, narrow: Widening, wide: Widening, goal: float) -> Widening:
        """Forms whose divergence is at most ``goal``, as few of them wide as it takes; else the wide ones."""
        if narrow.divergence <= goal:
            return narrow
        units = self._units(narrow.forms, wide)
        room, scale, before = MARGIN * (goal - wide.divergence), 1.0, narrow
        for _ in range(MOST_TRIALS):
            chosen = _chosen(units, room / scale)
            names = {name for unit in chosen for name in unit.names}
            forms = {name: (wide if name in names else narrow).forms[name] for name in narrow.forms}
            if forms in (before.forms, wide.forms):
                break
            before = self.measured(forms)
            if before.divergence <= goal:
                return before
            predicted = sum(unit.harm for unit in units if unit not in chosen)
            scale = max(1.25 * scale, (before.divergence - wide.divergence) / predicted if predicted > 0 else 0.0)
        return self.measured(dict(wide.forms))

    def _units(self, narrow: Forms, wide: Widening) -> list[_Unit]:
        """The units of widening: a product, or all readers of a matrix if its bits change."""
        by_name = {entry.name: entry for entry in self.entries}
        groups: dict[tuple[object, ...], list[tuple[list[str], float, float]]] = {}
        met: set[str] = set()
        for entry in self.entries:
            form, wider = narrow[entry.name], wide.forms[entry.name]
            if form == wider or entry.name in met:
                continue
            names = [entry.name] if BITS[form] == BITS[wider] else list(self.readers[entry.name])
            met |= set(names)
            squares = [
                _square(by_name[name], narrow[name]) - _square(by_name[name], wide.forms[name]) for name in names
            ]
            cost = (COST[wider] - COST[form]) * float(np.prod(entry.shape))
            graph, _, _ = self.readers[entry.name][0].partition(".")
            key = graph, entry.shape, entry.embedding, len(names)
            groups.setdefault(key, []).append((names, max(0.0, sum(squares)), cost))
        units = []
        for group in groups.values():
            inside = {name for names, _, _ in group for name in names}
            alone = {name: narrow[name] if name in inside else form for name, form in wide.forms.items()}
            total = sum(square for _, square, _ in group)
            harm = max(0.0, self.measure(alone) - wide.divergence) / total if total else 0.0
            units += [_Unit(tuple(names), harm * square, cost) for names, square, cost in group]
        return units


@dataclass(frozen=True)
class _Unit:
    """Products that are widened together, what they add to the divergence if they are not, and what widening costs."""

    names: tuple[str, ...]
    harm: float
    cost: float


def _chosen(units: Sequence[_Unit], room: float) -> list[_Unit]:
    """Units to widen so that the harm of the others is at most ``room``."""
    left, chosen = sum(unit.harm for unit in units), []
    for unit in sorted(units, key=lambda unit: -unit.harm / unit.cost):
        if left <= room:
            break
        chosen.append(unit)
        left -= unit.harm
    for unit in sorted(chosen, key=lambda unit: -unit.cost):
        if left + unit.harm <= room:
            chosen.remove(unit)
            left += unit.harm
    return chosen


def _square(entry: QuantizedEntry, form: str) -> float:
    error = None if form == "fp32" else getattr(entry, form)
    return 0.0 if error is None else error**2
