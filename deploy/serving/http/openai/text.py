"""Completions and chat completions, of decoder-only models.

Source: OpenAI's API reference, ``/v1/completions`` and ``/v1/chat/completions``.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any, TypeVar

import numpy as np
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field

from tightbeam.deploy.arrays import Array
from tightbeam.deploy.inputs.output import Output
from tightbeam.deploy.serving.http.errors import HttpError, openai_error, refused
from tightbeam.deploy.serving.http.model import ServedModel, padded, texts
from tightbeam.deploy.serving.http.openai.settings import TextRequest, finish_reason, now, token_logprobs, usage_of
from tightbeam.deploy.serving.http.openai.stops import StoppedText, texts_of
from tightbeam.deploy.serving.http.streams import event_stream, while_connected
from tightbeam.deploy.serving.protocol.messages import Row, Token
from tightbeam.deploy.serving.protocol.tensors import INPUT_IDS, MESSAGES, TEXT

__all__ = ["text_routes"]

COMPLETION_TOKENS = 16
"""New tokens of a completion without ``max_tokens``, as at OpenAI."""


T = TypeVar("T")
Several = Annotated[list[T], Field(fail_fast=True)]
"""A list, of which the first wrong element is an error; a list of a million wrong ones takes no longer."""


class CompletionRequest(TextRequest):
    """A request for completions."""

    prompt: str | Several[str] | Several[int] | Several[Several[int]]
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    echo: bool | None = None

    def inputs(self, model: ServedModel) -> dict[str, Array]:
        """Return the prompts, a row each. Raises HttpError."""
        given = self.prompt
        if isinstance(given, str):
            return {TEXT: texts([given])}
        if not given or not all(isinstance(each, int) or len(each) for each in given if not isinstance(each, str)):
            raise refused("prompt", "is empty; pass a text, token ids, or a list of either")
        if isinstance(given[0], str):
            return {TEXT: texts([str(each) for each in given])}
        rows = [[int(each) for each in given]] if isinstance(given[0], int) else [list(each) for each in given]
        if any(not 0 <= token < 2**31 for row in rows for token in row):
            raise refused("prompt", "holds a token that is not an id of the vocabulary; pass ids of this model")
        model.check_rows(len(rows))
        return padded(INPUT_IDS, rows, np.int64)


class ChatRequest(TextRequest):
    """A request for the answer of a conversation."""

    messages: Annotated[list[dict[str, Any]], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None


def text_routes(find: Callable[[str], ServedModel]) -> APIRouter:
    """Return the endpoints. ``find`` returns the model of a name, or raises HttpError."""
    routes = APIRouter()

    @routes.post("/v1/completions")
    async def complete(request: Request) -> Response:
        asked = await CompletionRequest.of(request)
        model = _decoder_only(find(asked.model))
        settings = {"max_new_tokens": COMPLETION_TOKENS, **asked.settings(asked.logprobs)}
        prompts = [asked.prompt] if isinstance(asked.prompt, str) else asked.prompt
        if asked.echo and not isinstance(prompts[0] if prompts else None, str):
            raise refused("echo", "is for prompts that are texts; leave it out")
        shown = [str(each) for each in prompts] if asked.echo else [""] * len(prompts)
        head = {
            "id": f"cmpl-{secrets.token_hex(12)}",
            "object": "text_completion",
            "created": now(),
            "model": model.name,
        }
        if asked.stream:

            def chunk(index: int, text: str, reason: str | None) -> dict[str, Any]:
                return {"text": text, "index": index, "logprobs": None, "finish_reason": reason}

            begin = [text for text in shown for _ in range(asked.n or 1)] if asked.echo else []
            events = _stream(model, asked, asked.inputs(model), settings, head, chunk, begin)
            with asked.told_of_n():
                return await event_stream(request, events, openai_error, end="[DONE]")
        inputs = asked.inputs(model)
        if asked.logprobs is not None:
            asked.check_logprobs(
                model, asked.logprobs, rows=len(next(iter(inputs.values()))), new=settings["max_new_tokens"]
            )
        with asked.told_of_n():
            outputs = await while_connected(request, model.outputs(inputs, settings))
        choices: list[dict[str, Any]] = []
        for row, output in enumerate(outputs):
            for place, (text, reason) in enumerate(_results(output, asked.stops)):
                logprobs = None
                if asked.logprobs is not None:
                    logprobs = await asyncio.to_thread(_legacy_logprobs, model, output, place)
                choice = {"text": shown[row] + text, "index": len(choices), "logprobs": logprobs}
                choices.append({**choice, "finish_reason": reason})
        return JSONResponse({**head, "choices": choices, "usage": usage_of(outputs)})

    @routes.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        asked = await ChatRequest.of(request)
        model = _decoder_only(find(asked.model))
        if asked.top_logprobs is not None and not asked.logprobs:
            raise refused("top_logprobs", "is for logprobs=true; pass that too")
        settings = asked.settings((asked.top_logprobs or 0) if asked.logprobs else None)
        if asked.max_completion_tokens is not None:
            settings["max_new_tokens"] = asked.max_completion_tokens
        if asked.logprobs:
            asked.check_logprobs(model, asked.top_logprobs or 0, rows=1, new=settings.get("max_new_tokens"))
        inputs = {MESSAGES: texts([json.dumps(asked.messages)])}
        created = {"id": f"chatcmpl-{secrets.token_hex(12)}", "created": now(), "model": model.name}
        if asked.stream:
            head = {**created, "object": "chat.completion.chunk"}

            def chunk(index: int, text: str, reason: str | None) -> dict[str, Any]:
                delta = {"content": text} if text or reason is None else {}
                return {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}

            events = _stream(model, asked, inputs, settings, head, chunk, [])
            with asked.told_of_n():
                return await event_stream(request, _with_role(events, asked.n or 1), openai_error, end="[DONE]")
        with asked.told_of_n():
            outputs = await while_connected(request, model.outputs(inputs, settings))
        choices = []
        for place, (text, reason) in enumerate(_results(outputs[0], asked.stops)):
            logprobs = None
            if asked.logprobs:
                content = await asyncio.to_thread(token_logprobs, model.codec, outputs[0], place)
                logprobs = {"content": content, "refusal": None}
            message = {"role": "assistant", "content": text, "refusal": None}
            choice = {"index": place, "message": message, "logprobs": logprobs}
            choices.append({**choice, "finish_reason": reason})
        return JSONResponse({**created, "object": "chat.completion", "choices": choices, "usage": usage_of(outputs)})

    return routes


def _decoder_only(model: ServedModel) -> ServedModel:
    if not model.manifest.sizes.decoder_only:
        raise HttpError(
            400,
            f"model {model.name} is not decoder-only, so it completes nothing; send its source to /generate",
            param="model",
        )
    return model


def _results(output: Output, stops: list[str]) -> list[tuple[str, str]]:
    """Return the text of each sequence, without its stop string, and the reason why it ended."""
    reasons = [finish_reason(each) for each in output.finish_reasons or []]
    return list(zip(texts_of(output, stops), reasons, strict=True))


async def _stream(
    model: ServedModel,
    asked: TextRequest,
    inputs: dict[str, Array],
    settings: dict[str, Any],
    head: dict[str, Any],
    chunk: Callable[[int, str, str | None], dict[str, Any]],
    begin: list[str],
) -> AsyncIterator[dict[str, Any]]:
    """Yield the chunks of a stream: texts as they become certain, then the reason why each sequence ended."""
    each = asked.n or 1
    own: dict[int, StoppedText] = {}
    outputs = []
    async for event in model.events(inputs, settings, stream=True):
        for index, text in enumerate(begin):  # not before the request is known to run
            yield {**head, "choices": [chunk(index, text, None)]}
        begin = []
        if isinstance(event, Token):
            text = own.setdefault(event.row, StoppedText(asked.stops)).add(event.text)
            if text:
                yield {**head, "choices": [chunk(event.row * each, text, None)]}
        elif isinstance(event, Row):
            outputs.append(event.output)
            for place, (text, reason) in enumerate(_results(event.output, asked.stops)):
                if place == 0 and event.row in own:
                    text = own[event.row].rest(text)
                if text:
                    yield {**head, "choices": [chunk(event.row * each + place, text, None)]}
                yield {**head, "choices": [chunk(event.row * each + place, "", reason)]}
    if asked.stream_options is not None and asked.stream_options.include_usage:
        yield {**head, "choices": [], "usage": usage_of(outputs)}


async def _with_role(events: AsyncIterator[dict[str, Any]], count: int) -> AsyncIterator[dict[str, Any]]:
    """Yield the chunks of an answer behind those that name its role."""
    first = True
    async for event in events:
        if first:
            for index in range(count):
                delta = {"role": "assistant", "content": ""}
                choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
                yield {**event, "choices": [choice]} if "usage" not in event else event
            first = False
        yield event


def _legacy_logprobs(model: ServedModel, output: Output, place: int) -> dict[str, Any]:
    """Return the log-probabilities of a sequence's tokens as completions have them."""
    found = token_logprobs(model.codec, output, place)
    offsets, end = [], 0
    for each in found:
        offsets.append(end)
        end += len(each["token"])
    return {
        "tokens": [each["token"] for each in found],
        "token_logprobs": [each["logprob"] for each in found],
        "top_logprobs": [{top["token"]: top["logprob"] for top in each["top_logprobs"]} for each in found],
        "text_offset": offsets,
    }
