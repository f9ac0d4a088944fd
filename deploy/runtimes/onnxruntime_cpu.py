"""The runtime on ONNX Runtime's CPU provider, the default."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import nullcontext
from functools import partial

import numpy as np
import onnxruntime as ort

from tightbeam.deploy.arrays import Array, Ints
from tightbeam.deploy.bundle.manifest import GraphEntry
from tightbeam.deploy.bundle.reader import Bundle
from tightbeam.deploy.errors import ExecutionError, RuntimeSetupError
from tightbeam.deploy.runtimes._cpu_prefill import CpuPrefill
from tightbeam.deploy.runtimes._mapped_weights import MappedWeights
from tightbeam.deploy.runtimes._onnxruntime import (
    check_names,
    dtypes_of,
    open_session,
    register_library,
    run_bound,
    session_options,
    value_of,
)
from tightbeam.deploy.runtimes.base import (
    ALIGNMENT_KEYS,
    ALIGNMENT_QUERIES,
    CANDIDATE_OUTPUTS,
    ENCODED_TOGETHER,
    FEATURE_INPUTS,
    LOGITS,
    PROMPT_OUT,
    PROMPT_STARTS,
    SMALL_INPUTS,
    KnownTokens,
    StepOutputs,
    banned_capacity,
    by_group,
    lay_out,
    obstacle_to_groups,
    resolve,
    sizes_of,
    small_inputs,
    source_outputs,
)
from tightbeam.deploy.runtimes.kept_prompt import KeptPrompt
from tightbeam.deploy.runtimes.process.arena import SHRINKING, shrink_arena, use_shared_arena
from tightbeam.deploy.runtimes.process.freed_memory import release_freed_memory
from tightbeam.deploy.search.compaction import Compaction
from tightbeam.deploy.tries.trie import Trie
from tightbeam.plugins.library import cpu_library

__all__ = ["OnnxRuntimeCpu"]

RELEASE_SECONDS = 0.05
"""Time between two releases of the pages of weights that ONNX Runtime packs while it loads."""

LARGE_STATES = 1 << 18
"""Numbers of the states encoded at a time. From this size on, the encoder's working memory is released after its run: a
tenth of the memory of a process with Whisper base. Taking it again costs less than 1 % of such an encoder's time."""

UNLIMITED = 1 << 62
MANY_BEAMS = 16
"""Beams of a sample from which a step of its first row alone is worth a binding of its own."""
FAR_BELOW = np.float32(-1e8)
"""A bound between the beam scores of real rows and the score of stand-ins for missing rows, -1e9."""
FIRST_ROW = -1
"""Key of the binding of the first row."""

ALIGNMENT = 64
"""Bytes of a cache line and of the widest register."""


