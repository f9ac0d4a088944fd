"""The messages of a conversation: their check, and the turns that can be left out of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from tightbeam.deploy.errors import InputError, short_repr

__all__ = [
    "ANSWER_TOKENS",
    "ASSISTANT",
    "MAX_CHARACTERS",
    "SYSTEM",
    "USER",
    "Messages",
    "TextSource",
    "check_messages",
    "turns_of",
]

Messages: TypeAlias = list[dict[str, Any]]
"""Messages with a role and a content, which is a text or a list of parts, each with a text."""
TextSource: TypeAlias = str | Sequence[Mapping[str, Any]]
"""A source of a text model: a text, or the messages of a conversation."""
MAX_MESSAGES = 1 << 12
MAX_CHARACTERS = 1 << 22
"""Length of all messages of a conversation together, as JSON."""
SYSTEM, USER, ASSISTANT = "system", "user", "assistant"
FIRST = {SYSTEM, "developer"}
"""Roles of the messages that a conversation begins with, and keeps."""
TOOL_ROLES, TOOL_FIELDS = {"tool", "function", "ipython"}, {"tool_calls", "tool_call_id", "function_call"}
"""Roles and fields of messages about tools."""
ANSWER_TOKENS = 512
"""The most new tokens of an answer if no setting limits them, where ``model.generate`` would stop after 20."""
EXAMPLE = '[{"role": "user", "content": "..."}]'


def check_messages(given: Any) -> Messages:
    """Check the messages of a conversation.

    Parameters
    ----------
    given
        A list of objects with the fields ``role`` and ``content``. A content is a text, or a list of parts of the form
        ``{"type": "text", "text": ...}``. Other fields are for the template.

    Returns
    -------
    list of dict
        A copy, without the fields that are None.

    Raises
    ------
    InputError
        The messages have another form, are too many or too long, or are about tools or images.
    """
    if not isinstance(given, list | tuple):
        raise InputError(f"messages is {type(given).__name__}, expected a list such as {EXAMPLE}; pass one")
    if not given:
        raise InputError(f"messages is empty, expected at least one, such as {EXAMPLE}; pass one")
    if len(given) > MAX_MESSAGES:
        raise InputError(f"there are {len(given):,} messages, expected {MAX_MESSAGES:,} at most; drop the oldest")
    messages = []
    for index, message in enumerate(given):
        try:
            messages.append(_checked(message))
        except InputError as error:
            raise error.at(f"message {index}") from None
    try:
        written = json.dumps(messages, ensure_ascii=False)
        written.encode()
    except UnicodeEncodeError:
        raise InputError("messages hold half a character (a lone surrogate), which is not UTF-8; remove it") from None
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"messages are not JSON ({error}); pass texts, numbers, lists and dicts alone") from None
    if len(written) > MAX_CHARACTERS:
        problem = f"messages have {len(written):,} characters, expected {MAX_CHARACTERS:,} at most"
        raise InputError(f"{problem}; shorten them, or drop the oldest")
    copy: Messages = json.loads(written)
    return copy


def _checked(given: Any) -> dict[str, Any]:
    """Return a message without the fields that are None. Raises InputError."""
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        held = short_repr(given)
        raise InputError(f'{held} is not an object such as {{"role": "user", "content": "..."}}; pass one')
    message = {name: value for name, value in given.items() if value is not None}
    for name in ("role", "content"):
        if name not in message and not (TOOL_FIELDS & message.keys()):
            raise InputError(f'it has no {name}; expected an object such as {{"role": "user", "content": "..."}}')
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise InputError(f"role is {short_repr(role)}, expected a text; pass system, user or assistant")
    about = sorted(TOOL_FIELDS & message.keys()) + ["role"] * (role in TOOL_ROLES)
    if about:
        raise InputError(f"{about[0]} is about tools, which are not supported; leave such messages and fields out")
    content = message["content"]
    if isinstance(content, str):
        return message
    parts = content if isinstance(content, list | tuple) else []
    if not parts or not all(map(_is_text, parts)):
        part = next((part for part in parts if not _is_text(part)), content)
        raise InputError(
            f'content is {short_repr(part)}, expected a text, or a list of {{"type": "text", "text": "..."}}; '
            "pass texts alone"
        )
    return message


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)


def turns_of(messages: Messages) -> tuple[Messages, list[Messages]]:
    """Cut a conversation into turns, of which the oldest can be left out.

    Parameters
    ----------
    messages : list of dict

    Returns
    -------
    kept : list of dict
        The system messages at the beginning.
    turns : list of list of dict
        The other messages, cut before each message of the user; without one, a turn for each message.
    """
    begin = next((index for index, message in enumerate(messages) if message["role"] not in FIRST), len(messages))
    kept, others = messages[:begin], messages[begin:]
    users = any(message["role"] == USER for message in others)
    turns: list[Messages] = []
    for message in others:
        if turns and users and message["role"] != USER:
            turns[-1].append(message)
        else:
            turns.append([message])
    return kept, turns
