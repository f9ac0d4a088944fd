"""What all commands share: one line an error, whatever it quotes."""

from __future__ import annotations

import io
import signal
import sys

import typer
from rich.console import Console

__all__ = ["command_line", "console", "say"]


def command_line(app: typer.Typer, name: str) -> None:
    """Run ``app`` as the command ``name``, and leave the process. UTF-8 out, whatever the locale."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        code = app(standalone_mode=False)
    except Exception as error:
        if not hasattr(error, "format_message"):  # those of the command line; typer has no public class for them
            raise
        say(f"error: {error.format_message().rstrip('.')}; see {name} --help")
        code = getattr(error, "exit_code", 2)
    sys.exit(code)


def _interrupt(number: int, frame: object) -> None:
    """Whoever ends the command leaves nothing half written behind, as with Ctrl-C."""
    raise KeyboardInterrupt


def console() -> Console:
    """Standard error, without decoration."""
    return Console(stderr=True, soft_wrap=True, highlight=False, markup=False, emoji=False)


def say(message: str) -> None:
    """One line on standard error, whatever the message quotes."""
    console().print("".join(char if char.isprintable() else repr(char)[1:-1] for char in message))
