"""The memory that ONNX Runtime's sessions on the CPU work in: one arena for all of them, which can give it back.

A session's own arena grows to what its largest batch took, and gives memory back only at the end of a run that asks for
it, of which a served model has none after its last request. The arena here is the environment's, so that the run of
another session, a graph of one number, empties it.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import onnxruntime as ort

__all__ = ["SHRINKING", "shrink_arena", "use_shared_arena"]

SHRINKING = ort.RunOptions()
"""Options of a run after which the arena returns the memory that it does not use."""
SHRINKING.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
ONE_NUMBER = bytes.fromhex(
    "08083a370a100a017812017922084964656e746974791201675a0f0a0178120a"
    "0a08080112040a020801620f0a0179120a0a08080112040a02080142040a001011"
)
"""A model in ONNX: y = Identity(x), float32 [1]."""


def use_shared_arena(options: ort.SessionOptions) -> None:
    """Let a session on the CPU work in the arena that all share."""
    _emptying()
    options.add_session_config_entry("session.use_env_allocators", "1")


def shrink_arena() -> None:
    """Return the arena's unused memory to the C library."""
    session, binding = _emptying()
    session.run_with_iobinding(binding, SHRINKING)


@cache
def _emptying() -> tuple[ort.InferenceSession, ort.IOBinding]:
    """Register the arena with ONNX Runtime's environment, and open the session that empties it."""
    place = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
    ort.create_and_register_allocator(place, None)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.use_env_allocators", "1")
    session = ort.InferenceSession(ONE_NUMBER, options, providers=["CPUExecutionProvider"])
    number = np.zeros(1, np.float32)
    session.run(None, {"x": number})  # the arena never returns its first region, which is now a small one
    binding = session.io_binding()
    binding.bind_cpu_input("x", number)
    binding.bind_ortvalue_output("y", ort.OrtValue.ortvalue_from_numpy(np.zeros(1, np.float32)))
    return session, binding
