"""Changes to the files of a checkpoint, and the errors that they cause."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tightbeam.export.checkpoint.load import load_checkpoint
from tightbeam.export.errors import ExportError


def edit_json(path: Path, **changes: Any) -> None:
    """Set fields of a JSON object in a file; an Ellipsis removes one."""
    content = json.loads(path.read_text("utf-8"))
    for name, value in changes.items():
        if value is ...:
            content.pop(name, None)
        else:
            content[name] = value
    path.write_text(json.dumps(content), "utf-8")


def edit_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    """Apply ``change`` to the tensors of model.safetensors, by name."""
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def refusal(name_or_path: str | Path) -> str:
    """The message of the error that loading raises: one line."""
    with pytest.raises(ExportError) as caught:
        load_checkpoint(name_or_path)
    message = str(caught.value)
    assert message
    assert "\n" not in message
    return message
