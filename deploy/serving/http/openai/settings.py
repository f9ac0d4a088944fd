"""Fields of OpenAI's requests as settings of ``model.generate``. Fields that OpenAI does not have are settings as they
are, so that a client may ask for beams, tries, or n-gram blocking."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import Request

from tightbeam.deploy.errors import place_of
from tightbeam.deploy.inputs.output import Output
from tightbeam.deploy.serving.http.errors import TOO_MANY_SEQUENCES, HttpError, refused, told_of
from tightbeam.deploy.serving.http.generate import json_fields
from tightbeam.deploy.serving.http.model import ServedModel
from tightbeam.deploy.text.tokenizer import TextCodec

__all__ = ["TextRequest", "finish_reason", "now", "token_logprobs", "usage_of"]

IGNORED = frozenset(
    {
        "metadata",
        "parallel_tool_calls",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
    }
)
"""Fields that change nothing in an answer."""
REFUSED = {
    "audio": "is not supported; the answer is a text",
    "best_of": "is not supported; pass n, or num_beams",
    "frequency_penalty": "is not supported; pass repetition_penalty",
    "function_call": "is not supported; leave it out",
    "functions": "is not supported; leave it out",
    "logit_bias": "is not supported; pass bad_words_ids to forbid tokens",
    "modalities": "is not supported; the answer is a text",
    "prediction": "is not supported; leave it out",
    "presence_penalty": "is not supported; pass repetition_penalty",
    "reasoning_effort": "is not supported; leave it out",
    "suffix": "is not supported; leave it out",
    "tool_choice": "is not supported; leave it out",
    "tools": "is not supported; leave it out",
    "verbosity": "is not supported; leave it out",
    "web_search_options": "is not supported; leave it out",
}
"""Fields that would change an answer, and what is said of them. One without a value (null, 0, an empty list) passes."""
PASSING: Mapping[str, Any] = {"best_of": 1, "modalities": ["text"], "tool_choice": "none"}
"""Values of these fields that ask for nothing."""
MOST_LOGPROBS = 1 << 18
"""Log-probabilities of an answer: a token's takes 0.5 kB until it is sent."""


class StreamOptions(BaseModel):
    """Options of a stream."""

    include_usage: bool = False


class TextRequest(BaseModel):
    """Fields that completions and chat completions share."""

    model_config = ConfigDict(extra="allow")

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    stop: str | Annotated[list[str], Field(max_length=64, fail_fast=True)] | None = None
    seed: int | None = None
    response_format: dict[str, Any] | None = None

    @classmethod
    async def of(cls, request: Request) -> Self:
        """Read a request's body. Raises HttpError."""
        try:
            return cls.model_validate(json_fields(await request.body()))
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            kinds = ("list[", "str", "int")  # of a union, which stand in the place of an error
            if not first["loc"]:
                raise HttpError(400, "the name of a field is not UTF-8; send OpenAI's fields, and settings") from None
            name, *inner = first["loc"]
            field = place_of([name, *(each for each in inner if not str(each).startswith(kinds))])
            raise HttpError(400, f"{field}: {first['msg']}"[:1000], param=field) from None

    @property
    def stops(self) -> list[str]:
        """The stop strings."""
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or ())

    def told_of_n(self) -> AbstractContextManager[None]:
        """Return a context in which the worker's error about ``n`` names that field."""
        problem = f"is {self.n}, which needs temperature above 0, top_p, or num_beams of at least {self.n}; pass one"
        return told_of("n", TOO_MANY_SEQUENCES.format(self.n), problem)

    def check_logprobs(self, model: ServedModel, alternatives: int, *, rows: int, new: Any) -> None:
        """Raise HttpError if log-probabilities of ``rows`` inputs with ``new`` tokens would be too many."""
        positions = model.manifest.sizes.max_target
        length = min(new, positions) if isinstance(new, int) and new > 0 else positions
        sequences = (self.model_extra or {}).get("num_return_sequences", self.n or 1)
        if isinstance(sequences, int) and rows * sequences * length * (1 + alternatives) > MOST_LOGPROBS:
            raise refused(
                "logprobs",
                f"would be more than {MOST_LOGPROBS:,}, by the sequences, their tokens and the alternatives of each; "
                "lower max_tokens, n or top_logprobs",
            )

    def settings(self, alternatives: int | None) -> dict[str, Any]:
        """Return the settings of ``model.generate``.

        Parameters
        ----------
        alternatives
            The number of alternatives to return with the score of each token; None for no scores.

        Raises
        ------
        HttpError
            A field is not supported.
        """
        given = {name: value for name, value in (self.model_extra or {}).items() if name not in IGNORED}
        for name, problem in REFUSED.items():
            value = given.pop(name, None)
            if value and value != PASSING.get(name):
                raise refused(name, problem)
        if self.response_format is not None and self.response_format.get("type") != "text":
            raise refused("response_format", 'is not supported; leave it out, or pass {"type": "text"}')
        if alternatives is not None and self.stream:
            raise refused("logprobs", "does not go with stream; leave one of them out")
        made: dict[str, Any] = {}
        if self.temperature == 0:
            made["do_sample"] = False
        elif self.temperature is not None:
            made |= {"do_sample": True, "temperature": self.temperature}
        if self.top_p is not None and self.temperature != 0:
            made |= {"do_sample": True, "top_p": self.top_p}
        for name, value in (("max_new_tokens", self.max_tokens), ("num_return_sequences", self.n), ("seed", self.seed)):
            if value is not None:
                made[name] = value
        if self.stops:
            made["stop_strings"] = self.stops
        if alternatives is not None:
            made |= {"return_token_scores": True, "return_alternatives": alternatives}
        return made | given


def finish_reason(reason: str) -> Literal["stop", "length"]:
    """Return OpenAI's name of the reason why a sequence ended."""
    return "length" if reason == "length" else "stop"


def usage_of(outputs: list[Output]) -> dict[str, int]:
    """Return the tokens of a request."""
    prompt, new = sum(each.source_tokens for each in outputs), sum(each.new_tokens for each in outputs)
    return {"prompt_tokens": prompt, "completion_tokens": new, "total_tokens": prompt + new}


def token_logprobs(codec: TextCodec | None, output: Output, place: int) -> list[dict[str, Any]]:
    """Return each new token of a sequence with its log-probability and the best alternatives, as chat has them."""
    if codec is None or output.token_scores is None:
        raise HttpError(400, "logprobs needs a bundle with a tokenizer; leave it out", param="logprobs")
    found = []
    scores = output.token_scores[place]
    for t, (token, score) in enumerate(zip(output.sequences[place], scores, strict=False)):
        if score is None:
            continue
        best = (output.alternatives[place][t] or []) if output.alternatives is not None else []
        top = [_named(codec, other, value) for other, value in best]
        found.append({**_named(codec, token, score), "top_logprobs": top})
    return found


def _named(codec: TextCodec, token: int, score: float) -> dict[str, Any]:
    text = codec.decode([token])
    return {"token": text, "logprob": score, "bytes": list(text.encode())}


def now() -> int:
    """Return the seconds since 1970."""
    return int(time.time())
