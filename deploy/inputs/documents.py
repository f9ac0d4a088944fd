"""Documents as inputs: each sentence is a sample, and the sentences of a document run together."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from tightbeam.deploy.documents.alignment import token_alignment
from tightbeam.deploy.documents.format import MOST_BYTES, Format
from tightbeam.deploy.documents.glossary import FORCED, FORCING_BEAMS, Glossary, glossary_of_pairs, pairs_of
from tightbeam.deploy.documents.passages import Document
from tightbeam.deploy.documents.translation import Piece, Translation, Translator, next_step, translation
from tightbeam.deploy.errors import GenerationError, InputError, short_repr
from tightbeam.deploy.generation.fields import ATTENTION
from tightbeam.deploy.generation.layers import caller_layers, merged
from tightbeam.deploy.generation.translation import AUTO, LANGUAGES, SOURCE
from tightbeam.deploy.inputs.files.document import read_content, terms_of
from tightbeam.deploy.inputs.open_input import OpenInput
from tightbeam.deploy.inputs.output import Output
from tightbeam.deploy.inputs.result import InputResult
from tightbeam.deploy.inputs.run import finished, run_inputs
from tightbeam.deploy.model.model import Model
from tightbeam.deploy.text.languages import likely_name

__all__ = [
    "DocumentRunner",
    "TranslatedDocument",
    "document_of",
    "glossary_of",
    "translation_of",
]

READ = 1 << 14
"""Characters of a document by which its language is found."""


@dataclass(frozen=True)
class TranslatedDocument:
    """A document in another language.

    Attributes
    ----------
    data : bytes
        Its content, in the format of the original.
    reports : list of str
        What did not come back as it was or could not be translated, each in one line with its place.
    """

    data: bytes
    reports: list[str]


def translation_of(
    piece: Piece,
    found: InputResult | Output,
    encode: Callable[[str], Sequence[int]],
    decode: Callable[[Sequence[int]], str],
) -> Translation:
    """Return the translation of a piece, with its alignment if the model gave attention.

    Parameters
    ----------
    piece
    found
        The model's result for it.
    encode, decode
        The model's tokenizer.
    """
    text = (found.texts or [""])[0]
    if not found.attentions:
        return Translation(text)
    tokens = encode(piece.text), found.sequences[0]
    return Translation(text, token_alignment(decode, piece.text, *tokens, found.attentions[0]))


def document_of(given: object) -> tuple[str, bytes]:
    """Return the name of a document's file, which is empty for content, and the content. Raises InputError."""
    if isinstance(given, bytes):
        return "", given
    if not isinstance(given, (str, os.PathLike)) or not os.path.exists(given):
        expected = "pass a path as str or Path, and content as bytes"
        raise InputError(f"document={short_repr(given)} does not name a file; {expected}")
    name = os.fspath(given)
    return name, read_content(name, MOST_BYTES)


def glossary_of(model: Model, given: object) -> Glossary | None:
    """Return a glossary for a model's tokenizer, from its file or its pairs; None without pairs. Raises InputError."""
    codec = model.text.require_tokenizer()
    if isinstance(given, (str, os.PathLike)):
        return Glossary(terms_of(os.fspath(given)), codec.encode_output, codec.decode)
    pairs = pairs_of(given)
    return glossary_of_pairs(pairs, codec.encode_output, codec.decode) if pairs else None


