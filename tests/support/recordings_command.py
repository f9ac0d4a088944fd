"""`run-model` over recordings in this process, with a tokenizer whose words are numbers."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from support.bundles.cache import BundleCache
from support.checkpoints.timestamps import with_timestamps
from tightbeam.deploy import Runner
from tightbeam.deploy.commands import run_model
from tightbeam.deploy.model.model import Model
from tightbeam.deploy.text.decoder_rules import PLAIN

__all__ = ["Words", "load_words", "run"]


class Words:
    """A tokenizer whose words are numbers."""

    rules = PLAIN

    def decode(self, tokens: list[int]) -> str:
        return "".join(f" w{token}" for token in tokens if token < 45)


def load_words(bundles: BundleCache, monkeypatch: pytest.MonkeyPatch) -> Runner:
    """The runner that the command loads from now on."""
    runner = with_timestamps(bundles, "el")[1]
    runner.model.text._codec = Words()  # type: ignore[assignment]
    monkeypatch.setattr(Model, "load", lambda *args, **options: runner.model)
    return runner


def run(*arguments: str, given: bytes | None = None, code: int = 0) -> tuple[str, str]:
    """Standard output and standard error of `run-model`."""
    done = CliRunner().invoke(run_model.app, ["bundle", *arguments], input=given)
    assert done.exit_code == code, done.output
    return done.stdout, done.stderr
