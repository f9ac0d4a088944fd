"""The library ``libtightbeam_tensorrt.so``, which plans the kernels that a call of an operator launches.

The structs mirror ``plugins/tensorrt/library.cpp``.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tightbeam.plugins.library import tensorrt_library
from tightbeam.plugins.ops import OPERATORS
from tightbeam.plugins.schema import fingerprint
from tightbeam.plugins.tensorrt.errors import TensorRTError

__all__ = ["FLOAT_TYPES", "Gpu", "Kernel", "Plan", "TensorAt", "plan"]

FLOAT_TYPES = ("float32", "float16", "bfloat16")
"""Float types in the order of the library's numbers for them."""


@dataclass(frozen=True)
class Gpu:
    """The properties of a GPU that plans depend on.

    Attributes
    ----------
    multiprocessors
        Number of streaming multiprocessors.
    shared_bytes
        Shared memory that one block may have.
    capability
        Compute capability; 90 is 9.0.
    """

    multiprocessors: int
    shared_bytes: int
    capability: int = 90


@dataclass(frozen=True)
class TensorAt:
    """A tensor: its shape and its address on the device."""

    shape: tuple[int, ...]
    address: int


@dataclass(frozen=True)
class Kernel:
    """A kernel to launch.

    Attributes
    ----------
    name
        A C++ expression with the template's arguments.
    grid, block
        Blocks of the grid, and threads of a block.
    shared_bytes
        Dynamic shared memory of a block.
    parameters
        Address of the array of pointers that ``cuLaunchKernel`` takes, valid until the next plan of this thread.
    """

    name: str
    grid: tuple[int, int, int]
    block: int
    shared_bytes: int
    parameters: int


@dataclass(frozen=True)
class Plan:
    """The kernels of a call.

    Attributes
    ----------
    workspace_bytes
        Device memory that the kernels need beside the call's tensors.
    most_workspace_bytes
        An upper bound of the workspace of this call and of all calls with smaller sizes.
    kernels
        The kernels, in the order in which they run.
    """

    workspace_bytes: int
    most_workspace_bytes: int
    kernels: tuple[Kernel, ...]


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("rank", ctypes.c_int32),
        ("present", ctypes.c_int32),
    )


class _Kernel(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("parameters", ctypes.c_void_p),
        ("grid", ctypes.c_int32 * 3),
        ("block", ctypes.c_int32),
        ("shared_bytes", ctypes.c_uint32),
    )


class _Plan(ctypes.Structure):
    _fields_ = (
        ("workspace_bytes", ctypes.c_uint64),
        ("most_workspace_bytes", ctypes.c_uint64),
        ("kernels", ctypes.POINTER(_Kernel)),
        ("count", ctypes.c_int32),
    )


@functools.cache
def _library() -> ctypes.CDLL:
    path = tensorrt_library()
    if path is None:
        raise TensorRTError(
            "libtightbeam_tensorrt.so was not compiled, and the TensorRT plugins need it. Install a C++ compiler "
            "(GCC 12 or newer, or Clang) and then tightbeam again"
        )
    library = ctypes.CDLL(str(path))
    library.tightbeam_operators.restype = ctypes.c_char_p
    if library.tightbeam_operators().decode() != fingerprint(OPERATORS.values()):
        raise TensorRTError(f"{path} was compiled for other operators than this package has; install tightbeam again")
    library.tightbeam_plan.restype = ctypes.c_char_p
    library.tightbeam_plan.argtypes = (
        ctypes.c_char_p,
        ctypes.c_int32,
        ctypes.POINTER(_Tensor),
        ctypes.POINTER(_Tensor),
        ctypes.POINTER(ctypes.c_double),
        ctypes.c_int32,
        ctypes.c_uint32,
        ctypes.c_int32,
        ctypes.c_void_p,
        ctypes.POINTER(_Plan),
        ctypes.c_int32,
    )
    return library


def plan(
    name: str,
    float_type: str,
    inputs: Mapping[str, TensorAt],
    outputs: Mapping[str, TensorAt],
    attributes: Mapping[str, float],
    gpu: Gpu,
    workspace: int,
    *,
    scalars_on_host: bool = False,
) -> Plan:
    """Plan the kernels that a call of an operator launches.

    Parameters
    ----------
    name
        Name of the operator.
    float_type
        One of ``FLOAT_TYPES``.
    inputs, outputs
        The tensors that the node has, by name.
    attributes
        Values by name. A missing attribute has its default.
    gpu
        The GPU that the kernels run on.
    workspace
        Address of ``workspace_bytes`` bytes of device memory; 0 to learn the sizes only.
    scalars_on_host
        True if scalar inputs are in host memory, as in ONNX Runtime. TensorRT has them on the device.

    Returns
    -------
    Plan
        The kernels and the sizes of their workspace.

    Raises
    ------
    TensorRTError
        The library is missing, the shapes contradict the table or one another, or a value is not valid.
    """
    operator = OPERATORS[name]
    found = _Plan()
    failure = _library().tightbeam_plan(
        name.encode(),
        FLOAT_TYPES.index(float_type),
        _tensors(operator.input_names, inputs),
        _tensors(operator.output_names, outputs),
        (ctypes.c_double * len(operator.attributes))(
            *(attributes.get(a.name, a.default or 0) for a in operator.attributes)
        ),
        gpu.multiprocessors,
        gpu.shared_bytes,
        gpu.capability,
        workspace,
        ctypes.byref(found),
        scalars_on_host,
    )
    if failure is not None:
        raise TensorRTError(failure.decode())
    kernels = [found.kernels[i] for i in range(found.count)]
    return Plan(
        found.workspace_bytes,
        found.most_workspace_bytes,
        tuple(Kernel(k.name.decode(), tuple(k.grid), k.block, k.shared_bytes, k.parameters) for k in kernels),
    )


def _tensors(names: Sequence[str], given: Mapping[str, TensorAt]) -> ctypes.Array[_Tensor]:
    unknown = given.keys() - set(names)
    if unknown:
        raise TensorRTError(f"the operator has no tensors {', '.join(sorted(unknown))}, expected {', '.join(names)}")
    tensors = (_Tensor * len(names))()
    for tensor, name in zip(tensors, names, strict=True):
        if name in given:
            shape = given[name].shape
            tensor.shape = (ctypes.c_int64 * len(shape))(*shape)
            tensor.data, tensor.rank, tensor.present = given[name].address, len(shape), 1
    return tensors