@dataclass
class DocumentRunner:
    """Translates documents with a model.

    Attributes
    ----------
    model : Model
        A model with an encoder and a tokenizer.
    settings : mapping
        Settings of ``model.generate``.
    batch_size : int
        The most sentences that run together.
    max_rows : int or None
        The most rows (sentences x beams) that run together.
    glossary : Glossary or None
    on_piece : function
        Is called with the result of each piece of text, in order.
    """

    model: Model
    settings: Mapping[str, Any]
    batch_size: int = 8
    max_rows: int | None = None
    glossary: Glossary | None = None
    on_piece: Callable[[InputResult], object] = lambda result: None
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def __post_init__(self) -> None:
        self.model.text.require_tokenizer()
        beams = self.model.settings.options(self.settings).num_beams
        if self.glossary is not None:
            beams = max(beams, self.model.settings.options(self._forcing((((0,),),))).num_beams)
        self._max_rows = self.max_rows or self.batch_size * beams
        if beams > self._max_rows:
            raise InputError(f"{beams} beams are more than the {self._max_rows} rows that run together; pass more rows")

    def translate(self, data: bytes, kind: Format) -> TranslatedDocument:
        """Translate a document.

        Parameters
        ----------
        data
            The content of its file.
        kind
            Its format.

        Returns
        -------
        TranslatedDocument

        Raises
        ------
        InputError
            It cannot be read.
        BundleError
            The model failed in every sentence, or its weights are wrong.
        """
        document = kind.read(data)
        settings = self._for_language(document)
        how = Translator(self._language(settings), self.model.text.fits, self.glossary, self._gives_attention(settings))
        rounds = translation(document.passages, how)
        step = next_step(rounds)
        while isinstance(step, list):
            step = next_step(rounds, self._results(step, settings))
        return TranslatedDocument(document.write(step.texts), [*document.notes, *step.reports])

    def _gives_attention(self, settings: Mapping[str, Any]) -> bool:
        """True if the model's search gives attention with these settings; groups of beams and forced words do not."""
        try:
            return self.model.gives_attention and self.model.settings.options({**settings, ATTENTION: True}).aligned
        except GenerationError:
            return False

    def _results(self, pieces: Sequence[Piece], settings: Mapping[str, Any]) -> list[Translation | ValueError]:
        texts = self.model.text
        inputs = (self._input(piece, settings) for piece in pieces)
        found: list[Translation | ValueError] = []

        def encode(text: str) -> list[int]:
            return texts.encode(text, **settings)[0]

        for piece, done in zip(pieces, finished(run_inputs(self.model, inputs, max_rows=self._max_rows)), strict=True):
            self.on_piece(done.result)
            found.append(done.failure or translation_of(piece, done.result, encode, texts.decode))
        return found

    def _input(self, piece: Piece, settings: Mapping[str, Any]) -> OpenInput:
        result = InputResult(next(self._numbers))
        own = self._forcing(piece.forced, settings) if piece.forced else settings
        own = {**own, ATTENTION: True} if piece.aligned else own
        try:
            tokens, _ = self.model.text.encode(piece.text, **own)
            return OpenInput(result, [self.model.sample(result.number, tokens, own)])
        except (InputError, GenerationError) as error:
            return OpenInput(result, [], error)

    def _forcing(self, words: object, settings: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return settings with forced words, and with beams if nobody asked for a number of them."""
        given = self.settings if settings is None else settings
        own = {**given, FORCED: words}
        asked = [layer for layer in caller_layers(given) if layer.asked and layer.values.get("num_beams") is not None]
        if not asked and self.model.settings.options(given).num_beams == 1:
            own["num_beams"] = FORCING_BEAMS
        return own

    def _for_language(self, document: Document) -> Mapping[str, Any]:
        """Return the settings, with the language of the whole document if it is to be found."""
        names = self.model.manifest.generation.get(LANGUAGES)
        if not names or _asked_language(self.settings) != AUTO:
            return self.settings
        text, size = [], 0
        for passage in document.passages:
            text.append(passage.text)
            size += len(passage.text)
            if size > READ:
                break
        return {**self.settings, SOURCE: likely_name("\n".join(text), names)}

    def _language(self, settings: Mapping[str, Any]) -> str:
        """Return the code of the texts' language, as the rules of sentences know it."""
        name = str(_asked_language(settings) or self.model.manifest.model.rpartition("opus-mt-")[2].split("-")[0])
        try:
            import langcodes

            return langcodes.standardize_tag(name.strip("_").replace("_", "-"), macro=True).split("-")[0]
        except (ImportError, ValueError):
            return "en"


def _asked_language(settings: Mapping[str, Any]) -> object:
    return merged(caller_layers(settings)).get(SOURCE)
