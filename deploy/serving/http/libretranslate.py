"""The endpoints of LibreTranslate's API, for translators.

Source: LibreTranslate's API reference, version 1.7.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NoReturn

import langcodes
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from tightbeam.deploy.errors import InputError
from tightbeam.deploy.generation.translation import AUTO
from tightbeam.deploy.serving.http.errors import HttpError, refused
from tightbeam.deploy.serving.http.generate import body_fields
from tightbeam.deploy.serving.http.guards import API_KEY
from tightbeam.deploy.serving.http.markup import Markup
from tightbeam.deploy.serving.http.model import ServedModel, texts
from tightbeam.deploy.serving.http.streams import while_connected
from tightbeam.deploy.serving.protocol.parameters import default_beams
from tightbeam.deploy.serving.protocol.tensors import TEXT
from tightbeam.deploy.text.languages import DetectedLanguage, DetectorMissing, likely_languages, short_codes

__all__ = ["Languages", "translation_routes"]

MOST_MARKUP = 1 << 18
"""Characters of a request in HTML."""
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


def translation_routes(models: Mapping[str, ServedModel]) -> APIRouter:
    """Return the endpoints for the translators among ``models``."""
    routes = APIRouter()
    languages = {name: found for name, model in models.items() if (found := Languages.of(model)) is not None}

    @routes.post("/translate")
    async def translate(request: Request) -> Response:
        fields = await body_fields(request)
        _check_key(request, fields)
        given, several = _texts(fields.get("q"))
        kind = fields.get("format", "text") or "text"
        if kind not in ("text", "html"):
            raise refused("format", f"is {str(kind)[:40]!r}, expected text or html")
        wanted = _count(fields.get("alternatives", 0))
        asked, target = (str(fields.get(name) or "") for name in ("source", "target"))
        own = {name: each for name, each in languages.items() if fields.get("model") in (None, "", name)}
        source, about = asked, {}
        if asked in ("", AUTO) and (sources := _sources(own, target)):
            (found, *_) = await _detected(given, sources, html=kind == "html")
            source, about = found["language"], {"detectedLanguage": [found] * len(given) if several else found}
        name, settings = _chosen(own, source, target)
        if kind == "html":
            if wanted:
                raise refused("alternatives", "is for format=text; leave it out")
            pages = await while_connected(request, _pages(models[name], given, settings))
            return JSONResponse({**about, "translatedText": pages if several else pages[0]})
        if wanted:
            settings["num_return_sequences"] = wanted + 1
            settings["num_beams"] = max(wanted + 1, default_beams(models[name].manifest.generation))
        outputs = await while_connected(request, models[name].outputs({TEXT: texts(given)}, settings))
        rows = [output.texts or [] for output in outputs]
        best = [each[0] for each in rows]
        made: dict[str, Any] = {**about, "translatedText": best if several else best[0]}
        if wanted:
            others = [each[1:] for each in rows]
            made["alternatives"] = others if several else others[0]
        return JSONResponse(made)

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


def _texts(given: Any) -> tuple[list[str], bool]:
    if isinstance(given, str):
        return [given], False
    if isinstance(given, list) and given and all(isinstance(each, str) for each in given):
        return given, True
    raise refused("q", "is missing; send the text to translate, or a list of texts")


async def _pages(model: ServedModel, given: Sequence[str], settings: Mapping[str, Any]) -> list[str]:
    """Translate the texts of pages of HTML, each alone. Raises HttpError."""
    if sum(map(len, given)) > MOST_MARKUP:
        raise refused("q", f"has more than {MOST_MARKUP:,} characters of HTML; send it in pieces")
    pages = await asyncio.to_thread(lambda: [Markup(each) for each in given])
    own = [text for page in pages for text in page.texts]
    found: list[str] = []
    for begin in range(0, len(own), model.max_batch_size):
        part = texts(own[begin : begin + model.max_batch_size])
        found += [(output.texts or [""])[0] for output in await model.outputs({TEXT: part}, settings)]
    ends = list(accumulate(len(page.texts) for page in pages))
    return [page.with_texts(found[end - len(page.texts) : end]) for page, end in zip(pages, ends, strict=True)]


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
        shown = [text[:MOST_MARKUP] for text in given]
        return likely_languages([" ".join(Markup(text).texts) for text in shown] if html else shown, sources)

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


def _chosen(languages: Mapping[str, Languages], source: str, target: str) -> tuple[str, dict[str, Any]]:
    """Return the name of the model that translates, and its settings of languages."""
    for name, own in languages.items():
        if (settings := own.settings(source, target)) is not None:
            return name, settings
    if not languages:
        _no_translator()
    raise HttpError(
        400,
        f"no model translates from {source[:40] or AUTO} to {target[:40] or 'nothing'}; GET /languages has the pairs",
    )


def _name(code: str) -> str:
    return str(langcodes.Language.get(code).display_name())
