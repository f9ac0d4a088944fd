"""The process that renders a chat template. A template is code of a checkpoint, so it runs apart from the model.

The process is started by the path of this file, and imports jinja2 alone. Its memory, and its processor time for each
request, are limited. It reads JSON lines and writes one for each: first the template and its variables, then
conversations.

Source: transformers 5.24 ``utils/chat_template_utils.py``, for what a template may use and what it is given.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from datetime import datetime
from typing import Any

END = "END_OF_THE_BEGINNING_OF_AN_ANSWER "
"""Appended to a message that is continued. What a template writes from here on is dropped; the space shows whether the
template strips messages."""
PROBE = "text of a part"
REASONING = ("reasoning_content", "thinking", "reasoning")
"""The names by which templates read the reasoning of a message."""
LONGEST_REASON = 200


def environment() -> Any:
    """Return jinja2's sandbox with what templates expect in it."""
    from jinja2 import nodes
    from jinja2.exceptions import SecurityError, TemplateError
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    from jinja2.utils import Namespace

    class Generation(Extension):
        """``{% generation %}`` marks the answers in a template; here it only renders its content."""

        tags = frozenset({"generation"})  # type: ignore[assignment]

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            content = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.CallBlock(self.call_method("content_of"), [], [], content, lineno=line)

        def content_of(self, caller: Callable[[], str]) -> str:
            return caller()

    class PublicNamespace(Namespace):
        """A namespace without attributes that begin with an underscore."""

        def __init__(*arguments: Any, **named: Any) -> None:
            own, *rest = arguments
            values = dict(*rest, **named)
            for name in values:
                _refuse_underscore(name)
            Namespace.__init__(own, values)

        def __setitem__(self, name: str, value: Any) -> None:
            _refuse_underscore(name)
            super().__setitem__(name, value)

    def _refuse_underscore(name: Any) -> None:
        if isinstance(name, str) and name.startswith("_"):
            raise SecurityError(f"a namespace cannot have the attribute {name!r}")

    class Dict:
        """The type dict, reduced to what makes one."""

        def __call__(self, *arguments: Any, **named: Any) -> dict[Any, Any]:
            return dict(*arguments, **named)

        def fromkeys(self, *arguments: Any) -> dict[Any, Any]:
            return dict.fromkeys(*arguments)

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    def tojson(
        value: Any,
        ensure_ascii: bool = False,
        indent: Any = None,
        separators: Any = None,
        sort_keys: bool = False,
    ) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    made.filters["tojson"] = tojson
    made.globals |= {"raise_exception": raise_exception, "dict": Dict(), "namespace": PublicNamespace}
    made.globals["strftime_now"] = lambda style: datetime.now().strftime(style)
    return made


class Renderer:
    """A compiled template.

    Parameters
    ----------
    template : str
    variables : dict
        Variables that every conversation has, such as ``bos_token``.
    """

    def __init__(self, template: str, variables: dict[str, str]) -> None:
        self._template = environment().from_string(template)
        self._variables = variables
        self._takes_parts: bool | None = None

    def render(self, messages: list[dict[str, Any]], continued: bool) -> str:
        """Render a conversation. Raises whatever the template raises, and ValueError."""
        messages = [self._as_taken(message) for message in messages]
        last = ""
        if continued:
            last = _continue(messages[-1])
        text = self._render(messages, add_generation_prompt=not continued)
        if not continued:
            return text
        place = text.rfind(END.strip())
        if place < 0 or last.strip() not in text:
            raise ValueError("it leaves out a part of the last message, which then cannot be continued")
        whole = text[place : place + len(END)] == END
        return text[:place] if whole else text[:place].rstrip()

    def _render(self, messages: list[dict[str, Any]], *, add_generation_prompt: bool) -> str:
        given = {"tools": None, "documents": None, "add_generation_prompt": add_generation_prompt}
        return str(self._template.render(messages=messages, **{**given, **self._variables}))

    def _as_taken(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return a message as transformers passes it. Parts become one text for a template that does not read them."""
        message = {name: value for name, value in message.items() if value is not None}
        reasoning = next((message[name] for name in REASONING if name in message), None)
        if reasoning is not None:
            message = {"thinking": reasoning, **message, "reasoning_content": reasoning}
        if isinstance(message["content"], list) and not self._reads_parts():
            message["content"] = "".join(part["text"] for part in message["content"])
        return message

    def _reads_parts(self) -> bool:
        if self._takes_parts is None:
            probe = [{"role": "user", "content": [{"type": "text", "text": PROBE}]}]
            try:
                text = self._render(probe, add_generation_prompt=True)
            except Exception:
                text = ""
            self._takes_parts = PROBE in text and "'type'" not in text and '"type"' not in text
        return self._takes_parts


def _continue(message: dict[str, Any]) -> str:
    """Mark the end of the last text of a message, and return that text."""
    if isinstance(message["content"], str):
        last: str = message["content"]
        message["content"] += END
        return last
    message["content"] = [dict(part) for part in message["content"]]
    last = message["content"][-1]["text"]
    message["content"][-1]["text"] += END
    return last


def answer(renderer: Renderer, request: dict[str, Any], longest: int) -> dict[str, str]:
    """Render a request, and return the reply: a text, or an error."""
    try:
        text = renderer.render(request["messages"], request["continued"])
    except MemoryError:
        raise
    except Exception as error:
        return {"error": reason(error)}
    if len(text) > longest:
        return {"error": f"it makes a text of {len(text):,} characters, expected {longest:,} at most"}
    return {"text": text}


def reason(error: Exception) -> str:
    """Return the first line of an error, and its class if that is not the template's own."""
    lines = str(error).strip().splitlines() or [""]
    named = "" if type(error).__name__ in ("TemplateError", "ValueError") else f"{type(error).__name__}: "
    return f"{named}{lines[0]}"[:LONGEST_REASON].encode(errors="replace").decode()


def main() -> None:
    """Serve requests until standard input ends."""
    memory, seconds, longest = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    import resource

    if sys.platform != "darwin":  # which takes no such limit
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # it ends the process, inside a long operation too
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGPROF})
    renderer = None
    for line in sys.stdin.buffer:
        signal.setitimer(signal.ITIMER_PROF, seconds)
        request = json.loads(line)
        if renderer is None:
            try:
                renderer = Renderer(**request)
                reply = {"text": ""}
            except MemoryError:
                raise
            except Exception as error:
                reply = {"error": reason(error)}
        else:
            reply = answer(renderer, request, longest)
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.write(json.dumps(reply) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    try:
        main()
    except MemoryError:
        sys.exit(3)
