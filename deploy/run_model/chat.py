"""`run-model --chat`: a conversation in the terminal, or of the lines of standard input."""

from __future__ import annotations

import contextlib
import io
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from tightbeam.deploy.chat.messages import ASSISTANT, MAX_CHARACTERS, SYSTEM, USER, Messages
from tightbeam.deploy.console import say
from tightbeam.deploy.errors import FrontEnd, GenerationError, InputError, message_for
from tightbeam.deploy.generation.without_effect import remove_settings_without_effect
from tightbeam.deploy.inputs.text_stream import TextStream
from tightbeam.deploy.model.model import Model
from tightbeam.deploy.runtimes.kept_prompt import KeptPrompt
from tightbeam.deploy.text.truncation import Truncation

__all__ = ["ChatRun", "run_chat"]

RESET, EXIT = "/reset", "/exit"
RESETS, EXITS = (RESET, "/clear"), (EXIT, "/bye", "/quit")
"""The commands, with their names in ollama and llama.cpp."""
LONGEST_LINE = MAX_CHARACTERS + 2
"""Characters that are read of a line: one that is longer is more than a conversation may have."""
SHOWN = "> "
"""The prompt of a terminal."""


@dataclass(frozen=True, kw_only=True)
class ChatRun:
    """A conversation that the command line asks for.

    Attributes
    ----------
    bundle : Path
    engine, device, threads
        Arguments of `Runner.load`.
    quiet : bool
        Print errors only beside the answers.
    system : str or None
        The system message.
    truncate : bool or str
        Leave out the oldest turns of a conversation that is too long.
    settings : mapping
        Settings of ``model.generate``.
    front_end : FrontEnd
        The front end that errors are written for.
    """

    bundle: Path
    engine: str
    device: str
    threads: int | None
    quiet: bool
    system: str | None
    truncate: Truncation
    settings: Mapping[str, Any]
    front_end: FrontEnd


def run_chat(run: ChatRun) -> int:
    """Answer the user's messages until the input ends.

    Returns
    -------
    int
        The exit code: 0, or 1 if a message that was not typed has no answer.

    Raises
    ------
    BundleError, GenerationError, InputError
        The model cannot chat, or has failed.
    """
    if sys.stdin is None:
        raise InputError("--chat reads standard input, which is closed; leave it open")
    if sys.stdout is None:
        raise InputError("standard output is closed, so the answers would be lost; redirect it to a file")
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape")
    model = Model.load(run.bundle, engine=run.engine, device=run.device, threads=run.threads)
    model.text.require_chat_template().check()
    chat, keys = _Chat(run, model), _Keyboard()
    signal.signal(signal.SIGTERM, _terminate)

    def interrupt(number: int, frame: object) -> None:
        keys.interrupt()
        chat.stop()

    signal.signal(signal.SIGINT, interrupt)
    if keys.typed:
        chat.note(f"type a message; {RESET} begins anew, {EXIT} or Ctrl-D ends, Ctrl-C stops an answer")
    failed = False
    while (line := keys.line()) is not None and line.rstrip() not in EXITS:
        if line.rstrip() in RESETS:
            chat.reset()
        elif line.startswith("/"):
            say(f"error: {line.split()[0]} is unknown; pass {RESET} or {EXIT}, or begin the message with a space")
            failed = True
        elif line.strip():
            failed |= not chat.answer(line)
    return 1 if failed and not keys.typed else 0


