"""Setting of speech models whose output begins with tokens of the language: the language, by code or name.

The checkpoint's settings have the tokens by the language's code as ``language_prompts``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tightbeam.deploy.errors import GenerationError, short_repr
from tightbeam.deploy.generation.languages import NAMES
from tightbeam.deploy.generation.layers import Layer
from tightbeam.deploy.generation.translation import BEGINNING, token_of

__all__ = ["LANGUAGE", "PROMPTS", "spoken_layers"]

LANGUAGE, PROMPTS = "language", "language_prompts"


def spoken_layers(given: Sequence[Layer]) -> list[Layer]:
    """Put the tokens of a language in the place of its name, as the beginning of the output.

    Parameters
    ----------
    given : sequence of Layer
        The checkpoint's settings, with `PROMPTS`, and the caller's.

    Returns
    -------
    list of Layer

    Raises
    ------
    GenerationError
        A language is unknown, or a layer has another beginning of the output too.
    """
    prompts: Mapping[str, Sequence[int]] = given[0].values[PROMPTS]
    codes = sorted(prompts)
    by_name = {name: place for place, code in enumerate(codes) for name in (code, *NAMES.get(code, ()))}
    found = []
    for layer in given:
        values = {name: value for name, value in layer.values.items() if name not in (PROMPTS, LANGUAGE)}
        if (language := layer.values.get(LANGUAGE)) is not None:
            if values.get(BEGINNING) is not None:
                problem = f"and {BEGINNING}={short_repr(values[BEGINNING])} both begin the output"
                raise GenerationError(problem, field=LANGUAGE, value=language, source=layer.source, fix="leave one out")
            values[BEGINNING] = list(prompts[codes[token_of(LANGUAGE, layer, by_name)]])
        found.append(replace(layer, values=values))
    return found
