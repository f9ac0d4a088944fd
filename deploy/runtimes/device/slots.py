"""A batch on a GPU that samples join: it has as many slots as places, and every step runs all slots.

A slot has a fixed address, and a sample stays in its slot when other samples join or end. So one captured step is valid
as long as the buffers are large enough. The search sees the samples by place, 0..B-1, and compacts the places; each
place has a slot, and compaction moves nothing on the GPU. A slot without a sample runs as a sample of one token and one
source position, whose numbers nobody reads.
"""

from __future__ import annotations

import heapq
import math
import weakref
from collections.abc import Mapping, Sequence

import numpy as np

from tightbeam.deploy.arrays import Array
from tightbeam.deploy.runtimes.base import SMALL_INPUTS, Encoded, StepOutputs, resolve, sizes_of
from tightbeam.deploy.runtimes.device.decoding import DeviceDecoding
from tightbeam.deploy.runtimes.device.graphs import BYTES, DeviceGraphs, DeviceTensor
from tightbeam.deploy.runtimes.device.logits import DeviceLogits
from tightbeam.deploy.runtimes.device.memory_pool import BatchMemory
from tightbeam.deploy.runtimes.device.places import Places
from tightbeam.deploy.runtimes.device.steps_alone import StepsAlone
from tightbeam.deploy.runtimes.kept_prompt import KeptPrompt
from tightbeam.deploy.search.compaction import Compaction
from tightbeam.deploy.tries.trie import Trie

__all__ = ["SlotDecoding", "SlotRuntime"]

MASK = "attention_mask"
UNLIMITED = 1 << 62
STEPS_IN_TURN = 16
"""Steps that a batch takes in turn, because a change of batch binds the decoder again and captures a step."""


class EncodedSamples(dict[str, DeviceTensor]):
    """Source inputs of the decoder by name. Their memory returns to the pool with the last reference to this object."""


class SlotRuntime:
    """The part of a runtime on a GPU that joining needs."""

    def __init__(self, graphs: DeviceGraphs) -> None:
        self._graphs = graphs

    @property
    def encoded_together(self) -> int:
        return self._graphs.encoded_together

    @property
    def most_samples(self) -> int:
        return self._graphs.largest.get("B", UNLIMITED)

    @property
    def steps_in_turn(self) -> int:
        return STEPS_IN_TURN

    def encode(
        self,
        source: Array,
        attention_mask: Array,
        num_beams: int,
        into: Encoded | None = None,
        *,
        aligned: bool = False,  # refused before, by the obstacle
        kept: KeptPrompt | None = None,  # encoded whole
    ) -> EncodedSamples:
        graphs, (B, N) = self._graphs, attention_mask.shape
        graphs.check_limits(B, num_beams, N, 0, 0)
        sizes = sizes_of(B, N, num_beams, 0, 1)
        given = graphs.given(source, attention_mask, num_beams)
        wanted = graphs.bytes_sent(given) | graphs.bytes_encoded(sizes)
        memory = BatchMemory(graphs.encoded_on_device, graphs.encoded_on_host, wanted)
        encoded = EncodedSamples(graphs.encode_batch(given, sizes, memory))
        weakref.finalize(encoded, memory.put_back)
        return encoded

    def open(self, places: int, num_beams: int, candidates: int, groups: int = 1) -> SlotDecoding:
        return SlotDecoding(self._graphs, places, num_beams, candidates, groups)


