"""The graph `prefill.onnx` on a CPU: the decoder over several successive tokens of one row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property

import numpy as np
import onnxruntime as ort

from tightbeam.deploy.arrays import Array, Ints
from tightbeam.deploy.bundle.manifest import GraphEntry, Manifest
from tightbeam.deploy.bundle.reader import Bundle
from tightbeam.deploy.errors import BundleError
from tightbeam.deploy.runtimes._onnxruntime import run_bound, value_of
from tightbeam.deploy.runtimes.base import (
    ALIGNMENT_QUERIES,
    LOGITS,
    PROMPT_STARTS,
    KnownTokens,
    resolve,
    source_outputs,
)

__all__ = ["CpuPrefill"]

SMALL = ("tokens", "positions", PROMPT_STARTS)
"""Inputs of the graph that are neither a source nor a cache."""


class CpuPrefill:
    """The session of the graph, which is opened when it is needed first.

    Parameters
    ----------
    bundle : Bundle
    entry : GraphEntry
    open_session : function
        Opens it. Raises BundleError.

    Raises
    ------
    BundleError
        The graph has other inputs or outputs than the decoder.
    """

    def __init__(self, bundle: Bundle, entry: GraphEntry, open_session: Callable[[], ort.InferenceSession]) -> None:
        if names := _unexpected_names(bundle.manifest, entry):
            shown = ", ".join(sorted(map(repr, names)))
            raise BundleError(f"{bundle.path}: unknown or missing in {entry.file}: {shown}; export the model again")
        self._entry, self._open_session = entry, open_session
        self._caches_alone = ort.RunOptions()
        self._caches_alone.only_execute_path_to_fetches = True

    @cached_property
    def session(self) -> ort.InferenceSession:
        """The session."""
        return self._open_session()

    def run(
        self,
        source: Mapping[str, Array],
        caches: Mapping[str, tuple[str, Array]],
        tokens: Ints,
        first: int,
        *,
        read: bool,
    ) -> KnownTokens:
        """Run the graph.

        Parameters
        ----------
        source : mapping of str to array [1, ...]
            The decoder's source inputs, of one sample.
        caches : mapping of str to (str, array [1, ...])
            Inputs of the generated caches, with the names of their outputs and the buffers of one row.
        tokens : int64 [S]
        first : int
            The position of the first token.
        read : bool
            Compute the logits, and the queries of alignment heads.

        Returns
        -------
        KnownTokens
            Without ``read`` it holds nothing.
        """
        positions = np.arange(first, first + len(tokens))[:, None]
        small = dict(zip(SMALL, (tokens[:, None], positions, np.array([first])), strict=True))
        binding = self.session.io_binding()
        for tensor in self._entry.inputs:
            if tensor.name not in caches:
                binding.bind_cpu_input(tensor.name, small.get(tensor.name, source.get(tensor.name)))
        for name, (output, buffer) in caches.items():
            value = value_of(buffer)
            binding.bind_ortvalue_input(name, value)
            binding.bind_ortvalue_output(output, value)
        results = {
            tensor.name: np.empty(resolve(tensor.shape, {"R": len(tokens)}), tensor.dtype)
            for tensor in self._entry.outputs
            if read and tensor.name in (LOGITS, ALIGNMENT_QUERIES)
        }
        for name, array in results.items():
            binding.bind_ortvalue_output(name, value_of(array))
        run_bound(self.session, binding, "decoder", None if read else self._caches_alone)
        return KnownTokens(results.get(LOGITS), results.get(ALIGNMENT_QUERIES))


def _unexpected_names(manifest: Manifest, entry: GraphEntry) -> set[str]:
    """Return the names that make the graph unusable: missing ones, and those that are not as in the decoder."""
    decoder = {tensor.name: tensor for tensor in (*manifest.decoder.inputs, *manifest.decoder.outputs)}
    tensors = {tensor.name: tensor for tensor in (*entry.inputs, *entry.outputs)}
    caches = {state.input for state in manifest.cache_states}
    given = {*SMALL, *source_outputs(manifest.encoder), "attention_mask", *caches}
    wrong = {name for name, tensor in tensors.items() if name != PROMPT_STARTS and tensor != decoder.get(name)}
    wrong |= {tensor.name for tensor in entry.inputs} - given
    return wrong | {LOGITS, *caches, *(state.output for state in manifest.cache_states)} - tensors.keys()
