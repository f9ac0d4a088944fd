"""A conversation as the source of a model: its tokens, whole or without its oldest turns."""

from __future__ import annotations

from tightbeam.deploy.chat.messages import ASSISTANT, Messages, turns_of
from tightbeam.deploy.chat.template import ChatTemplate
from tightbeam.deploy.errors import InputError
from tightbeam.deploy.text.tokenizer import TextCodec

__all__ = ["Conversation"]


class Conversation:
    """Messages of a user and a model. If the last one is the assistant's, the answer goes on from it.

    Parameters
    ----------
    messages : list of dict
        Messages that `check_messages` returned.
    template : ChatTemplate
    codec : TextCodec
        The tokenizer.
    """

    def __init__(self, messages: Messages, template: ChatTemplate, codec: TextCodec) -> None:
        self._messages, self._template, self._codec = messages, template, codec
        self._continued = messages[-1]["role"] == ASSISTANT

    def ids(self) -> list[int]:
        """Return the token ids of all messages. Raises InputError.

        The template writes the special tokens, so the tokenizer adds none: the beginning token never comes twice.
        """
        return self._ids(self._messages)

    def within(self, limit: int) -> list[int]:
        """Return the token ids of the system messages and of as many of the newest turns as have ``limit`` tokens.

        Raises
        ------
        InputError
            The last turn has more tokens with the system messages, or the template refuses the messages.
        """
        kept, turns = turns_of(self._messages)
        if not turns:
            raise InputError(f"the system messages are longer than {limit} tokens; shorten them")
        found = self._ids([*kept, *turns[-1]])
        if len(found) > limit:
            raise InputError(f"the last turn and the system messages have {len(found)} tokens, more than {limit}")
        fits, fails = 1, len(turns)  # the end first, so that no rendering is much longer than what fits
        while fails - fits > 1:
            count = min(2 * fits, (fits + fails) // 2)
            ids = self._ids([*kept, *(message for turn in turns[-count:] for message in turn)])
            if len(ids) <= limit:
                found, fits = ids, count
            else:
                fails = count
        return found

    def _ids(self, messages: Messages) -> list[int]:
        return self._codec.encode_output(self._template.render(messages, continued=self._continued))