class SlotDecoding(StepsAlone):
    """A batch that begins without samples; they join it.

    Parameters
    ----------
    graphs : DeviceGraphs
    places : int
        Slots.
    num_beams : int
        M.
    candidates : int
        C.
    groups : int
        Groups of a sample's beams.
    """

    def __init__(self, graphs: DeviceGraphs, places: int, num_beams: int, candidates: int, groups: int = 1) -> None:
        self._graphs, self._device, self._candidates = graphs, graphs.device, candidates
        self._sizes = {**sizes_of(places, 0, num_beams, 0, 1, groups), "T_history": 0}
        self._slots = np.zeros(0, np.int64)  # [B'], of the samples by place
        self._free = list(range(places))  # a heap
        self._places = Places(self._sizes)
        self._decoding: DeviceDecoding  # made by the first `reserve`
        self._trie: Trie | None = None
        self._source: dict[str, DeviceTensor] = {}
        self._states: dict[str, DeviceTensor] = {}

    @property
    def inputs(self) -> Mapping[str, Array]:
        return self._places.inputs

    def reserve(self, *, width: int, positions: int, tokens: int) -> None:
        """Replace buffers that are too short by larger ones, by half at least, with the same content.

        They are no larger than the graphs were built for. A sample that needs more is refused when it joins.
        """
        largest, sizes = self._graphs.largest, self._sizes
        short = {}
        for name, needed in {"N": width, "T_max": positions, "T_history": tokens}.items():
            most = largest.get(name, UNLIMITED)
            if min(needed, most) > sizes[name]:
                short[name] = min(max(needed, sizes[name] * 3 // 2), most)
        if short:
            old = None if not self._source else (self._decoding, self._source, self._states, dict(sizes))
            sizes |= short
            self._places.enlarge(sizes)
            self._take_buffers()
            if old is not None:
                self._take_over(*old)

    def free_places(self, count: int, width: int) -> None:
        """Return None: samples are encoded outside the slots, and copied within the GPU."""

    def join(self, encoded: Encoded, sample: int, *, width: int, positions: int, tokens: int) -> None:
        self._graphs.check_limits(1, self._sizes["M"], width, positions, self._candidates)
        self.reserve(width=width, positions=positions, tokens=tokens)
        slot = heapq.heappop(self._free)
        self._slots = np.append(self._slots, slot)
        self._places.add()
        for name, target in self._source.items():
            if name == MASK:
                self._device.clear(target.samples(slice(slot, slot + 1), self._sizes["B"]).address, self._row_bytes)
            self._copy(name, encoded[name], sample, target, slot, width)

    def step(self) -> StepOutputs:
        self._write()
        scores, beams, tokens = self._decoding.step()
        return scores[self._slots], beams[self._slots], tokens[self._slots]

    def compact(self, compaction: Compaction) -> None:
        left = compaction.apply(self._slots.copy())
        for slot in np.setdiff1d(self._slots, left).tolist():
            self._empty([slot])
            heapq.heappush(self._free, slot)
        self._slots = left
        self._places.compact(compaction)

    def fetch_logits(self) -> None:
        """Do nothing: every step writes its logits on the GPU."""

    @property
    def logits(self) -> DeviceLogits | None:
        found, M = self._decoding.logits, self._sizes["M"]
        return None if found is None else found.of_rows((self._slots[:, None] * M + np.arange(M)).reshape(-1))

    def reserve_banned(self, count: int) -> None:
        self._places.reserve_banned(count)
        self._decoding.reserve_banned(count)

    def use_trie(self, trie: Trie) -> None:
        self._trie = trie
        if self._source:
            self._decoding.use_trie(trie)

    def close(self) -> None:
        self._decoding.close()

    @property
    def cache_bytes(self) -> tuple[int, int]:
        return self._decoding.cache_bytes

    def _take_buffers(self) -> None:
        """Take buffers of the present sizes, with empty slots."""
        graphs, sizes, device = self._graphs, self._sizes, self._device
        wanted = graphs.bytes_encoded(sizes) | graphs.bytes_of_states(sizes) | graphs.bytes_of_logits(sizes)
        source = {tensor.name: tensor.dtype for tensor in graphs.encoder_interface.outputs}
        if MASK in graphs.inputs:
            source[MASK] = graphs.inputs[MASK].dtype
            wanted[MASK] = sizes["B"] * sizes["N"] * BYTES[source[MASK]]
        memory = BatchMemory(graphs.on_device, graphs.on_host, wanted)
        self._source = {
            name: DeviceTensor(memory.on_device[name], resolve(graphs.inputs[name].shape, sizes), BYTES[dtype])
            for name, dtype in source.items()
        }
        for tensor in self._source.values():  # a step reads past a sample's source under a mask
            device.clear(tensor.address, tensor.nbytes)
        self._states = {
            state.input: DeviceTensor(
                memory.on_device[state.input], resolve(state.shape, sizes), BYTES[graphs.inputs[state.input].dtype]
            )
            for state in graphs.states
        }
        self._decoding = DeviceDecoding(graphs, dict(self._source), memory, sizes, self._candidates)
        if self._trie is not None:
            self._decoding.use_trie(self._trie)
        if MASK in source:
            self._row_bytes = sizes["N"] * BYTES[source[MASK]]
            self._one_position = memory.host_array("one position", (sizes["N"],), source[MASK])
            self._one_position[:] = np.arange(sizes["N"]) == 0
        self._empty(range(sizes["B"]))

    def _empty(self, slots: Sequence[int]) -> None:
        """Let slots run as samples of one token and one source position."""
        inputs, M = self._decoding.inputs, self._sizes["M"]
        chosen = list(slots)
        for name, (_, shape) in SMALL_INPUTS.items():
            if shape[:1] in (("B",), ("R",)):
                own = inputs[name].reshape(self._sizes["B"], -1)
                own[chosen] = -1 if name == "banned" else name in ("lengths", "history_lengths")
        inputs["ancestry"][chosen, :, 0] = np.arange(M)
        inputs["beam_index"].reshape(-1, M)[chosen] = np.arange(M) + M * np.array(chosen)[:, None]
        if MASK in self._source:
            for slot in chosen:
                row = self._source[MASK].samples(slice(slot, slot + 1), self._sizes["B"])
                self._device.upload(row.address, self._one_position.ctypes.data, self._row_bytes)

    def _write(self) -> None:
        """Write the small inputs of the samples into their slots."""
        B, M = self._sizes["B"], self._sizes["M"]
        given, target, slots = self._places.inputs, self._decoding.inputs, self._slots
        used = {"history": int(given["history_lengths"].max()), "ancestry": int(given["lengths"].max())}
        used["banned"] = given["banned"].shape[1]
        if used["banned"] > target["banned"].shape[1]:  # buffers were replaced
            self._decoding.reserve_banned(used["banned"])
        for name, (_, shape) in SMALL_INPUTS.items():
            if not shape or shape[0] not in ("B", "R"):
                target[name][...] = given[name]
                continue
            own, places = _by_sample(given[name], len(slots)), _by_sample(target[name], B)
            if name == "banned":
                places[slots, :, used[name] :] = -1
            if name == "beam_index":
                own = own + M * (slots - np.arange(len(slots)))[:, None, None]
            columns = used.get(name, own.shape[2])
            places[slots, :, :columns] = own[:, :, :columns]

    def _take_over(
        self,
        decoding: DeviceDecoding,
        source: Mapping[str, DeviceTensor],
        states: Mapping[str, DeviceTensor],
        sizes: Mapping[str, int],
    ) -> None:
        """Copy the samples of buffers that were replaced, and return these buffers to the pool."""
        for slot in self._slots.tolist():
            for name, tensor in source.items():
                self._copy(name, tensor, slot, self._source[name], slot, sizes["N"])
            for name, tensor in states.items():
                self._copy(name, tensor, slot, self._states[name], slot, sizes["T_max"])
        decoding.close()

    def _copy(self, name: str, own: DeviceTensor, sample: int, target: DeviceTensor, slot: int, count: int) -> None:
        """Copy one sample of a tensor. If the tensor has positions, only the first ``count`` are copied."""
        letters = self._graphs.inputs[name].shape
        rows = self._sizes["M"] if letters[0] == "R" else 1
        own, target = (
            tensor.samples(slice(at, at + 1), tensor.shape[0] // rows) for tensor, at in ((own, sample), (target, slot))
        )
        axis = next((axis for axis, letter in enumerate(letters) if letter in ("N", "T_max")), None)
        if axis is None:
            self._device.move(target.address, own.address, own.nbytes)
            return
        inner = math.prod(own.shape[axis + 1 :]) * own.width
        self._device.move_rows(
            target.address,
            target.shape[axis] * inner,
            own.address,
            own.shape[axis] * inner,
            rows=math.prod(own.shape[:axis]),
            width=count * inner,
        )


def _by_sample(array: Array, count: int) -> Array:
    """Return a small input of ``count`` samples as [samples, rows, columns]; columns may be 0."""
    columns = array.shape[-1] if array.ndim > 1 else 1
    rows = math.prod(array.shape[:-1] if array.ndim > 1 else array.shape) // count
    return array.reshape(count, rows, columns)
