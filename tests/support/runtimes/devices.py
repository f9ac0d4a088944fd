"""The runtimes of a GPU over plain memory, by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from support.runtimes import session_in_memory, tensorrt_in_memory

Made = tensorrt_in_memory.InMemory | session_in_memory.InMemory
DEVICES: dict[str, Callable[[Path], Made]] = {
    "tensorrt": tensorrt_in_memory.in_memory,
    "onnxruntime": session_in_memory.in_memory,
}
