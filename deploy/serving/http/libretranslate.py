"""The endpoints of LibreTranslate's API, for translators.

Source: LibreTranslate's API reference, version 1.7.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import Any, NoReturn

import langcodes
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from tightbeam.deploy.documents.glossary import FORCED, FORCING_BEAMS, Glossary, Term, glossary_of_pairs, read_glossary
from tightbeam.deploy.documents.known_formats import formats
from tightbeam.deploy.documents.passages import Document, NewText
from tightbeam.deploy.documents.translation import Piece, Translation, Translator, next_step, translation
from tightbeam.deploy.errors import JSON, Fix, InputError, first_line
from tightbeam.deploy.generation.fields import ATTENTION, FIELDS
from tightbeam.deploy.generation.layers import GENERATION_CONFIG
from tightbeam.deploy.generation.renamed_settings import advice_on
from tightbeam.deploy.generation.scoring import MOST_ALTERNATIVES
from tightbeam.deploy.generation.settings import OTHERS
from tightbeam.deploy.generation.translation import AUTO
from tightbeam.deploy.inputs.documents import translation_of
from tightbeam.deploy.inputs.json_line import json_value
from tightbeam.deploy.inputs.output import Output
from tightbeam.deploy.serving.dispatch.responder import deadline_of
from tightbeam.deploy.serving.http.errors import (
    TOO_MANY_SEQUENCES,
    HttpError,
    ModelUnknown,
    RequestFailed,
    refused,
    told_of,
)
from tightbeam.deploy.serving.http.generate import body_fields
from tightbeam.deploy.serving.http.guards import API_KEY
from tightbeam.deploy.serving.http.model import ServedModel, texts
from tightbeam.deploy.serving.http.streams import while_connected
from tightbeam.deploy.serving.protocol.parameters import DEADLINE, default_beams
from tightbeam.deploy.serving.protocol.tensors import TEXT
from tightbeam.deploy.text.languages import DetectedLanguage, DetectorMissing, likely_languages, short_codes
from tightbeam.deploy.text.tokenizer import SPECIAL_TOKENS, fits

__all__ = ["Languages", "translation_routes"]

MOST_CHARACTERS = 1 << 18
"""Characters of the texts of a request."""
MOST_TEXTS = 1 << 13
"""Texts of a request."""
MOST_TERMS, MOST_TERM_CHARACTERS = 1_000, 1 << 16
"""Terms of a request's glossary, and characters of all of them: each costs time in each sentence."""
FORCED_TOGETHER = 4
"""The most sentences with forced words of their own that a request runs at a time."""
SEPARATOR = re.compile(r"[,\t\r\n]")
"""A sign of a glossary's lines, which the name of a glossary has not."""
PAIRS = 'pass pairs, such as [["house", "Haus|Häuser"]]'
"""The fix of a glossary that is wrong."""
OWN = frozenset({"q", "source", "target", "format", "alternatives", "glossary", "model", API_KEY})
"""Fields of /translate that are not generation settings."""
ELSEWHERE = {
    "source_language": "pass source",
    "target_language": "pass target",
    "num_return_sequences": "pass alternatives",
    FORCED: "pass glossary",
    GENERATION_CONFIG: "pass its settings as fields",
    **dict.fromkeys(("return_token_scores", "return_alternatives", ATTENTION), "send the text to /generate"),
}
"""Settings that /translate does not take, and what to do in place of each."""
SETTINGS = {own.name for own in FIELDS if not own.of_checkpoint} | OTHERS | {"truncate", DEADLINE}
"""Settings of which the worker says whether the model has them."""
MOST_FOUND, LEAST = 5, 0.01
"""The most languages that /detect lists, and the least probability of all but the first."""


