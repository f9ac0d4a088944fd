"""One call of a TensorRT plugin, as TensorRT makes it, with memory of the host or of a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from support.operators.cases import outputs_of
from support.operators.kernel_runs import Memory, Tensors, run_kernels, types_of
from tightbeam.plugins.ops._case import Array, Case
from tightbeam.plugins.tensorrt.distribution import load_tensorrt
from tightbeam.plugins.tensorrt.launcher import Launcher
from tightbeam.plugins.tensorrt.plugin import make_plugin, plugin_errors

__all__ = ["described", "described_range", "node_of", "plugin_of", "run_plugin"]


def node_of(name: str, case: Case) -> str:
    """The attribute ``tensors`` of a case's node."""
    return f"{' '.join(case.inputs)} -> {' '.join(outputs_of(name, case))}"


def plugin_of(name: str, case: Case, launcher: Launcher | None = None) -> Any:
    return make_plugin(name, node_of(name, case), case.attributes, launcher)


def described(shape: Iterable[int], kind: str) -> Any:
    """A tensor as TensorRT describes it."""
    trt = load_tensorrt().trt
    names = {"float32": "FLOAT", "float16": "HALF", "bfloat16": "BF16"}
    description = trt.PluginTensorDesc()
    description.dims = trt.Dims(list(shape))
    description.type = getattr(trt.DataType, names.get(kind, kind.upper()))
    description.format = trt.TensorFormat.LINEAR
    return description


def described_range(shape: Iterable[int], kind: str) -> Any:
    """A tensor as TensorRT describes it while an engine is built, ``shape`` the largest."""
    description = load_tensorrt().trt.DynamicPluginTensorDesc()
    description.desc = described(shape, kind)
    description.max = description.desc.dims
    return description


def run_plugin(
    name: str, case: Case, dtype: str, launcher: Launcher, memory: Callable[[Array], Memory], *, in_place: bool = False
) -> dict[str, Array]:
    """``run_kernels`` through the plugin's ``enqueue``. Raises RuntimeError for the plugin's errors too."""
    return run_kernels(name, case, dtype, launcher, memory, in_place=in_place, call=_enqueue)


def _enqueue(
    name: str, case: Case, dtype: str, inputs: Tensors, outputs: Tensors, workspace: int, launcher: Launcher
) -> None:
    types = types_of(name, dtype)
    plugin_errors.clear()
    code = plugin_of(name, case, launcher).enqueue(
        *([described(at.shape, types[tensor]) for tensor, at in tensors.items()] for tensors in (inputs, outputs)),
        *([at.address for at in tensors.values()] for tensors in (inputs, outputs)),
        workspace,
        0,
    )
    if code != 0 or plugin_errors:
        raise RuntimeError(f"{name} returned {code}: {plugin_errors}")
