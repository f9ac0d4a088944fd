"""Settings of one caller over the checkpoint's: merged, and checked by the table of `fields`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tightbeam.deploy.errors import Fix, GenerationError, Setting
from tightbeam.deploy.generation.fields import (
    DORMANT,
    FIELDS,
    INERT,
    UNSUPPORTED,
    WARPERS,
    Field,
    ModelKind,
    defaults_of,
    fields_of,
)
from tightbeam.deploy.generation.layers import CHECKPOINT, Layer
from tightbeam.deploy.generation.renamed_settings import advice_on
from tightbeam.deploy.generation.values import Given

__all__ = ["Settings"]

OTHERS = INERT | DORMANT.keys() | UNSUPPORTED.keys()
LONG_NAME = 60
"""Characters of an unknown name that an error quotes."""


class Settings:
    """The checked value of each setting, and its source.

    Parameters
    ----------
    layers : sequence of Layer
        The checkpoint's settings and the caller's; a later layer overrides an earlier one.
    model : ModelKind
        The kind of model.
    vocab_size : int
        Tokens that the model scores.
    positions : int
        Positions of the model's decoder.

    Attributes
    ----------
    samples : bool
        True if tokens are drawn: always, or in some attempt at a window.

    Raises
    ------
    GenerationError
        A setting is unknown or not supported, a value is of another type or range, or two settings do not go together.
    """

    def __init__(self, layers: Sequence[Layer], model: ModelKind, vocab_size: int, positions: int) -> None:
        self.model, self.vocab_size, self._positions = model, vocab_size, positions
        self._fields = fields_of(model)
        self._given: dict[str, Any] = {}
        self._layers: dict[str, Layer] = {}
        for layer in layers:
            for name, value in layer.values.items():
                self._merge(layer, name, value)
        self._values = dict(defaults_of(model))
        given = [self._fields[name] for name in self._given if name in self._fields]
        for own in given:
            if not own.needs_sampling:
                self._values[own.name] = own.type.read(self.given(own.name))
        self.samples = any(self["temperature"]) if model is ModelKind.WHISPER else self["do_sample"]
        for name in self._given:
            self._check_supported(name)
        for own in given:
            if own.needs_sampling:
                self._read_sampling(own)
            self._check_beside(own)

    def __getitem__(self, name: str) -> Any:
        """The value of a setting as a search takes it; its default if nobody gives it."""
        return self._values[name]

    def __contains__(self, name: str) -> bool:
        """True for a setting that somebody gives."""
        return name in self._given

    def is_asked(self, name: str) -> bool:
        """Return True for a setting that somebody asks for by name."""
        return name in self._given and self._layers[name].asked

    def is_callers(self, name: str) -> bool:
        """Return True for a setting that the caller gives, not the checkpoint."""
        return name in self._given and self._layers[name].source != CHECKPOINT

    def given(self, name: str) -> Given:
        """Return a setting as it was given."""
        source = self._layers[name].source if name in self._layers else "transformers' default"
        return Given(name, self._given.get(name), source, self.vocab_size, self._positions)

    def error(self, name: str, problem: str, *, fix: Fix | str) -> GenerationError:
        """Make an error about a setting."""
        return self.given(name).error(problem, fix=fix)

    def _merge(self, layer: Layer, name: str, value: Any) -> None:
        """Let a value override the earlier layers' value; None unsets most settings."""
        own = self._fields.get(name)
        if own is None and name not in OTHERS:
            self._check_other(layer, name, value)
            return
        if own is not None and own.by_name and not layer.asked:
            return
        if value is not None:
            self._given[name], self._layers[name] = value, layer
        elif own is None or not own.keeps_checkpoint:
            self._given.pop(name, None)

    def _check_other(self, layer: Layer, name: str, value: Any) -> None:
        """Raise GenerationError for a setting of another kind of model that is not ignored, or an unknown one."""
        others = [own for own in FIELDS if own.name == name and not own.of_checkpoint]
        shown = name if len(name) < LONG_NAME else f"{name[:LONG_NAME]}..."
        given = Given(
            shown if shown.isprintable() else repr(shown), value, layer.source, self.vocab_size, self._positions
        )
        if not others:
            own = (field.name for field in self._fields.values() if not field.of_checkpoint)
            advice = advice_on(name[:LONG_NAME], own)
            raise given.error("is not a generation setting", fix=advice)
        (other,) = others
        if not other.ignored:
            kinds = " and ".join(sorted(other.models))
            raise given.error(f"is not a setting of this model: it is for {kinds}", fix="remove it")
        if not _is_one_of(value, other.ignored):
            neutral = next((each for each in other.ignored if each is not None), None)
            fix = "leave it out" if neutral is None else Fix("pass {}", Setting(name, neutral))
            raise given.error(f"is not supported for {self.model}", fix=fix)

    def _check_supported(self, name: str) -> None:
        """Raise GenerationError for an unsupported field of transformers that asks for something."""
        asked = self._layers[name].asked
        if name in UNSUPPORTED:
            neutral = UNSUPPORTED[name]
        elif name in DORMANT and (asked or (name in WARPERS and self.samples)):
            neutral = DORMANT[name]
        else:
            return
        if not _is_one_of(self._given[name], neutral):
            removal = "leave it out" if asked else "remove it there"
            fix = Fix(f"{removal} or pass {{}}", Setting(name, neutral[0])) if neutral else removal
            raise self.error(name, "is not supported", fix=fix)

    def _read_sampling(self, own: Field) -> None:
        """Read a setting of sampling. Raises GenerationError if somebody asks for it and nothing is sampled."""
        always = self.samples and self.model is not ModelKind.WHISPER
        if self._layers[own.name].asked and not always and not _is_one_of(self._given[own.name], own.ignored):
            fix: Fix | str = Fix("pass {}, or leave it out", Setting("do_sample", True))
            fix = "leave it out" if self.model is ModelKind.WHISPER else fix
            raise self.error(own.name, "does nothing without do_sample", fix=fix)
        if self.samples:
            self._values[own.name] = own.type.read(self.given(own.name))

    def _check_beside(self, own: Field) -> None:
        """Raise GenerationError for a setting beside another that it does not go with."""
        for other in own.not_with:
            if self._asks(own.name) and self._asks(other):
                fix: Fix | str = "leave one out"
                if own.default not in (None, ()):
                    fix = Fix("leave one out, or pass {}", Setting(own.name, own.default))
                raise self.error(own.name, f"does not go with {other}", fix=fix)

    def _asks(self, name: str) -> bool:
        return name in self._fields and self[name] != self._fields[name].default


def _is_one_of(value: Any, neutral: Sequence[object]) -> bool:
    """Return True for a neutral value. An array or a tensor is not one."""
    return not getattr(value, "ndim", 0) and value in neutral
