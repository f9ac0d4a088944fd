"""Fixes in messages of errors, with settings as they are written where the user gave them.

A message ends with its fix, behind the last semicolon, where settings stand as Python writes them: ``num_beams=4``.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Collection

__all__ = ["with_fields", "with_options"]

SETTING = re.compile(r"([a-z_]+)=([A-Za-z0-9.]*[A-Za-z0-9])")
SEQUENCE = re.compile(r"([a-z_]+)=\(([^()]*)\)")
CONSTANT = re.compile(r"\b(?:True|False|None)\b|'[\w-]+'")
OPTION_AND_SETTING = re.compile(r"--[a-z-]+ \(([a-z_]+=\w+)\)")
"""An option of the command line, and behind it the setting that it is."""
OTHER_CALLERS = re.compile(r" \((?:Runner\.|--)[^()]*\)")
"""Advice for callers in Python and on the command line."""


def with_options(message: str, settings: Collection[str]) -> str:
    """The message with options of the command line in its fix in place of ``settings``."""

    def option(found: re.Match[str]) -> str:
        name, value = found.groups()
        if name not in settings:
            return found[0]
        hyphens = name.replace("_", "-")
        return {"True": f"--{hyphens}", "False": f"--no-{hyphens}"}.get(value, f"--{hyphens} {value}")

    def several(found: re.Match[str]) -> str:
        name, values = found.groups()
        return f"--{name.replace('_', '-')} {values.replace(' ', '')}" if name in settings else found[0]

    return _with_fix(message, lambda fix: SETTING.sub(option, SEQUENCE.sub(several, fix)))


def with_fields(message: str) -> str:
    """The message with fields of a JSON object in its fix: ``"do_sample": true``; without advice for other callers."""

    def constant(found: re.Match[str]) -> str:
        return json.dumps(ast.literal_eval(found[0]))

    def fields(fix: str) -> str:
        fix = OTHER_CALLERS.sub("", OPTION_AND_SETTING.sub(r"\1", fix))
        return CONSTANT.sub(constant, SETTING.sub(r'"\1": \2', SEQUENCE.sub(r'"\1": [\2]', fix)))

    return _with_fix(message, fields)


def _with_fix(message: str, change: Callable[[str], str]) -> str:
    problem, separator, fix = message.rpartition("; ")
    return problem + separator + change(fix) if separator else message
