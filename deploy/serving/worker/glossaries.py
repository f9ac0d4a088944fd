"""Glossaries of a served model, which requests call by name, and texts whose translation has their terms.

A request cannot name a file of the server's machine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tightbeam.deploy.documents.glossary import FORCED, FORCING_BEAMS, ForcedWords, Glossary, Term
from tightbeam.deploy.errors import GenerationError, InputError
from tightbeam.deploy.inputs.files.document import terms_of
from tightbeam.deploy.inputs.open_input import OpenInput
from tightbeam.deploy.inputs.output import Output
from tightbeam.deploy.model.model import Model
from tightbeam.deploy.scheduling.sample import Sample
from tightbeam.deploy.search import SearchResult
from tightbeam.deploy.serving.protocol.named_files import GLOSSARIES, files_beside

__all__ = ["GLOSSARY", "TermsInput", "check_for_terms", "forcing", "named_glossary", "served_glossaries"]

GLOSSARY = "glossary"


def served_glossaries(model: Model, others: Mapping[str, str]) -> dict[str, Glossary]:
    """Read the glossaries next to a served bundle, and those of ``others``, by name.

    Raises InputError if one cannot be read.
    """
    files = {**files_beside(model.bundle.path, GLOSSARIES), **others}
    if not files:
        return {}
    codec = model.text.require_tokenizer()
    return {name: Glossary(terms_of(file), codec.encode_output, codec.decode) for name, file in files.items()}


def named_glossary(name: object, glossaries: Mapping[str, Glossary]) -> Glossary | None:
    """Return the glossary that a request names; None without a name. Raises InputError for an unknown name."""
    if name is None:
        return None
    if not isinstance(name, str) or name not in glossaries:
        held = (
            f"it has {', '.join(glossaries)}"
            if glossaries
            else "it has none (triton-repo --glossary, serve-model --glossary)"
        )
        raise InputError(f"{GLOSSARY}={str(name)[:100]!r} is not a glossary of this model; {held}")
    return glossaries[name]


def forcing(settings: Mapping[str, Any], words: ForcedWords, num_beams: int) -> dict[str, Any]:
    """Return settings with forced words, and with beams if there is one alone."""
    return {**settings, FORCED: words, **({"num_beams": FORCING_BEAMS} if num_beams == 1 else {})}


def check_for_terms(model: Model, settings: Mapping[str, Any], max_rows: int) -> None:
    """Raise InputError or GenerationError for settings with which no term can be forced."""
    options = model.settings.options(settings)
    if options.num_return_sequences > 1:
        raise InputError(f"{GLOSSARY} is for one sequence of each text; leave it or num_return_sequences out")
    beams = model.settings.options(forcing(settings, (((0,),),), options.num_beams)).num_beams
    if beams > max_rows:
        raise InputError(f"{GLOSSARY} needs {beams} rows, and this server runs {max_rows} together; leave it out")


@dataclass(eq=False)
class TermsInput(OpenInput):
    """A text that is generated again with the terms that the first output lacks.

    Attributes
    ----------
    text : str
        The source.
    glossary : Glossary
    terms : list of Term
        Those that occur in the text.
    model : Model
    again : function
        Makes the sample of the same text with forced words. Raises GenerationError.
    """

    text: str = ""
    glossary: Glossary | None = None
    terms: Sequence[Term] = ()
    model: Model | None = None
    again: Callable[[ForcedWords], Sample] | None = None
    _notes: list[str] = field(default_factory=list)

    @property
    def is_one_sample(self) -> bool:
        return False

    def take(self, number: int, result: SearchResult) -> list[Sample]:
        super().take(number, result)
        if len(self.found) > 1:
            return []
        assert self.model is not None and self.glossary is not None and self.again is not None
        made = (self.outputs(self.model)[0].texts or [""])[0]
        words = self.glossary.forced(_lacking(self.terms, made), self.text)
        if not words:
            return []
        try:
            self.samples.append(self.again(words))
        except GenerationError as error:
            self._notes.append(f"terms of the glossary cannot be forced: {error}")
            return []
        return self.samples[-1:]

    def output(self, model: Model) -> Output:
        made = self.outputs(model)[-1]
        lacking = [f"it lacks {term.shown} of the glossary" for term in _lacking(self.terms, (made.texts or [""])[0])]
        return replace(made, cut=self.result.cut, cut_side=self.result.cut_side, reports=[*self._notes, *lacking])


def _lacking(terms: Sequence[Term], made: str) -> list[Term]:
    return [term for term in terms if not term.is_in(made)]
