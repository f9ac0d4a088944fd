"""Memory of a process that runs a bundle on a CPU, by formula.

    weights in the file    pages of the mapped weights file, which all processes of the bundle share
    packed weights         copies that ONNX Runtime packs for the products of each graph; bundles made before ``Linear``
    libraries              Python, ONNX Runtime and the other libraries: measured, ``LIBRARIES``
    graphs                 ONNX Runtime's objects for nodes and tensors: measured, ``BY_GRAPH_BYTE``
    caches                 source and generated cache of a batch at its end
    buffers                activations of the encoder, and the scores of a step

Left out: the texts and results of a long file, features of long recordings, tries, and pages that huge pages round up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tightbeam.deploy.bundle.manifest import GraphEntry
from tightbeam.deploy.bundle.protobuf import content, fields
from tightbeam.deploy.bundle.reader import Bundle
from tightbeam.deploy.runtimes._mapped_weights import graph_weights
from tightbeam.deploy.runtimes.base import ENCODED_TOGETHER

__all__ = ["BY_LAYER", "ProcessMemory", "buffer_bytes", "memory_of"]

LIBRARIES = 96_000_000
"""Bytes of a process with a model of 1 MB, half of them pages of files (2026-11-25, x86-64, Python 3.11)."""
BY_GRAPH_BYTE = 45
"""Bytes of memory for each byte of ``encoder.onnx`` and ``decoder.onnx`` (SmolLM2-135M's shape: 18 MB for 0.39 MB)."""
BY_LAYER = 300_000
"""The same for each layer of a graph, if the graphs are not at hand."""
BY_ACTIVATION = 12
"""Numbers by width and position that an encoder has at a time: a feed-forward part of 4 widths, before and after."""
PACKING = {b"MatMul", b"Gemm"}
"""Operators of ONNX Runtime that pack a constant matrix into memory of their session."""
MODEL_GRAPH, GRAPH_NODE, NODE_INPUT, NODE_OPERATOR = 7, 1, 1, 4


@dataclass(frozen=True)
class ProcessMemory:
    """Bytes of a process by what has them.

    Attributes
    ----------
    mapped_weights : int
        Pages of the weights file.
    packed_weights : int
        Anonymous copies of weights.
    graphs, caches, buffers, libraries : int
        As the module says.
    """

    mapped_weights: int
    packed_weights: int
    graphs: int
    caches: int
    buffers: int
    libraries: int = LIBRARIES

    @property
    def total(self) -> int:
        """Bytes that are resident at most, within 15 % in 22 runs of 8 bundles (docs/benchmarks.md)."""
        return sum(vars(self).values())


def buffer_bytes(B: int, M: int, N: int, *, width: int, vocabulary: int, score_heads: int) -> int:
    """Compute the bytes of buffers beside the caches.

    Parameters
    ----------
    B, M, N
        Samples, beams of each, and source positions.
    width
        Width of the encoder, or of a decoder-only model.
    vocabulary
        Tokens that the model scores.
    score_heads
        Heads whose scores [N, N] the encoder has at a time; 0 for an encoder with our operators.
    """
    together = min(B, max(1, ENCODED_TOGETHER // N))
    encoder = 4 * together * N * (BY_ACTIVATION * width + score_heads * N)
    return encoder + 2 * 4 * B * M * vocabulary


def memory_of(bundle: Bundle, *, B: int, M: int, N: int, caches: int) -> ProcessMemory:
    """Compute the memory of a process that runs a batch of a bundle.

    Parameters
    ----------
    bundle
        The bundle; its graphs are read.
    B, M, N
        Arguments of `buffer_bytes`.
    caches
        Bytes of the batch's caches.
    """
    manifest = bundle.manifest
    graphs = (manifest.encoder, manifest.decoder)
    packed = [_packed(bundle, graph) for graph in graphs]
    gone = {offset: size for by_offset in packed for offset, size in by_offset.items()}
    has_scores = b"Attention" in {operator for operator, _ in _nodes(bundle, manifest.encoder)}
    buffers = buffer_bytes(
        B,
        M,
        N,
        width=manifest.sizes.D,
        vocabulary=manifest.sizes.vocabulary,
        score_heads=manifest.sizes.H if has_scores else 0,
    )
    return ProcessMemory(
        mapped_weights=manifest.weights.bytes - sum(gone.values()),
        packed_weights=sum(size for by_offset in packed for size in by_offset.values()),
        graphs=BY_GRAPH_BYTE * sum(bundle.file(graph).stat().st_size for graph in graphs),
        caches=caches,
        buffers=buffers,
    )


def _packed(bundle: Bundle, graph: GraphEntry) -> dict[int, int]:
    """Return the bytes of the weights of a graph that its session packs, by their places in the file."""
    read = {name for operator, inputs in _nodes(bundle, graph) if operator in PACKING for name in inputs}
    return {weight.offset: weight.end - weight.offset for weight in graph_weights(bundle, graph) if weight.name in read}


def _nodes(bundle: Bundle, graph: GraphEntry) -> Iterator[tuple[bytes, list[str]]]:
    """Iterate over the operators of a graph, and the names that each reads; over none of a damaged graph."""
    try:
        for number, body in fields(memoryview(bundle.file(graph).read_bytes())):
            if number != MODEL_GRAPH:
                continue
            for inner, node in fields(body):
                if inner == GRAPH_NODE:
                    own = list(fields(node))
                    operator = next((content(value) for field, value in own if field == NODE_OPERATOR), b"")
                    yield operator, [content(value).decode() for field, value in own if field == NODE_INPUT]
    except (IndexError, KeyError, TypeError, ValueError):
        return
