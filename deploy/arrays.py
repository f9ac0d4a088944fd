"""Array types."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["Array", "Bools", "Floats", "Ints", "Nodes"]

Array: TypeAlias = NDArray[Any]
Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float32]
Nodes: TypeAlias = NDArray[np.int32]
"""Nodes of a trie, or numbers of its edges or tokens."""
Bools: TypeAlias = NDArray[np.bool_]
