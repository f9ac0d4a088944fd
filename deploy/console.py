"""The common part of all commands: the entry point, ``--version``, and errors in one line."""

from __future__ import annotations

import inspect
import io
import os
import re
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Any

import typer
from rich.console import Console

import tightbeam

__all__ = ["Version", "command_line", "console", "counted", "drop_output", "printable", "say"]


def _print_version(context: typer.Context, wanted: bool) -> None:
    """Print the name of the command and the version of the package, and exit."""
    if wanted:
        print(f"{context.info_name} {tightbeam.__version__} (tightbeam)")
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", help="Show the version and exit.", is_eager=True, callback=_print_version)
]
"""Type of the last parameter of every command, ``version: Version = False``. No command reads it."""


MISSING_LIBRARY = re.compile(r"((lib[\w+.-]*?)\.so\.?(\d*)[.\d]*): cannot open shared object file")
"""The message of the system's loader about a missing library, inside an error of numpy or ONNX Runtime."""


def command_line(app: typer.Typer, name: str, hints: Mapping[str, str] | None = None) -> None:
    """Run ``app`` as the command ``name``, with UTF-8 output in any locale, and exit the process.

    ``hints`` has advice on options that the command does not have, by their names with hyphens. Under "" it has advice
    on too many arguments.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    signal.signal(signal.SIGTERM, _interrupt)
    command = typer.main.get_command(app)
    command.help = re.sub(r"(?<!\n)\n(?!\n)", " ", inspect.cleandoc(command.help or ""))  # --help breaks lines itself
    for parameter in command.get_params(typer.Context(command)):  # --help too
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""  # --help would show <bool> after a flag
    try:
        code = command(prog_name=name, standalone_mode=False)
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:  # the reader has closed the pipe
        drop_output()
        code = 1
    except OSError as error:
        drop_output()
        failed = f"cannot use {error.filename}" if error.filename else "cannot write to standard output"
        say(f"error: {failed}: {(error.strerror or str(error)).lower()}; check it, and the disk")
        code = 1
    except ImportError as error:
        if (missing := MISSING_LIBRARY.search(str(error))) is None:
            raise
        package = f"{missing[2]}{missing[3]}"
        say(f"error: a package needs {missing[1]}, which this system lacks; install it ({package}, as Debian names it)")
        code = 1
    except Exception as error:
        if not hasattr(error, "format_message"):  # an error of the command line, for which typer has no public class
            raise
        say(f"error: {_with_advice(error, hints or {})}; see {name} --help")
        code = getattr(error, "exit_code", 2)
    sys.exit(code)


def _with_advice(error: Any, hints: Mapping[str, str]) -> str:
    """Return the message of an error of the command line, with advice if ``hints`` or the command has some."""
    message = str(error.format_message()).rstrip(".")
    option = getattr(error, "option_name", None)
    if option and error.ctx is not None:  # an option that the command does not have; the others have no context
        if len(option) == 2:  # the parser names one letter of a word such as -cnv
            option = next((word for word in sys.argv[1:] if word.startswith(option)), option).partition("=")[0]
        hyphens = option.replace("_", "-")
        written = any(hyphens in parameter.opts for parameter in error.ctx.command.params)
        hint = f"it is written {hyphens}" if written else hints.get(hyphens)
        return f"No such option: {option}; {hint}" if hint else message
    too_many = message.startswith("Got unexpected extra argument")
    return f"{message}; {hints['']}" if too_many and "" in hints else message


def _interrupt(number: int, frame: object) -> None:
    """Treat SIGTERM like Ctrl-C, so that nothing half written is left."""
    raise KeyboardInterrupt


def drop_output() -> None:
    """Discard buffered standard output, which Python would try to write again at exit."""
    if sys.stdout is not None:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)


def console() -> Console:
    """Return a console on standard error, without decoration."""
    return Console(stderr=True, soft_wrap=True, highlight=False, markup=False, emoji=False)


def printable(text: str) -> str:
    """Escape the characters that are not printable, so that a terminal shows the text as one line."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def say(message: str) -> None:
    """Print a message on standard error as one line; characters that are not printable are escaped.

    A message that cannot be written is dropped without an error.
    """
    with suppress(OSError):
        console().print(printable(message))


def counted(number: int, unit: str) -> str:
    """Return a number with its unit in singular or plural: 1 line, 1,200 lines."""
    return f"{number:,} {unit}{'' if number == 1 else 's'}"
