"""The weights of both graphs of a bundle, as arrays over one read-only mapping of the weights file.

Both sessions read the same pages, which all processes of a machine share. ONNX Runtime alone would read the file for
each graph. The weights of a product that ONNX Runtime packs are read only once, while it loads, so their pages can be
released.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tightbeam.deploy.arrays import Array
from tightbeam.deploy.bundle.manifest import GraphEntry
from tightbeam.deploy.bundle.protobuf import content, fields, varints
from tightbeam.deploy.bundle.reader import Bundle
from tightbeam.deploy.bundle.weights_check import map_file
from tightbeam.deploy.errors import BundleError, short_repr

__all__ = ["MappedWeights", "graph_weights"]

MODEL_GRAPH, GRAPH_INITIALIZER = 7, 5
TENSOR_DIMS, TENSOR_TYPE, TENSOR_NAME, TENSOR_EXTERNAL = 1, 2, 8, 13
ENTRY_KEY, ENTRY_VALUE = 1, 2
TYPES: dict[int, type[np.generic]] = {
    **{1: np.float32, 2: np.uint8, 3: np.int8, 6: np.int32, 7: np.int64, 9: np.bool_, 10: np.float16, 11: np.float64},
    **{4: np.uint16, 5: np.int16, 12: np.uint32, 13: np.uint64},
}
"""Numbers of onnx.proto: of the fields read here, and of the element types. A weight of another type (bfloat16, which
numpy lacks) is left to ONNX Runtime."""
MOST_DIMENSIONS = 32
"""Most dimensions of an array of numpy. A weight of more, which no export writes, is left to ONNX Runtime too."""


class MappedWeights:
    """The mapped weights file of a bundle.

    Parameters
    ----------
    bundle : Bundle

    Raises
    ------
    BundleError
        The weights file cannot be read.
    """

    def __init__(self, bundle: Bundle) -> None:
        entry, check = bundle.manifest.weights, bundle.weights_check
        self._bundle = bundle
        self._file = map_file(bundle.file(entry), entry) if check is None else check.file

    def of(self, graph: GraphEntry) -> dict[str, Array]:
        """Return the weights of a graph as arrays over the file.

        Parameters
        ----------
        graph : GraphEntry
            One of the bundle's two graphs.

        Returns
        -------
        dict of str to Array
            By the names of the graph's initializers. Empty for a graph that cannot be read, which ONNX Runtime reports
            when it opens the session.

        Raises
        ------
        BundleError
            The graph has a weight that reaches outside of the file.
        """
        return {weight.name: self._array(weight) for weight in graph_weights(self._bundle, graph)}

    def _array(self, weight: _Weight) -> Array:
        assert self._file.content is not None  # an empty file holds no weight
        return np.frombuffer(self._file.content, weight.dtype, weight.size, weight.offset).reshape(weight.shape)

    def check_place(self) -> None:
        """Raise BundleError if the file's path names another file by now, which ONNX Runtime may have read."""
        self._file.check_place()

    def release_pages(self) -> None:
        """Remove the mapped pages from this process. They are read again from the system's file cache."""
        self._file.release_pages()


@dataclass(frozen=True)
class _Weight:
    name: str
    dtype: type[np.generic]
    shape: tuple[int, ...]
    offset: int

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def end(self) -> int:
        return self.offset + self.size * np.dtype(self.dtype).itemsize

    @property
    def is_mappable(self) -> bool:
        return self.size > 0 and self.offset % np.dtype(self.dtype).itemsize == 0


def graph_weights(bundle: Bundle, graph: GraphEntry) -> list[_Weight]:
    """Return the initializers of a graph whose data is in the bundle's weights file. Raises BundleError for one that
    reaches outside of it."""
    entry, path = bundle.manifest.weights, bundle.file(graph)
    try:
        model = memoryview(path.read_bytes())
        tensors = [
            _weight(tensor, entry.file)
            for number, body in fields(model)
            if number == MODEL_GRAPH
            for inner, tensor in fields(body)
            if inner == GRAPH_INITIALIZER
        ]
    except (IndexError, KeyError, TypeError, ValueError):
        return []
    weights = [weight for weight in tensors if weight is not None]
    for weight in weights:
        if not 0 <= weight.offset <= weight.end <= entry.bytes:
            raise BundleError(
                f"{path} has its weight {short_repr(weight.name)} at bytes {_shown(weight.offset)} to "
                f"{_shown(weight.end)} of {entry.file}, which has {entry.bytes}; export the model again"
            )
    return [weight for weight in weights if weight.is_mappable]


def _weight(tensor: memoryview, file: str) -> _Weight | None:
    own = list(fields(tensor))
    entries = [dict(fields(body)) for number, body in own if number == TENSOR_EXTERNAL]
    where = {content(entry[ENTRY_KEY]).decode(): content(entry[ENTRY_VALUE]).decode() for entry in entries}
    one = dict(own)
    if where.get("location") != file or one[TENSOR_TYPE] not in TYPES:
        return None
    shape: tuple[int, ...] = ()
    for number, value in own:
        if number == TENSOR_DIMS:
            shape += (value,) if isinstance(value, int) else tuple(varints(value))
    if len(shape) > MOST_DIMENSIONS:
        return None
    return _Weight(content(one[TENSOR_NAME]).decode(), TYPES[one[TENSOR_TYPE]], shape, int(where["offset"]))


def _shown(number: int) -> str:
    """Return an integer as short text; Python writes no number of thousands of digits."""
    bits = number.bit_length()
    return str(number) if bits <= 64 else f"about {'-' * (number < 0)}2^{bits - 1}"
