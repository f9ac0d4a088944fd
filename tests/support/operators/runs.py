"""One node of an operator on ONNX Runtime, as its function or as our kernel; and the check of its result."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from support.operators.cases import MODULES, check_candidates, outputs_of
from support.tolerance import assert_close
from tightbeam.plugins.ops import DOMAIN, IR_VERSION, OPERATORS, OPSET, VERSION, functions
from tightbeam.plugins.ops._case import Array, Case

OUTPUT_TYPES = {
    **{"beams": np.int64, "tokens": np.int64, "quantized": np.int8},
    **dict.fromkeys(("embeddings", "lse", "scores", "scale"), np.float32),
}
OUTPUTS_OF_RANK_3 = {
    (name, "output") for name in ("LatentAttention", "QuantizedLatentAttention", "EncoderAttention", "PromptAttention")
}
_sessions: dict[tuple[Any, ...], ort.InferenceSession] = {}


def model_of(
    name: str, inputs: dict[str, Array], attributes: dict[str, Any], outputs: Sequence[str], with_function: bool = True
) -> onnx.ModelProto:
    """A model of one node, all dimensions dynamic."""
    operator = OPERATORS[name]
    node_inputs = [tensor if tensor in inputs else "" for tensor in operator.input_names]
    while node_inputs[-1] == "":
        node_inputs.pop()
    node = onnx.helper.make_node(name, node_inputs, list(outputs), domain=DOMAIN, **attributes)

    def info(tensor: str, dtype: Any, rank: int) -> onnx.ValueInfoProto:
        kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        return onnx.helper.make_tensor_value_info(tensor, kind, [f"{tensor}{axis}" for axis in range(rank)])

    taken = [info(tensor, array.dtype, array.ndim) for tensor, array in inputs.items()]
    kinds = {array.dtype for tensor, array in inputs.items() if tensor not in operator.float32}
    first_float = next((dtype for dtype in kinds if dtype.kind in "fV"), np.dtype(np.float32))
    given = []
    updated = {entry.name: entry.updates for entry in operator.outputs if entry.updates is not None}
    for tensor in outputs:
        dtype = inputs[updated[tensor]].dtype if tensor in updated else OUTPUT_TYPES.get(tensor, first_float)
        rank = 4 if tensor.endswith("cache_out") else 3 if (name, tensor) in OUTPUTS_OF_RANK_3 else 2
        given.append(info(tensor, dtype, rank))
    graph = onnx.helper.make_graph([node], name, taken, given)
    opsets = [onnx.helper.make_opsetid("", OPSET), onnx.helper.make_opsetid(DOMAIN, VERSION)]
    bodies = functions([node]) if with_function else []
    model = onnx.helper.make_model(graph, opset_imports=opsets, functions=bodies, ir_version=IR_VERSION)
    if with_function:
        onnx.checker.check_model(model)
    return model


def session_of(
    model: onnx.ModelProto, library: Path | None, providers: Sequence[str] = ("CPUExecutionProvider",)
) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 2
    options.enable_cpu_mem_arena = False  # outputs of their own, so that a sanitizer reports writes past them
    if library is not None:
        options.register_custom_ops_library(str(library))
    return ort.InferenceSession(model.SerializeToString(), options, providers=list(providers))


def run(name: str, case: Case, library: Path | None, outputs: Sequence[str] | None = None) -> dict[str, Array]:
    """The operator's outputs by name; ``library`` None runs the function body."""
    outputs = tuple(outputs if outputs is not None else outputs_of(name, case))
    kinds = tuple((tensor, str(array.dtype), array.ndim) for tensor, array in case.inputs.items())
    key = (name, kinds, tuple(sorted(case.attributes.items())), outputs, library)
    if key not in _sessions:
        _sessions[key] = session_of(model_of(name, case.inputs, case.attributes, outputs), library)
    return dict(zip(outputs, _sessions[key].run(None, case.inputs), strict=True))


def check(name: str, case: Case, found: dict[str, Array], luck: float = 1) -> None:
    """Raise AssertionError where ``found`` is further from the definition than the definition in float32 is allowed,
    and than the rounding that the operator's kernels are allowed (``rounding`` of its cases).

    ``luck``: how many times further, for a random case of few numbers (``tolerance.LUCK``).
    """
    exact, naive = MODULES[name].exact(case), MODULES[name].exact(case, np.float32)
    if name in ("BeamTopK", "QuantizedBeamTopK"):
        check_candidates(case, found, exact, naive, luck)
        found = {"logits": found["logits"]} if case.inputs.get("all_logits") else {}
    rounding = getattr(MODULES[name], "rounding", lambda case: {})(case)
    for tensor, result in found.items():
        if tensor == "blocked" or tensor.endswith("cache_out"):
            np.testing.assert_array_equal(result, naive[tensor], err_msg=tensor)
        else:
            finite = np.isfinite(exact[tensor])
            np.testing.assert_array_equal(np.isfinite(result), finite, err_msg=tensor)
            extra = rounding.get(tensor, 0.0)
            assert_close(result[finite], exact[tensor][finite], naive[tensor][finite], luck, extra)
