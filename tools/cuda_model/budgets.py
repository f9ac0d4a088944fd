"""Most instructions of each kernel, on any compute capability that the documents name: `make cuda-check`.

A budget is what the kernel has, and a twentieth more for another compiler. What needs more is either a mistake, such as
a loop that was unrolled or an address that is worked out anew, or a change that says why it raises the number here. No
kernel may spill registers, and none may load single bytes from shared memory.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["BUDGETS", "Budget"]


@dataclass(frozen=True)
class Budget:
    """``instructions``: of the whole code; ``turn``: that a warp executes in one turn of its longest loop; ``spills``,
    ``byte_loads``: instructions of the code.
    """

    instructions: int
    turn: int
    reason: str
    spills: int = 0
    byte_loads: int = 0


BUDGETS: dict[str, Budget] = {}
"""Kernel as the plans name it, without its namespace -> its budget."""