class OnnxRuntimeCpu:
    """Runtime over two sessions, one for each graph of a bundle.

    If the bundle's weights are compared in a thread, a step returns nothing before the end of the comparison.

    Parameters
    ----------
    bundle : Bundle
    threads : int, optional
        Threads of one operator; by default one for each core that the process may use.

    Raises
    ------
    BundleError
        ONNX Runtime refuses a graph, the graph differs from the manifest, or a weight reaches outside of its file.
    """

    def __init__(self, bundle: Bundle, threads: int | None = None) -> None:
        self.manifest = bundle.manifest
        self.wait_for_weights = bundle.wait_for_weights
        self._weights = MappedWeights(bundle)
        self._values: list[dict[str, ort.OrtValue]] = []  # a session refers to the values, so they live as long
        graphs = (self.manifest.prompt or self.manifest.encoder, self.manifest.decoder)
        with ThreadPoolExecutor(len(graphs)) as pool:
            opened = [pool.submit(self._session, bundle, graph, threads) for graph in graphs]
            while wait(opened, RELEASE_SECONDS).not_done:  # what ONNX Runtime packs is not read again
                self._weights.release_pages()
        self.encoder, self.decoder = (session.result() for session in opened)
        self._weights.check_place()
        self._weights.release_pages()
        self.dtypes = dtypes_of(self.decoder)
        check_names(bundle, self.dtypes)
        self.shapes = {tensor.name: tensor.shape for tensor in self.manifest.decoder.inputs}
        self._pool: tuple[tuple[int, int], dict[str, Array]] | None = None
        entry = self.manifest.prefill
        self.prefill = (
            None if entry is None else CpuPrefill(bundle, entry, partial(self._session, bundle, entry, threads))
        )

    def _session(self, bundle: Bundle, graph: GraphEntry, threads: int | None) -> ort.InferenceSession:
        options = session_options(threads)
        use_shared_arena(options)
        options.enable_mem_reuse = False  # the plan takes two thirds of a load; the arena reuses as much without one
        try:
            library = cpu_library()
        except FileNotFoundError as error:
            raise RuntimeSetupError(str(error)) from error
        register_library(options, library)
        values = {name: value_of(array) for name, array in self._weights.of(graph).items()}
        self._values.append(values)
        return open_session(bundle, graph, options, ["CPUExecutionProvider"], values)

    def begin(
        self,
        source: Array,
        attention_mask: Array,
        num_beams: int,
        positions: int,
        candidates: int,
        prompt_length: int = 1,
        groups: int = 1,
        *,
        aligned: bool = False,
    ) -> CpuDecoding:
        B, N = attention_mask.shape
        sizes = sizes_of(B, N, num_beams, positions, prompt_length, groups)
        try:
            encoded = self._encode(source, attention_mask, sizes, aligned=aligned)
            return CpuDecoding(self, encoded, sizes, candidates)
        except MemoryError as error:
            raise ExecutionError(f"no memory for {sizes['R']} rows; run fewer rows together ({error})") from error

    @property
    def logits_obstacle(self) -> str:
        return "" if LOGITS in self.dtypes else "this bundle does not give; export the model again, or"

    @property
    def trie_obstacle(self) -> str:
        if "trie_nodes" in self.shapes:
            return ""
        return "this bundle was made before its search head could take tries; export the model again"

    @property
    def groups_obstacle(self) -> str:
        return obstacle_to_groups(self.manifest.decoder.inputs)

    @property
    def alignment_obstacle(self) -> str:
        if ALIGNMENT_QUERIES in self.dtypes:
            return ""
        if not self.manifest.has_windows:
            return (
                "this bundle has no alignment heads, which exports of translators have; leave it out, or export a "
                "translator again"
            )
        if "alignment_heads" in self.manifest.generation:
            return "this bundle was made before times of tokens were added; export the model again"
        return (
            "the checkpoint's generation_config.json has no alignment_heads; leave it out, or add those of the "
            "published checkpoint and export again"
        )

    def joining(self) -> OnnxRuntimeCpu | None:
        return None if any(state.kind == "append" for state in self.manifest.cache_states) else self

    @property
    def encoded_together(self) -> int:
        return ENCODED_TOGETHER

    @property
    def most_samples(self) -> int:
        return UNLIMITED

    @property
    def steps_in_turn(self) -> int:
        return 1

    def encode(
        self,
        source: Array,
        attention_mask: Array,
        num_beams: int,
        into: Mapping[str, Array] | None = None,
        *,
        aligned: bool = False,
        kept: KeptPrompt | None = None,
    ) -> Mapping[str, Array]:
        B, N = attention_mask.shape
        try:
            sizes = sizes_of(B, N, num_beams, 0, 1)
            return self._encode(source, attention_mask, sizes, into, aligned=aligned, kept=kept)
        except MemoryError as error:
            raise ExecutionError(f"no memory to encode {B} samples; run fewer together ({error})") from error

    def open(self, places: int, num_beams: int, candidates: int, groups: int = 1) -> CpuDecoding:
        sizes = sizes_of(places, 0, num_beams, 0, 1, groups)
        names = {*source_outputs(self.manifest.encoder)} | {"attention_mask"} & self.shapes.keys()
        try:
            return CpuDecoding(self, self.allocate(sorted(names), sizes), sizes, candidates, used=0)
        except MemoryError as error:
            raise ExecutionError(f"no memory for {sizes['R']} rows; run fewer rows together ({error})") from error

    def _encode(
        self,
        source: Array,
        attention_mask: Array,
        sizes: Mapping[str, int],
        into: Mapping[str, Array] | None = None,
        *,
        aligned: bool = False,
        kept: KeptPrompt | None = None,
    ) -> dict[str, Array]:
        """Run the encoder over a few samples at a time. Returns its outputs by name: new arrays, or ``into``'s."""
        B, N, M = sizes["B"], sizes["N"], sizes["M"]
        names = source_outputs(self.manifest.encoder)
        encoded = self.allocate(names, sizes) if into is None else {name: into[name] for name in names}
        if aligned:
            keys = next(tensor for tensor in self.manifest.encoder.outputs if tensor.name == ALIGNMENT_KEYS)
            encoded[ALIGNMENT_KEYS] = np.empty(resolve(keys.shape, sizes), keys.dtype)
        count = max(1, ENCODED_TOGETHER // N)
        large = min(B, count) * N * self.manifest.sizes.D >= LARGE_STATES
        for start in range(0, B, count):
            samples = slice(start, start + count)
            rows = slice(start * M, (start + count) * M)
            last = start + count >= B
            options = SHRINKING if large and last else None
            if self.manifest.prompt is not None:
                caches = {name: array[samples] for name, array in encoded.items()}
                self._encode_parts(source[samples], attention_mask[samples], caches, options, kept)
                continue
            inputs = {
                **dict.fromkeys(("input_ids", *FEATURE_INPUTS), source[samples]),
                "attention_mask": attention_mask[samples],
                "num_beams": np.array([M], dtype=np.int64),
            }
            binding = self.encoder.io_binding()
            for tensor in self.manifest.encoder.inputs:
                binding.bind_cpu_input(tensor.name, inputs[tensor.name])
            for name, array in encoded.items():
                part = array[rows if self.shapes.get(name, ("B",))[0] == "R" else samples]
                binding.bind_ortvalue_output(name, value_of(part))
            run_bound(self.encoder, binding, "encoder", options)
        if large:
            release_freed_memory()
        encoded["attention_mask"] = attention_mask.copy()  # compaction must not change the caller's
        return encoded

    def _encode_parts(
        self,
        ids: Ints,
        mask: Ints,
        caches: Mapping[str, Array],
        options: ort.RunOptions | None,
        kept: KeptPrompt | None,
    ) -> None:
        """Write the keys and values of prompts [B, N] into caches [B, G, N, .], a part at a time, so that activations
        and scores take the memory of a part. A prompt that continues ``kept`` is encoded from there."""
        with nullcontext() if kept is None else kept.lock:
            self._encode_from(ids, mask, caches, options, kept)

    def _encode_from(
        self,
        ids: Ints,
        mask: Ints,
        caches: Mapping[str, Array],
        options: ort.RunOptions | None,
        kept: KeptPrompt | None,
    ) -> None:
        """Encode prompts as `_encode_parts` does, with the lock of ``kept`` held."""
        length = int(np.flatnonzero(mask.any(axis=0))[-1]) + 1 if mask.any() else 0
        first = 0 if kept is None else kept.begin(self, ids[0, :length], caches)
        binding = self.encoder.io_binding()
        for name, array in caches.items():
            value = value_of(array)
            binding.bind_ortvalue_input(name, value)
            binding.bind_ortvalue_output(name.replace("source", PROMPT_OUT, 1), value)
        for start in range(first, length, ENCODED_TOGETHER):
            part = np.ascontiguousarray(ids[:, start : min(length, start + ENCODED_TOGETHER)])
            binding.bind_cpu_input("input_ids", part)
            binding.bind_cpu_input(PROMPT_STARTS, np.full(len(ids), start, np.int64))
            last = start + ENCODED_TOGETHER >= length
            run_bound(self.encoder, binding, "prompt", options if last else None)
        if kept is not None:
            kept.keep(ids[0, :length], caches)

    def take_caches(self, sizes: Mapping[str, int]) -> dict[str, Array]:
        """Take cache buffers by decoder input from the pool, or allocate them if it has none of this shape.

        New buffers are zero: the decoder reads past the written positions under a mask, which needs finite numbers.
        """
        names = [state.input for state in self.manifest.cache_states]
        if not sizes["T_max"]:  # of a batch that takes its caches when it knows their size
            return self.allocate(names, sizes)
        pooled, self._pool = self._pool, None
        if pooled is not None and pooled[0] == (sizes["R"], sizes["T_max"]):
            return pooled[1]
        del pooled  # freed before the new ones are allocated
        return self.allocate(names, sizes)

    def allocate(self, names: Sequence[str], sizes: Mapping[str, int]) -> dict[str, Array]:
        """Allocate arrays of zeros for decoder inputs in one block. numpy requests huge pages for a large block, which
        saves page-table walks in attention."""
        shapes = {name: resolve(self.shapes[name], sizes) for name in names}
        dtypes = {name: np.dtype(self.dtypes[name]) for name in names}
        starts, end = lay_out({name: math.prod(shapes[name]) * dtypes[name].itemsize for name in names}, ALIGNMENT)
        block = np.zeros(end, np.uint8)
        return {
            name: np.frombuffer(block, dtypes[name], math.prod(shape), starts[name]).reshape(shape)
            for name, shape in shapes.items()
        }

    def release_buffers(self) -> None:
        self._pool = None
        shrink_arena()
        release_freed_memory()

    def return_caches(self, sizes: Mapping[str, int], caches: dict[str, Array]) -> None:
        """Return the buffers of a finished decoding to the pool."""
        self._pool = (sizes["R"], sizes["T_max"]), caches


class CpuDecoding:
    """One batch on the CPU. A step runs over bound buffers. Tensors are bound once for each number of samples. Only an
    ``append`` cache is a new tensor after every step.

    Buffers have ``sizes["B"]`` places, of which samples use the first ``used``. `inputs` and all bound tensors are
    views of these buffers. A compaction makes the views shorter; a sample that joins makes them longer. An ``append``
    cache has no spare places, so samples cannot join a batch that has one.
    """

    def __init__(
        self,
        runtime: OnnxRuntimeCpu,
        source: dict[str, Array],
        sizes: Mapping[str, int],
        candidates: int,
        used: int | None = None,
    ) -> None:
        self._runtime = runtime
        self._sizes = dict(sizes)
        self._used = sizes["B"] if used is None else used
        self._caches = caches = runtime.take_caches(sizes)
        states = runtime.manifest.cache_states
        names = runtime.shapes.keys()
        self._inputs = small_inputs(sizes)
        self._source = {name: array for name, array in source.items() if name in names}
        self._in_place = {state.input: caches[state.input] for state in states if state.kind == "in_place"}
        self._grown = {state.input: caches[state.input] for state in states if state.kind == "append"}
        self._outputs = {state.input: state.output for state in states}
        shape = sizes["B"], sizes["groups"] * candidates
        self._results = {name: np.zeros(shape, dtype) for name, dtype in CANDIDATE_OUTPUTS.items()}
        self._small = sorted(names & self._inputs.keys())
        self._shapes = runtime.shapes | {name: shape for name, (_, shape) in SMALL_INPUTS.items()}
        self._shapes |= {name: ("B", "C") for name in CANDIDATE_OUTPUTS}
        self._views = (self._inputs, self._source, self._in_place, self._results)
        self._whole = tuple(dict(views) for views in self._views)  # the buffers with all their places
        by_first = {"B": 1, "R": sizes["M"]}  # a tensor's rows for each sample; other tensors are not by sample
        self._rows = {name: by_first.get(str(shape[0])) if shape else None for name, shape in self._shapes.items()}
        self._bindings: dict[int, ort.IOBinding] = {}
        self._logits: Array | None = None  # of all places
        self._queries: Array | None = None  # likewise
        self._keys = source.get(ALIGNMENT_KEYS)
        self._view()

    @property
    def inputs(self) -> Mapping[str, Array]:
        return self._inputs

    def fetch_logits(self) -> None:
        runtime = self._runtime
        if self._logits is None and not runtime.logits_obstacle:
            vocabulary = runtime.manifest.sizes.vocabulary
            self._logits = np.zeros((self._sizes["B"] * self._sizes["M"], vocabulary), runtime.dtypes[LOGITS])
            self._bindings.clear()

    @property
    def logits(self) -> Array | None:
        return None if self._logits is None else self._logits[: self._used * self._sizes["M"]]

    def fetch_alignment(self) -> None:
        outputs = self._runtime.manifest.decoder.outputs
        queries = next((tensor for tensor in outputs if tensor.name == ALIGNMENT_QUERIES), None)
        if self._queries is None and queries is not None:
            self._queries = np.zeros((self._sizes["B"] * self._sizes["M"], *map(int, queries.shape[1:])), queries.dtype)
            self._bindings.clear()

    @property
    def alignment_queries(self) -> Array | None:
        return None if self._queries is None else self._queries[: self._used * self._sizes["M"]]

    @property
    def alignment_keys(self) -> Array | None:
        return self._keys

    def step(self) -> StepOutputs:
        try:
            return self._step()
        finally:
            self._runtime.wait_for_weights()

    def _step(self) -> StepOutputs:
        if self._first_row_counts() and self._step_first_row():
            scores, beams, tokens = self._results.values()
            return scores, beams, tokens
        binding = self._bindings.get(self._used) or self._bind()
        for name, array in self._grown.items():
            binding.bind_ortvalue_input(name, value_of(array))
            binding.bind_output(self._outputs[name], "cpu")
        run_bound(self._runtime.decoder, binding, "decoder")
        if self._grown:
            grown = binding.get_outputs()[-len(self._grown) :]  # in the order of binding: these are the last
            self._grown = {name: value.numpy() for name, value in zip(self._grown, grown, strict=True)}
        scores, beams, tokens = self._results.values()
        return scores, beams, tokens

    def prefill(self, sample: int, tokens: Ints, first: int, *, read: bool = False) -> KnownTokens | None:
        graph = self._runtime.prefill
        if graph is None:
            return None
        source = {name: array[sample : sample + 1] for name, array in self._source.items()}
        row = slice(sample * self._sizes["M"], sample * self._sizes["M"] + 1)
        caches = {name: (self._outputs[name], array[row]) for name, array in self._in_place.items()}
        try:
            return graph.run(source, caches, tokens, first, read=read)
        finally:
            self._runtime.wait_for_weights()

    def _first_row_counts(self) -> bool:
        """Return True in the first step of a single sample's beams, in which all but the first one are stand-ins."""
        if self._used != 1 or self._sizes["M"] < MANY_BEAMS or self._grown or self._sizes["groups"] > 1:
            return False
        scores = self._inputs["beam_scores"][0]
        return bool(self._logits is None and scores[0] > FAR_BELOW and (scores[1:] < FAR_BELOW).all())

    def _step_first_row(self) -> bool:
        """Run the first row alone. Returns False if it has too few candidates, so that other rows count, too.

        Candidates of other rows score below all of these, and no beam continues such a row, so that nothing reads what
        it would write into a cache.
        """
        run_bound(self._runtime.decoder, self._bindings.get(FIRST_ROW) or self._bind(first_row=True), "decoder")
        return bool((self._results["candidate_scores"] > FAR_BELOW).all())

    def _first_row(self, name: str, array: Array) -> Array:
        """The part of a tensor that belongs to the first row."""
        shape = (*self._shapes[name], "", "")
        return array[:1] if shape[0] == "R" else array[:, :1] if shape[1] == "M" else array

    def _bind(self, *, first_row: bool = False) -> ort.IOBinding:
        binding = self._runtime.decoder.io_binding()
        self._bindings[FIRST_ROW if first_row else self._used] = binding
        for name in self._small:
            array = by_group(name, self._inputs[name], self._sizes["groups"])
            binding.bind_ortvalue_input(name, value_of(self._first_row(name, array) if first_row else array))
        for name, array in self._source.items():
            binding.bind_ortvalue_input(name, value_of(self._first_row(name, array) if first_row else array))
        for name, array in self._results.items():
            binding.bind_ortvalue_output(name, value_of(by_group(name, array, self._sizes["groups"])))
        if self.logits is not None:
            binding.bind_ortvalue_output(LOGITS, value_of(self.logits))
        if self.alignment_queries is not None:
            queries = self.alignment_queries
            binding.bind_ortvalue_output(ALIGNMENT_QUERIES, value_of(queries[:1] if first_row else queries))
        for name, array in self._in_place.items():
            value = value_of(self._first_row(name, array) if first_row else array)
            binding.bind_ortvalue_input(name, value)
            binding.bind_ortvalue_output(self._outputs[name], value)
        return binding

    def _view(self) -> None:
        """Make the views of the places in use."""
        for views, whole in zip(self._views, self._whole, strict=True):
            for name, array in whole.items():
                rows = self._rows[name]
                views[name] = array if rows is None else array[: self._used * rows]

    def compact(self, compaction: Compaction) -> None:
        written = {"T_max": int(self._inputs["lengths"].max())}  # what is behind is never read
        for views in (*self._views, self._grown):
            for name, array in views.items():
                rows = self._rows[name]
                if rows is not None:
                    views[name] = compaction.apply(array, rows, self._part(name, written))
        self._used = compaction.remaining
        if self._grown:
            self._bindings.clear()  # each keeps the caches that it took and gave, and this many samples never return

    def free_places(self, count: int, width: int) -> dict[str, Array] | None:
        if width != self._sizes["N"] or count > self._sizes["B"] - self._used:
            return None
        rows = {name: self._rows[name] or 1 for name in self._source}
        return {
            name: array[self._used * rows[name] : (self._used + count) * rows[name]]
            for name, array in self._whole[1].items()
        }

    def reserve(self, *, width: int, positions: int, tokens: int) -> None:
        try:
            self._reserve({"N": width, "T_max": positions, "T_history": tokens})
        except MemoryError as error:
            raise ExecutionError(f"no memory for {self._sizes['R']} rows; run fewer rows together ({error})") from error

    def join(self, encoded: Mapping[str, Array], sample: int, *, width: int, positions: int, tokens: int) -> None:
        self.reserve(width=width, positions=positions, tokens=tokens)
        place, self._used = self._used, self._used + 1
        self._view()
        for name, array in self._source.items():
            rows = self._rows[name] or 1
            own = encoded[name][sample * rows : (sample + 1) * rows]
            target = array[place * rows : (place + 1) * rows]
            if name == "attention_mask":
                target[:, width:] = 0
            if own.ctypes.data != target.ctypes.data:  # else it was encoded in its place
                part = (slice(None), *self._part(name, {"N": width}))
                target[part] = own[part]

    def _part(self, name: str, sizes: Mapping[str, int]) -> tuple[slice, ...]:
        """The part of each row of a tensor that has these sizes, by letter."""
        return tuple(slice(sizes.get(str(letter))) for letter in self._shapes[name][1:])

    def _reserve(self, needed: Mapping[str, int]) -> None:
        """Replace buffers that are shorter than ``needed`` by larger ones, by half at least, with the same content."""
        sizes = self._sizes
        short = {name: max(size, sizes[name] * 3 // 2) for name, size in needed.items() if size > sizes[name]}
        if not short:
            return
        sizes |= short
        self._bindings.clear()
        for whole in self._whole:
            names = [name for name in whole if short.keys() & set(self._shapes[name])]
            if names and whole is self._whole[2] and not self._used:  # no sample has written into a cache
                larger = self._runtime.take_caches(sizes)
            else:
                larger = self._runtime.allocate([name for name in names if name not in SMALL_INPUTS], sizes)
            for name in names:
                old = whole[name]
                if name not in larger:
                    larger[name] = np.zeros(resolve(self._shapes[name], sizes | {"P": 0}), old.dtype)
                larger[name][tuple(map(slice, old.shape))] = old
            whole |= larger
        self._caches = dict(self._whole[2])
        self._view()

    def reserve_banned(self, count: int) -> None:
        rows, capacity = self._whole[0]["banned"].shape
        wanted = banned_capacity(count, capacity)
        if wanted != capacity:
            banned = self._whole[0]["banned"] = np.full((rows, wanted), -1, np.int64)
            self._inputs["banned"] = banned[: len(self._inputs["banned"])]
            self._bindings.clear()

    def use_trie(self, trie: Trie) -> None:
        for name, array in (("trie_offsets", trie.offsets), ("trie_tokens", trie.tokens)):
            self._whole[0][name] = self._inputs[name] = array
        self._bindings.clear()

    def close(self) -> None:
        self._runtime.return_caches(self._sizes, self._caches)

    @property
    def cache_bytes(self) -> tuple[int, int]:
        generated = [*(self._caches[name] for name in self._in_place), *self._grown.values()]
        fixed = sum(array.nbytes for name, array in self._whole[1].items() if name != "attention_mask")
        return fixed, sum(array.nbytes for array in generated)