class _Keyboard:
    """The lines of standard input. In a terminal they have a prompt, a history, and keys that edit them."""

    def __init__(self) -> None:
        self.typed, self._reading = sys.stdin.isatty(), False
        self._prompted = self.typed and sys.stderr is not None  # input() needs it
        if self._prompted:
            with contextlib.suppress(ImportError):
                import readline  # noqa: F401  # input() uses it

    def line(self) -> str | None:
        """Return the next line; None at the end. Ctrl-C discards what was typed."""
        while True:
            try:
                return self._read()
            except KeyboardInterrupt:
                print(flush=True)
            finally:
                self._reading = False

    def _read(self) -> str | None:
        self._reading = True
        try:
            if self._prompted:
                return input(SHOWN)
            line = rest = sys.stdin.readline(LONGEST_LINE)
            while len(rest) == LONGEST_LINE and not rest.endswith("\n"):  # the answer is an error
                rest = sys.stdin.readline(LONGEST_LINE)
            return line.removesuffix("\n") if line else None
        except EOFError:
            print(flush=True)
            return None

    def interrupt(self) -> None:
        """Raise KeyboardInterrupt if a line is being read."""
        if self._reading:
            raise KeyboardInterrupt


class _Chat:
    """A conversation. Raises GenerationError or InputError for settings that no answer can have."""

    def __init__(self, run: ChatRun, model: Model) -> None:
        self._run, self._model = run, model
        self._settings, notes = remove_settings_without_effect(
            dict(run.settings), speech=False, defaults=model.manifest.generation
        )
        self._options = model.settings.options(model.text.answer_settings(self._settings))
        model.text.cut_side([], run.truncate)
        if asked := self._options.beside_texts:
            raise InputError(f"{asked} is more than an answer; leave it out")
        if self._options.num_return_sequences > 1:
            asked = f"num_return_sequences={self._options.num_return_sequences}"
            raise GenerationError(f"{asked} is for several texts, and a conversation has one answer; leave it out")
        self.note(*notes)
        self._messages: Messages = []
        self._kept = KeptPrompt()
        self._stream: TextStream | None = None
        self._stopped = False
        self.reset()

    def note(self, *notes: str) -> None:
        """Print notes, unless the user wants none."""
        for note in () if self._run.quiet else notes:
            say(f"note: {note}")

    def reset(self) -> None:
        """Forget all messages but the system message, whose keys and values the next prompt begins with."""
        system = self._run.system
        self._messages = [] if system is None else [{"role": SYSTEM, "content": system}]

    def stop(self) -> None:
        """Stop the answer, after the step that runs."""
        self._stopped = True
        if self._stream is not None:
            self._stream.close()

    def answer(self, message: str) -> bool:
        """Write the answer to a message of the user, as it is made. Returns False if the model gives no text.

        A message without an answer leaves the conversation. An answer that was stopped stays in it.
        """
        self._messages.append({"role": USER, "content": message})
        self._stopped = False
        try:
            text = self._write()
        except (GenerationError, InputError) as error:
            say(f"error: {message_for(self._run.front_end, error)}")
            text = ""
        if text:
            self._messages.append({"role": ASSISTANT, "content": text})
        else:
            self._messages.pop()
        return bool(text)

    def _write(self) -> str:
        """Write the next answer, and return it. Raises GenerationError and InputError."""
        tokens, cut, settings = self._model.text.encode_conversation(
            self._messages, self._settings, truncate=self._run.truncate
        )
        if cut:
            self.note(f"the oldest turns are left out: {len(tokens) + cut:,} tokens are now {len(tokens):,}")
        sample = replace(self._model.sample(0, tokens, settings), kept=self._kept)
        pieces: list[str] = []
        with TextStream(self._model, sample) as self._stream:
            for piece in self._stream:
                if self._stopped:
                    break
                pieces.append(piece)
                sys.stdout.write(piece)
                sys.stdout.flush()
        print(flush=True)
        result = self._stream.result
        if self._stopped:
            self.note("the answer was stopped")
        elif result is not None and result.finish_reasons == ["length"]:
            self.note(f"the answer ends at {result.new_tokens} new tokens; --max-new-tokens N allows more")
        return "".join(pieces)


def _terminate(number: int, frame: object) -> NoReturn:
    """End on SIGTERM, which the console turns into Ctrl-C otherwise."""
    raise SystemExit(128 + number)
