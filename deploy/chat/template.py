"""The checkpoint's chat template: messages to the text that the model was tuned on.

A template is a program in jinja2's language. It runs in a process of its own (`_renderer.py`), which is started at
the first conversation and ended with the model: jinja2's sandbox bounds neither time nor memory.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

from tightbeam.deploy.bundle.reader import Bundle
from tightbeam.deploy.errors import BundleError, InputError, first_line

__all__ = ["MAX_TEMPLATE_BYTES", "ChatTemplate", "load_chat_template"]

MAX_TEMPLATE_BYTES = 1 << 18
"""Length of a template. The longest of published models have 30,000 bytes."""
MAX_RENDERED = 1 << 22
"""Characters of a rendered conversation."""
MAX_MEMORY_BYTES = 1 << 29
"""Memory of the process that renders. The longest conversation takes a third of it."""
MAX_SECONDS = 5
"""Seconds of processor time for a conversation. The longest one takes 0.2 s."""
RENDERER = Path(__file__).with_name("_renderer.py")
FILE, CONFIG = "chat_template.jinja", "tokenizer_config.json"
"""Files in the tokenizer's folder: the template, and the special tokens."""
SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
"""Variables of every template, as in transformers."""
ANOTHER = "export the checkpoint again with another template (--chat-template FILE)"


class ChatTemplate:
    """A chat template.

    Parameters
    ----------
    source : str
        The template.
    variables : mapping
        Its variables beside the messages: the special tokens by their names.
    """

    def __init__(self, source: str, variables: Mapping[str, str]) -> None:
        self._source, self._variables = source, dict(variables)
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0

    def render(self, messages: Sequence[Mapping[str, Any]], *, continued: bool = False) -> str:
        """Render a conversation.

        Parameters
        ----------
        messages : sequence of mapping
            Messages that `check_messages` returned.
        continued : bool
            The answer goes on from the last message, in place of beginning anew.

        Returns
        -------
        str
            The text that the answer follows.

        Raises
        ------
        InputError
            The template refuses the messages, is broken, or needs more time, memory or text than it may have.
        """
        with self._lock:
            reply = self._ask({"messages": list(messages), "continued": continued})
        if "error" in reply:
            raise InputError(f"the chat template refuses these messages ({reply['error']}); pass what it takes")
        return str(reply["text"])

    def check(self) -> None:
        """Raise InputError if the template cannot be compiled."""
        with self._lock:
            self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        """Return the running process. Start one if none runs, or if this process is a fork of its owner."""
        if self._process is not None and self._owner == os.getpid() and self._process.poll() is None:
            return self._process
        if len(self._source.encode(errors="replace")) > MAX_TEMPLATE_BYTES:
            raise InputError(f"the bundle's chat template has more than {MAX_TEMPLATE_BYTES:,} bytes", fix=ANOTHER)
        if not hasattr(signal, "setitimer"):
            raise InputError(
                "a chat template is code of the checkpoint, and this system (Windows) has no limits for it; pass a "
                "text that has the template's form, or use WSL"
            )
        limits = map(str, (MAX_MEMORY_BYTES, MAX_SECONDS, MAX_RENDERED))
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(RENDERER), *limits],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            start_new_session=True,  # Ctrl-C is for the answer
        )
        self._owner = os.getpid()
        weakref.finalize(self, _end, self._process)
        reply = self._exchange(self._process, {"template": self._source, "variables": self._variables})
        if "error" in reply:
            _end(self._process)
            raise InputError(f"the bundle's chat template cannot be used ({reply['error']})", fix=ANOTHER)
        return self._process

    def _ask(self, request: Mapping[str, Any]) -> dict[str, str]:
        return self._exchange(self._start(), request)

    def _exchange(self, process: subprocess.Popen[bytes], request: Mapping[str, Any]) -> dict[str, str]:
        """Send a request, and return the reply. Raises InputError if the process ends."""
        assert process.stdin is not None and process.stdout is not None
        line = b""
        try:
            with suppress(BrokenPipeError):
                process.stdin.write(json.dumps(request).encode() + b"\n")
                process.stdin.flush()
                line = process.stdout.readline()
        except BaseException:  # Ctrl-C: a reply that is not read would be taken for that of the next request
            _end(process)
            raise
        if line.endswith(b"\n"):
            reply: dict[str, str] = json.loads(line)
            return reply
        _end(process)
        raise InputError(f"the chat template {_ending(process.returncode)}", fix=f"shorten the messages, or {ANOTHER}")


def _ending(code: int) -> str:
    """Say how a process that rendered a template ended."""
    if code == -signal.SIGPROF:
        return f"takes more than {MAX_SECONDS} seconds for these messages"
    if code == 3:
        return f"takes more than {MAX_MEMORY_BYTES >> 20} MiB for these messages"
    return f"ended the process that renders it (code {code})"


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process, and release its pipes."""
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()
    try:
        process.wait(1.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def load_chat_template(bundle: Bundle) -> ChatTemplate | None:
    """Load the chat template of a bundle.

    Parameters
    ----------
    bundle : Bundle

    Returns
    -------
    ChatTemplate or None
        None if the checkpoint's tokenizer has none.

    Raises
    ------
    BundleError
        The files of the tokenizer cannot be read.
    """
    if (entry := bundle.manifest.tokenizer) is None:
        return None
    files = {str(PurePosixPath(file.file).relative_to(entry.folder)): bundle.file(file) for file in entry.files}
    config = _config(files.get(CONFIG))
    try:
        template = files[FILE].read_text(encoding="utf-8") if FILE in files else _default(config.get("chat_template"))
    except (OSError, ValueError) as error:
        raise BundleError(f"{files[FILE]} cannot be read ({first_line(error)}); export the model again") from None
    if template is None:
        return None
    tokens = {name: _token(config.get(name)) for name in SPECIAL_TOKENS}
    return ChatTemplate(template, {name: token for name, token in tokens.items() if token is not None})


def _config(path: Path | None) -> dict[str, Any]:
    """Read the tokenizer's settings; return an empty dict without a file. Raises BundleError."""
    if path is None:
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise BundleError(f"{path} cannot be read ({first_line(error)}); export the model again") from None
    return found if isinstance(found, dict) else {}


def _default(template: Any) -> str | None:
    """Return the template among a tokenizer's settings: a text, or the one named "default" of a list."""
    if isinstance(template, list):
        named = {each.get("name"): each.get("template") for each in template if isinstance(each, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None


def _token(token: Any) -> str | None:
    """Return the text of a special token, which is a string, or an object with its text in "content"."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None
