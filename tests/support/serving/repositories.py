"""The command triton-repo in this process, and the model repositories that it writes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tightbeam.deploy.commands.triton_repo import app

google = pytest.importorskip("google.protobuf.text_format")
json_format = pytest.importorskip("google.protobuf.json_format")
model_config_pb2 = pytest.importorskip("tritonclient.grpc.model_config_pb2")

Command = Callable[..., "Done"]


class Done:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    def wrote(self, note: str = "") -> Path:
        """The version's folder; ``note`` begins what is on standard error."""
        assert self.code == 0 and self.err.startswith(note) and bool(self.err) == bool(note), self.err
        return Path(self.out.removeprefix("wrote ").partition("; to try it here")[0])

    def refused(self, *parts: str) -> None:
        """Assert that the command ended with one error line that contains ``parts``."""
        assert self.code == 1 and self.out == ""
        (line,) = self.err.splitlines()
        assert line.startswith("error: ")
        assert all(part in line for part in parts), line


def caller(capsys: pytest.CaptureFixture[str]) -> Command:
    """Return a function that runs triton-repo."""

    def call(*arguments: object) -> Done:
        capsys.readouterr()
        code = app([str(argument) for argument in arguments], standalone_mode=False)
        captured = capsys.readouterr()
        return Done(code or 0, captured.out, captured.err)

    return call


def content(folder: Path) -> dict[str, bytes | None]:
    """All files below a folder, by name; folders have no bytes."""
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def config_of(model: Path) -> dict[str, Any]:
    """The configuration, read with Triton's own protobuf."""
    config = google.Parse((model / "config.pbtxt").read_text(), model_config_pb2.ModelConfig())
    found: dict[str, Any] = json_format.MessageToDict(config, preserving_proto_field_name=True)
    return found
