"""Weights that both graphs of a bundle read, such as a tied embedding, mapped into memory once for both.

ONNX Runtime packs the weights of a product into memory of its own, and unmaps the file. An embedding stays mapped for
its lookups: once for each graph, beside the packed copy. Here it is mapped once, and its pages can be released.
"""

from __future__ import annotations

import math
import mmap
from dataclasses import dataclass

import numpy as np

from tightbeam.deploy.arrays import Array
from tightbeam.deploy.bundle.manifest import GraphEntry
from tightbeam.deploy.bundle.protobuf import fields, varints
from tightbeam.deploy.bundle.reader import Bundle

__all__ = ["TiedWeights"]

MODEL_GRAPH, GRAPH_INITIALIZER = 7, 5
TENSOR_DIMS, TENSOR_TYPE, TENSOR_NAME, TENSOR_EXTERNAL = 1, 2, 8, 13
ENTRY_KEY, ENTRY_VALUE = 1, 2
TYPES: dict[int, type[np.generic]] = {1: np.float32, 2: np.uint8, 10: np.float16, 7: np.int64, 6: np.int32}
"""Numbers of onnx.proto: of the fields read here, and of the element types."""


class TiedWeights:
    """Tied weights by graph file and name, as arrays over the mapped weights file.

    An unreadable graph has none here; ONNX Runtime reports it when it opens the session.
    """

    def __init__(self, bundle: Bundle) -> None:
        manifest = bundle.manifest
        with bundle.file(manifest.weights).open("rb") as stream:
            self._file = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) if manifest.weights.bytes else None
        found = {graph.file: _weights(bundle, graph) for graph in (manifest.encoder, manifest.decoder)}
        encoder, decoder = ({weight.offset for weight in weights} for weights in found.values())
        self.by_graph = {
            file: {weight.name: self._array(weight) for weight in weights if weight.offset in encoder & decoder}
            for file, weights in found.items()
        }

    def _array(self, weight: _Weight) -> Array:
        assert self._file is not None  # an empty file holds no weight
        return np.frombuffer(self._file, weight.dtype, weight.size, weight.offset).reshape(weight.shape)

    def release_pages(self) -> None:
        """Remove the mapped pages from this process. They are read again from the system's file cache."""
        if self._file is not None and hasattr(mmap, "MADV_DONTNEED"):
            self._file.madvise(mmap.MADV_DONTNEED)


@dataclass(frozen=True)
class _Weight:
    name: str
    dtype: type[np.generic]
    shape: tuple[int, ...]
    offset: int

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def is_within(self, file_bytes: int) -> bool:
        itemsize = np.dtype(self.dtype).itemsize
        return 0 <= self.offset <= file_bytes - self.size * itemsize and self.offset % itemsize == 0


def _weights(bundle: Bundle, graph: GraphEntry) -> list[_Weight]:
    """Return the initializers of a graph whose data is in the bundle's weights file."""
    entry = bundle.manifest.weights
    try:
        model = memoryview(bundle.file(graph).read_bytes())
        tensors = [
            _weight(tensor, entry.file)
            for number, body in fields(model)
            if number == MODEL_GRAPH
            for inner, tensor in fields(body)
            if inner == GRAPH_INITIALIZER
        ]
    except (IndexError, KeyError, TypeError, ValueError):
        return []
    return [weight for weight in tensors if weight is not None and weight.is_within(entry.bytes)]


def _weight(tensor: memoryview, file: str) -> _Weight | None:
    own = list(fields(tensor))
    entries = [dict(fields(body)) for number, body in own if number == TENSOR_EXTERNAL]
    where = {_text(entry[ENTRY_KEY]): _text(entry[ENTRY_VALUE]) for entry in entries}
    one = dict(own)
    if where.get("location") != file or one[TENSOR_TYPE] not in TYPES:
        return None
    shape: tuple[int, ...] = ()
    for number, value in own:
        if number == TENSOR_DIMS:
            shape += (value,) if isinstance(value, int) else tuple(varints(value))
    return _Weight(_text(one[TENSOR_NAME]), TYPES[one[TENSOR_TYPE]], shape, int(where["offset"]))


def _text(value: int | memoryview) -> str:
    if isinstance(value, int):
        raise TypeError("a number, expected text")
    return value.tobytes().decode()
