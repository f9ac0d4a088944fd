"""An engine file, loaded and ready to run."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from pathlib import Path

from tightbeam.plugins.tensorrt.distribution import TensorRT
from tightbeam.plugins.tensorrt.errors import TensorRTError
from tightbeam.plugins.tensorrt.plugin import plugin_errors

__all__ = ["LoadedGraph"]


class LoadedGraph:
    """An engine with one execution context: set the shapes and addresses of its tensors by name, then run it.

    Call ``register_plugins`` before. Every method raises TensorRTError if TensorRT refuses the call.

    Parameters
    ----------
    found
        The installed TensorRT.
    path
        The engine file.

    Raises
    ------
    TensorRTError
        The file cannot be read or loaded.
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
        self._capacity: dict[str, tuple[int, ...]] = {}
        self._checked = False

    @property
    def on_host(self) -> frozenset[str]:
        """Names of the inputs whose addresses are in host memory."""
        host = self._found.trt.TensorLocation.HOST
        return frozenset(name for name in self._names() if self._engine.get_tensor_location(name) == host)

    @property
    def types(self) -> dict[str, str]:
        """Numpy's name for the type of every input and output, by the tensor's name."""
        known = {kind: name for name, kind in self._found.types.items()}
        kinds = {name: self._engine.get_tensor_dtype(name) for name in self._names()}
        return {name: known.get(kind, str(kind)) for name, kind in kinds.items()}

    def _names(self) -> list[str]:
        return [self._engine.get_tensor_name(index) for index in range(self._engine.num_io_tensors)]

    def set_input(self, name: str, shape: Sequence[int], address: int) -> None:
        """Set the shape and the address of an input.

        Parameters
        ----------
        name
            Name of the input.
        shape
            Its shape.
        address
            Its address in device memory, or in host memory if it is one of ``on_host``.
        """
        self._checked = False
        if not self._context.set_input_shape(name, tuple(shape)):
            raise TensorRTError(f"input {name!r} cannot have the shape {list(shape)}{self._reason()}")
        self._set_address(name, address)

    def set_output(self, name: str, shape: Sequence[int], address: int) -> None:
        """Set the address of an output.

        Parameters
        ----------
        name
            Name of the output.
        shape
            Shape of its memory. The next run checks that the output has this shape.
        address
            Its address in device memory.
        """
        self._checked = False
        self._capacity[name] = tuple(shape)
        self._set_address(name, address)

    def can_be_captured(self, stream: int) -> bool:
        """Return True if a CUDA graph can capture a run on the stream."""
        return self._found.can_be_captured(self._context, stream)

    def execute(self, stream: int) -> None:
        """Enqueue a run on a CUDA stream. Raises TensorRTError if a shape is wrong or a kernel cannot be launched."""
        if not self._checked:
            self._check_shapes()
        plugin_errors.clear()
        self._found.errors.clear()
        if not self._context.execute_async_v3(stream) or plugin_errors:
            raise TensorRTError((plugin_errors[0] if plugin_errors else "the engine was not enqueued") + self._reason())

    def _set_address(self, name: str, address: int) -> None:
        if not self._context.set_tensor_address(name, address):
            raise TensorRTError(f"the address of {name!r} was refused{self._reason()}")

    def _check_shapes(self) -> None:
        """Check that each output has the shape of its memory."""
        try:
            missing = self._context.infer_shapes()
        except RuntimeError as error:
            raise TensorRTError(f"TensorRT cannot infer the outputs' shapes from the inputs{self._reason()}") from error
        if missing:
            raise TensorRTError(f"the inputs {', '.join(missing)} were not set")
        for name, capacity in self._capacity.items():
            found = tuple(self._context.get_tensor_shape(name))
            if found != capacity:
                raise TensorRTError(f"{name!r} is {list(found)}, expected {list(capacity)}")
        self._checked = True

    def _reason(self) -> str:
        """The last error that TensorRT logged, in parentheses; empty if it logged no error."""
        return f" ({self._found.errors[-1]})" if self._found.errors else ""
