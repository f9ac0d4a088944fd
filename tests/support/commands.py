"""Commands run in this process or in one of their own, and what they print."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from tightbeam.deploy.commands.run_model import main

MODULE = [sys.executable, "-m", "tightbeam.deploy.commands.run_model"]
SHORT = ("--max-new-tokens", "5")
SUMMARY = re.compile(
    r"(?P<inputs>[\d,]+) (?P<unit>line|file|document)s?, (?P<tokens>[\d,]+) tokens?"
    r"(, (?P<sound>[\d.,]+) s of sound)? in (?P<seconds>[\d.,]+) s: "
    r"(?P<rate>[\d.,]+) (?P=unit)s/s, (?P<token_rate>[\d.,]+) tokens/s"
    r"(, real-time factor [\de.-]+)?; (?P<memory>[\d,]+) MB at most; "
    r"model loaded in (?P<load>[\d.]+) s"
)
DEFAULT_LENGTH = "note: outputs ended at 20 new tokens, the default length; pass --max-new-tokens for longer ones"


@dataclass
class Done:
    code: int
    out: str
    err: str

    @property
    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def messages(self) -> list[str]:
        """The lines on standard error, but for the summary that ends a run, and the note about the default length."""
        return [line for line in self.err.splitlines() if not SUMMARY.fullmatch(line) and line != DEFAULT_LENGTH]

    def succeeded(self) -> Done:
        """Assert that it printed nothing but the summary, and the note about the default length."""
        assert (self.code, self.messages) == (0, []), self.err
        assert SUMMARY.fullmatch(self.err.rstrip("\n").splitlines()[-1])
        return self

    def failed(self, *parts: str, code: int = 1) -> Done:
        """Assert that it printed errors of one line each, one of which contains ``parts``."""
        assert self.code == code, self.err
        lines = self.messages
        assert lines and all(line.startswith("error: ") and line.isprintable() for line in lines), self.err
        assert any(all(part in line for part in parts) for line in lines), self.err
        return self


Command = Callable[..., Done]


def caller(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Return a function that runs a command's entry point in this process."""

    def run(*arguments: object, stdin: bytes = b"", entry: Callable[[], None] = main) -> Done:
        monkeypatch.setattr(sys, "argv", ["command", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit_:
            entry()
        return Done(int(exit_.value.code or 0), *capsys.readouterr())

    return run


def process(*arguments: object, stdin: bytes = b"", command: list[str] = MODULE, **kwargs: Any) -> Done:
    """Runs the command in a process of its own."""
    done = subprocess.run([*command, *map(str, arguments)], input=stdin, capture_output=True, timeout=120, **kwargs)
    return Done(done.returncode, done.stdout.decode(), done.stderr.decode())
