"""A serialized engine, loaded and ready to run."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from pathlib import Path

from tightbeam.plugins.tensorrt.distribution import TensorRT
from tightbeam.plugins.tensorrt.errors import TensorRTError
from tightbeam.plugins.tensorrt.plugin import plugin_errors

__all__ = ["LoadedGraph"]


class LoadedGraph:
    """One engine file with one execution context: shapes and addresses are set by name, then it is enqueued.

    ``register_plugins`` has to be called before. Raises TensorRTError where the file cannot be loaded; as does every
    method where TensorRT refuses. ``on_host``: inputs that are set with addresses of the host. ``types``: of every
    input and output, as numpy calls them.
    """

    def __init__(self, found: TensorRT, path: Path) -> None:
        self._found = found
        found.errors.clear()
        self._runtime = found.trt.Runtime(found.logger)
        try:
            with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
                self._engine = self._runtime.deserialize_cuda_engine(data)
        except (OSError, ValueError) as error:  # an empty file cannot be mapped
            raise TensorRTError(f"{path} cannot be read ({error})") from error
        if self._engine is None:
            raise TensorRTError(f"{found.distribution} {found.version} cannot load {path}{self._reason()}")
        self._context = found.create_context(self._engine)
        if self._context is None:
            raise TensorRTError(f"{found.distribution} {found.version} cannot prepare {path}{self._reason()}")
        self._room: dict[str, tuple[int, ...]] = {}
        self._checked = False

    @property
    def on_host(self) -> frozenset[str]:
        host = self._found.trt.TensorLocation.HOST
        return frozenset(name for name in self._names() if self._engine.get_tensor_location(name) == host)

    @property
    def types(self) -> dict[str, str]:
        known = {kind: name for name, kind in self._found.types.items()}
        kinds = {name: self._engine.get_tensor_dtype(name) for name in self._names()}
        return {name: known.get(kind, str(kind)) for name, kind in kinds.items()}

    def _names(self) -> list[str]:
        return [self._engine.get_tensor_name(index) for index in range(self._engine.num_io_tensors)]

    def set_input(self, name: str, shape: Sequence[int], address: int) -> None:
        self._checked = False
        if not self._context.set_input_shape(name, tuple(shape)):
            raise TensorRTError(f"input {name!r} takes no shape {list(shape)}{self._reason()}")
        self._set_address(name, address)

    def set_output(self, name: str, shape: Sequence[int], address: int) -> None:
        """``shape``: the room there, which is compared with what the inputs make of it when it runs next."""
        self._checked = False
        self._room[name] = tuple(shape)
        self._set_address(name, address)

    def can_be_captured(self, stream: int) -> bool:
        """Whether a CUDA graph can be made of it."""
        return self._found.can_be_captured(self._context, stream)

    def execute(self, stream: int) -> None:
        if not self._checked:
            self._check_shapes()
        plugin_errors.clear()
        self._found.errors.clear()
        if not self._context.execute_async_v3(stream) or plugin_errors:
            raise TensorRTError((plugin_errors[0] if plugin_errors else "it was not enqueued") + self._reason())

    def _set_address(self, name: str, address: int) -> None:
        if not self._context.set_tensor_address(name, address):
            raise TensorRTError(f"{name!r} takes no address{self._reason()}")

    def _check_shapes(self) -> None:
        """That TensorRT writes no more than there is room for."""
        try:
            missing = self._context.infer_shapes()
        except RuntimeError as error:
            raise TensorRTError(f"the outputs' shapes do not follow from the inputs{self._reason()}") from error
        if missing:
            raise TensorRTError(f"the inputs {', '.join(missing)} were not set")
        for name, room in self._room.items():
            found = tuple(self._context.get_tensor_shape(name))
            if found != room:
                raise TensorRTError(f"{name!r} is {list(found)}, expected {list(room)}")
        self._checked = True

    def _reason(self) -> str:
        """What TensorRT said last that it could not do."""
        return f" ({self._found.errors[-1]})" if self._found.errors else ""
