"""The chat template of a checkpoint's tokenizer, or one of the user's in its place."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tightbeam.deploy.chat.messages import check_messages
from tightbeam.deploy.chat.template import ChatTemplate
from tightbeam.deploy.errors import InputError
from tightbeam.export.errors import ExportError

__all__ = ["note_of_chat_template", "read_chat_template", "set_chat_template"]

USER, ANSWER = {"role": "user", "content": " Where is it? "}, {"role": "assistant", "content": "In the north.\n"}
CONVERSATIONS = ([USER], [{"role": "system", "content": "Be brief."}, USER], [USER, ANSWER, USER], [USER, ANSWER])
"""Conversations that the bundle must render as transformers does."""


def read_chat_template(path: str | os.PathLike[str]) -> str:
    """Read a chat template of the user's. Raises ExportError if it cannot be read or compiled."""
    name = os.fspath(path)
    try:
        text = Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ExportError(f"chat template {name} cannot be read: {reason}; give a Jinja file") from error
    if not text.strip():
        raise ExportError(f"chat template {name} is empty; give a Jinja file that writes the messages")
    try:
        ChatTemplate(text, {}).check()
    except InputError as error:
        named = error.problem.replace("the bundle's chat template", f"chat template {name}")
        raise ExportError(f"{named}; mend it") from None
    return text


def set_chat_template(tokenizer: Any | None, template: str) -> None:
    """Give a tokenizer a chat template, in place of all that it has. Raises ExportError if there is no tokenizer."""
    if tokenizer is None:
        raise ExportError("--chat-template is for a tokenizer, and the checkpoint has none; leave it out")
    tokenizer.chat_template = template


def note_of_chat_template(tokenizer: Any | None) -> str:
    """A note for the user if the bundle does not render a conversation as transformers does, else ""."""
    try:
        source = None if tokenizer is None else tokenizer.get_chat_template()
    except ValueError:  # none, or none of that name
        source = None
    if source is None:
        return ""
    assert tokenizer is not None
    template = ChatTemplate(source, tokenizer.special_tokens_map)
    for messages in CONVERSATIONS:
        continued = messages[-1] is ANSWER
        how = {"continue_final_message": continued, "add_generation_prompt": not continued}
        try:
            expected = tokenizer.apply_chat_template(messages, tokenize=False, **how)
        except Exception:  # templates refuse roles, and raise anything
            continue
        try:
            same, reason = template.render(check_messages(messages), continued=continued) == expected, "it differs"
        except InputError as error:
            same, reason = False, error.problem
        if not same:
            return f"conversations are not rendered as transformers renders them ({reason}); pass texts to this bundle"
    return ""