@dataclass(frozen=True)
class Languages:
    """The languages of a translator.

    Attributes
    ----------
    own : dict of str to str
        The model's own code of each language, by the code that clients use.
    pair : tuple or None
        Source and target of a model of one pair, which has no codes of its own.
    """

    own: Mapping[str, str]
    pair: tuple[str, str] | None = None

    @classmethod
    def of(cls, model: ServedModel) -> Languages | None:
        """Return the languages of a translator; None for any other model."""
        if model.pair is not None:
            return cls({}, model.pair)
        table = model.manifest.generation.get("lang_to_id")
        if not table or not model.reads_text:
            return None
        return cls(short_codes(table))

    def settings(self, source: str, target: str) -> dict[str, Any] | None:
        """Return the settings that translate from one language to another; None if the model does not."""
        if self.pair is not None:
            return {} if (source, target) == self.pair else None
        if source not in self.own or target not in self.own:
            return None
        return {"source_language": self.own[source], "target_language": self.own[target]}

    def targets(self) -> dict[str, list[str]]:
        """Return the targets of each source."""
        if self.pair is not None:
            return {self.pair[0]: [self.pair[1]]}
        return {code: [other for other in self.own if other != code] for code in self.own}


def translation_routes(
    models: Mapping[str, ServedModel], glossaries: Mapping[str, Sequence[Term]] | None = None
) -> APIRouter:
    """Return the endpoints for the translators among ``models``. Requests may name one of the ``glossaries``."""
    routes = APIRouter()
    named = glossaries or {}
    languages = {name: found for name, model in models.items() if (found := Languages.of(model)) is not None}

    @routes.post("/translate")
    async def translate(request: Request) -> Response:
        fields = await body_fields(request)
        _check_key(request, fields)
        own_settings = _settings(fields)
        given, several = _texts(fields.get("q"))
        if sum(map(len, given)) > MOST_CHARACTERS:
            raise refused("q", f"has more than {MOST_CHARACTERS:,} characters; send it in pieces")
        kind = fields.get("format", "text") or "text"
        if kind not in ("text", "html"):
            raise refused("format", f"is {str(kind)[:40]!r}, expected text or html")
        wanted = _count(fields.get("alternatives", 0))
        asked, target = (str(fields.get(name) or "") for name in ("source", "target"))
        own = _asked_for(languages, fields.get("model"))
        if not target:
            raise refused("target", "is missing; send the language to translate to, GET /languages has the pairs")
        source = asked
        about: dict[str, Any] = {}
        if asked in ("", AUTO) and (sources := _sources(own, target)):
            (found, *_) = await _detected(given, sources, html=kind == "html")
            source, about = found["language"], {"detectedLanguage": [found] * len(given) if several else found}
        name, of_languages = _chosen(own, source, target)
        settings = own_settings | of_languages
        if kind == "html" and wanted:
            raise refused("alternatives", "is for format=text; leave it out")
        terms = fields.get("glossary") or None
        if terms is not None and wanted:
            raise refused("glossary", "is not for alternatives; leave one of them out")
        if not wanted:
            glossary = None if terms is None else await asyncio.to_thread(_glossary, models[name], terms, named)
            made = await while_connected(request, _documents(models[name], given, kind, source, settings, glossary))
            translated, reports = [each.text for each in made], [each.reports for each in made]
            about["translatedText"] = translated if several else translated[0]
            if any(reports):
                about["reports"] = reports if several else reports[0]
            return JSONResponse(about)
        settings["num_return_sequences"] = wanted + 1
        if settings.get("num_beams") is None:
            settings["num_beams"] = max(wanted + 1, default_beams(models[name].manifest.generation))
        problem = f"is {wanted}, which needs num_beams of at least {wanted + 1}; pass that, or leave num_beams out"
        with told_of("alternatives", TOO_MANY_SEQUENCES.format(wanted + 1), problem):
            outputs = await while_connected(request, models[name].outputs({TEXT: texts(given)}, settings))
        rows = [output.texts or [] for output in outputs]
        best, others = [each[0] for each in rows], [each[1:] for each in rows]
        about["translatedText"] = best if several else best[0]
        about["alternatives"] = others if several else others[0]
        return JSONResponse(about)

    @routes.get("/languages")
    async def list_languages() -> Response:
        targets: dict[str, set[str]] = {}
        for own in languages.values():
            for source, others in own.targets().items():
                targets.setdefault(source, set()).update(others)
        return JSONResponse([{"code": code, "name": _name(code), "targets": sorted(targets[code])} for code in targets])

    @routes.post("/detect")
    async def detect(request: Request) -> Response:
        fields = await body_fields(request)
        _check_key(request, fields)
        for name in fields:
            if name not in ("q", API_KEY):
                raise refused(name[:100], f"is not a field of /detect, which has q and {API_KEY}; remove it")
        given, _ = _texts(fields.get("q"))
        return JSONResponse(await _detected(given, _sources(languages) or _no_translator(), html=False))

    @routes.get("/health")
    async def health() -> Response:
        return JSONResponse({"status": "ok"})

    return routes


