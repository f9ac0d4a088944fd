"""The instruction set for which the CPU library's kernels run here (``kernels/cpu/instruction_sets.cpp``)."""

from __future__ import annotations

import ctypes

from tightbeam.plugins.library import cpu_library

__all__ = ["INSTRUCTION_SETS", "instruction_set"]

INSTRUCTION_SETS = {
    "baseline": "what every processor of this architecture has",
    "v3": "AVX2 with FMA",
    "v3_vnni": "AVX2 with FMA and AVX-VNNI",
    "v4": "AVX-512 F, BW, DQ and VL",
    "v4_vnni": "AVX-512 F, BW, DQ, VL and VNNI",
    "v4_amx": "AVX-512 F, BW, DQ, VL and VNNI, and AMX for matrix products of bytes",
    "dotprod": "NEON with dot products of bytes",
    "i8mm": "NEON with dot products and matrix products of bytes",
}
"""Name, as the environment variable ``TIGHTBEAM_ISA`` takes it -> its instructions."""


def instruction_set() -> str | None:
    """Ask the CPU library which instruction set its kernels use.

    Returns
    -------
    str or None
        A name of ``INSTRUCTION_SETS``: the best one that this processor has and ``TIGHTBEAM_ISA`` allows. None if the
        library was not built, cannot be loaded, or is older than this function.
    """
    try:
        path = cpu_library()
        function = None if path is None else getattr(ctypes.CDLL(str(path)), "tightbeam_instruction_set", None)
    except OSError:
        return None
    if function is None:
        return None
    function.restype = ctypes.c_char_p
    return str(function().decode())