def _check_key(request: Request, fields: Mapping[str, Any]) -> None:
    """Raise HttpError unless the request's header or its field ``api_key`` had a key, if the server has keys."""
    if getattr(request.state, "without_key", False) and not request.state.limits.allows(str(fields.get(API_KEY, ""))):
        raise HttpError(403, f"the key is missing or wrong; send it as the field {API_KEY}")


def _settings(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings among the fields of /translate. Raises HttpError for one that is neither."""
    settings = {name: value for name, value in fields.items() if name not in OWN}
    for name in settings:
        if name in ELSEWHERE:
            raise refused(name, f"is not for /translate; {ELSEWHERE[name]}")
        if name not in SETTINGS:
            advice = advice_on(name[:100], OWN | SETTINGS - ELSEWHERE.keys())
            fix = advice.written_for(JSON) if isinstance(advice, Fix) else advice
            raise refused(name[:100], f"is neither a field of /translate nor a setting of model.generate; {fix}")
    return settings


def _texts(given: Any) -> tuple[list[str], bool]:
    if isinstance(given, str):
        return [given], False
    if isinstance(given, list) and len(given) > MOST_TEXTS:
        raise refused("q", f"has {len(given):,} texts, expected {MOST_TEXTS:,} at most; send them in several requests")
    if isinstance(given, list) and given and all(isinstance(each, str) for each in given):
        return given, True
    raise refused("q", "is missing; send the text to translate, or a list of texts")


@dataclass(frozen=True)
class _Made:
    """A document in another language, and what did not come back as it was."""

    text: str
    reports: list[str]


def _glossary(model: ServedModel, given: Any, named: Mapping[str, Sequence[Term]]) -> Glossary:
    """Read a request's glossary: pairs of a term and its translation, also as JSON in a text, the lines of a
    glossary's file, or the name of one of the server's.

    Raises HttpError.
    """
    if isinstance(given, str) and given.lstrip().startswith("["):
        try:
            given = json_value(given)
        except (ValueError, RecursionError) as error:
            raise refused("glossary", f"begins with [ and is not JSON ({first_line(error)}); {PAIRS}") from None
    pairs = given if isinstance(given, list) and all(map(_is_pair, given)) else None
    if pairs is None and not isinstance(given, str):
        raise refused("glossary", f"is not a list of pairs of texts; {PAIRS}")
    codec = model.codec
    if codec is None:
        raise refused("glossary", "needs a model with a tokenizer; leave it out")
    if isinstance(given, str) and not SEPARATOR.search(given):
        if given not in named:
            held = f"pass one of {', '.join(named)}" if named else "the server has none (serve-model --glossary)"
            raise refused("glossary", f"is {given[:100]!r}, which is no glossary of this server; {held}")
        return Glossary(named[given], codec.encode_output, codec.decode)
    terms = given.count("\n") + 1 if pairs is None else len(pairs)
    size = len(given) if pairs is None else sum(map(len, chain.from_iterable(pairs)))
    if terms > MOST_TERMS or size > MOST_TERM_CHARACTERS:
        most = f"more than {MOST_TERMS:,} terms or {MOST_TERM_CHARACTERS:,} characters"
        raise refused("glossary", f"has {most}; send the terms of the texts")
    try:
        if pairs is None:
            return read_glossary(given.encode(), "the glossary", codec.encode_output, codec.decode)
        return glossary_of_pairs(pairs, codec.encode_output, codec.decode)
    except (InputError, UnicodeError) as error:
        raise HttpError(400, str(error), param="glossary") from None


def _is_pair(given: Any) -> bool:
    return isinstance(given, list) and len(given) == 2 and all(isinstance(each, str) for each in given)


async def _documents(
    model: ServedModel,
    given: Sequence[str],
    kind: str,
    language: str,
    settings: Mapping[str, Any],
    glossary: Glossary | None = None,
) -> list[_Made]:
    """Translate documents, the sentences of all of them together. Raises HttpError."""
    aligns = model.gives_attention and "num_beam_groups" not in settings
    how = Translator(language.split("-")[0], partial(_fits, model), glossary, aligns)
    deadline_s = min(model.deadline_s, deadline_of(json.dumps(settings)))
    try:
        async with asyncio.timeout(deadline_s):
            return await _in_rounds(model, given, kind, how, settings)
    except TimeoutError:
        problem = f"the texts were not translated within {deadline_s:g} s; send them in pieces"
        raise RequestFailed(problem, client_error=False) from None
    except InputError as error:
        raise HttpError(400, str(error), param="q") from None


async def _in_rounds(
    model: ServedModel, given: Sequence[str], kind: str, how: Translator, settings: Mapping[str, Any]
) -> list[_Made]:
    """Translate documents; raises as `_documents`, and InputError."""
    documents = await asyncio.to_thread(lambda: [_read(each, kind) for each in given])
    rounds = translation([passage for document in documents for passage in document.passages], how)
    step = await asyncio.to_thread(next_step, rounds)
    while isinstance(step, list):
        found = await _translated(model, step, settings)
        step = await asyncio.to_thread(next_step, rounds, found)
    return await asyncio.to_thread(_written, documents, list(zip(step.texts, step.reports_of, strict=True)))


def _written(documents: Sequence[Document], passages: Sequence[tuple[NewText, list[str]]]) -> list[_Made]:
    """Write documents with the texts and reports of the passages of all of them."""
    made, left = [], iter(passages)
    for document in documents:
        own = list(islice(left, len(document.passages)))
        text = document.write([text for text, _ in own]).decode()
        made.append(_Made(text, list(chain.from_iterable(reports for _, reports in own))))
    return made


def _fits(model: ServedModel, text: str) -> bool:
    """True if a text has no more tokens than the model has positions."""
    return model.codec is None or fits(model.codec, text, model.manifest.sizes.max_source)


def _read(text: str, kind: str) -> Document:
    """Read a text as a document. Raises InputError."""
    try:
        return formats()[kind].read(text.encode())
    except UnicodeEncodeError:
        raise InputError("a text holds half a character (a lone surrogate), which is not UTF-8; remove it") from None


async def _translated(
    model: ServedModel, pieces: Sequence[Piece], settings: Mapping[str, Any]
) -> list[Translation | ValueError]:
    """Translate sentences, as many in a request as it may have, and those with forced words each in a request.

    Raises HttpError.
    """
    found: list[Translation | ValueError] = [Translation("")] * len(pieces)
    for aligned in (False, True):
        free = [place for place, piece in enumerate(pieces) if not piece.forced and piece.aligned is aligned]
        while free:
            count = _rows_together(model, [pieces[place] for place in free[: model.max_batch_size]])
            places, free = free[:count], free[count:]
            own = [pieces[place] for place in places]
            given = {TEXT: texts([piece.text for piece in own])}
            outputs = await model.outputs(given, {**settings, ATTENTION: True} if aligned else settings)
            for place, translated in zip(places, await _aligned(model, own, outputs), strict=True):
                found[place] = translated
    forced = [place for place, piece in enumerate(pieces) if piece.forced]
    for begin in range(0, len(forced), FORCED_TOGETHER):
        places = forced[begin : begin + FORCED_TOGETHER]
        made = await asyncio.gather(*(_with_words(model, pieces[place], settings) for place in places))
        for place, each in zip(places, made, strict=True):
            found[place] = each
    return found


def _rows_together(model: ServedModel, pieces: Sequence[Piece]) -> int:
    """Return how many of the first pieces a request may have, of which the attention is bounded."""
    sizes, longest = model.manifest.sizes, 0
    for count, piece in enumerate(pieces):
        if piece.aligned:
            longest = max(longest, min(sizes.max_source, len(piece.text.encode()) + SPECIAL_TOKENS))
        if count and (count + 1) * longest * sizes.max_target > MOST_ALTERNATIVES:
            return count
    return len(pieces)


async def _aligned(model: ServedModel, pieces: Sequence[Piece], outputs: Sequence[Output]) -> list[Translation]:
    """Return the translations of pieces, with the alignments of those that have any."""
    codec, each = model.codec, list(zip(pieces, outputs, strict=True))
    assert codec is not None  # the worker of a model without a tokenizer refuses texts
    encode, decode = codec.encode, codec.decode
    return await asyncio.to_thread(lambda: [translation_of(*pair, encode, decode) for pair in each])


async def _with_words(model: ServedModel, piece: Piece, settings: Mapping[str, Any]) -> Translation | ValueError:
    """Translate a sentence with its forced words; return the error if they cannot be forced. Raises HttpError."""
    own: dict[str, Any] = {**settings, FORCED: piece.forced}
    if str(settings.get("num_beams") or default_beams(model.manifest.generation)) == "1":
        own["num_beams"] = FORCING_BEAMS
    try:
        (output,) = await model.outputs({TEXT: texts([piece.text])}, own)
    except HttpError as error:
        if error.status != 400:
            raise
        return InputError(str(error))
    return Translation((output.texts or [""])[0])


def _count(given: Any) -> int:
    text = str(given)
    if not (text.isascii() and text.isdigit() and int(text[:9]) <= 64):
        raise refused("alternatives", f"is {text[:40]!r}, expected a number from 0 to 64")
    return int(text)


def _sources(languages: Mapping[str, Languages], target: str | None = None) -> list[str]:
    """Return the languages that models translate from, to one target or to any."""
    found = [
        source
        for own in languages.values()
        for source, targets in own.targets().items()
        if target is None or target in targets
    ]
    return list(dict.fromkeys(found))


async def _detected(given: Sequence[str], sources: Sequence[str], *, html: bool) -> list[dict[str, Any]]:
    """Return the likeliest languages of texts among ``sources``, with confidences in percent. Raises HttpError."""

    def find() -> list[DetectedLanguage]:
        shown = [text[:MOST_CHARACTERS] for text in given]
        if html:
            shown = [" ".join(passage.text for passage in _read(text, "html").passages) for text in shown]
        return likely_languages(shown, sources)

    try:
        found = await asyncio.to_thread(find)
    except DetectorMissing as error:
        raise HttpError(501, str(error)) from None
    except InputError as error:
        raise HttpError(400, str(error), param="q") from None
    kept = [each for place, each in enumerate(found[:MOST_FOUND]) if not place or each.probability >= LEAST]
    return [{"confidence": round(100 * each.probability, 1), "language": each.code} for each in kept]


def _no_translator() -> NoReturn:
    raise HttpError(404, "no model here translates; start the server with a translator, or see --pair")


def _asked_for(languages: Mapping[str, Languages], name: Any) -> Mapping[str, Languages]:
    """Return the translator that a request names, or all if it names none. Raises HttpError."""
    if not languages:
        _no_translator()
    if name in (None, ""):
        return languages
    if not isinstance(name, str) or name not in languages:
        raise ModelUnknown(f"no translator is named {str(name)[:100]!r}; pass one of {', '.join(languages)}")
    return {name: languages[name]}


def _chosen(languages: Mapping[str, Languages], source: str, target: str) -> tuple[str, dict[str, Any]]:
    """Return the name of the model that translates, and its settings of languages."""
    for name, own in languages.items():
        if (settings := own.settings(source, target)) is not None:
            return name, settings
    problem = f"no model translates from {source[:40] or AUTO} to {target[:40]}; GET /languages has the pairs"
    raise HttpError(400, problem)


def _name(code: str) -> str:
    return str(langcodes.Language.get(code).display_name())
