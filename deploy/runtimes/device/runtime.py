"""Base of the runtimes on a GPU: a step moves only the small inputs and [B, C] candidates.

A runtime adds two loaded graphs (`Graph`), which take shapes and addresses. The memory, the copies, their order on one
stream and the CUDA graphs are in `graphs.py` and `decoding.py`.
"""

from __future__ import annotations

from tightbeam.deploy.arrays import Array
from tightbeam.deploy.runtimes.base import LOGITS, obstacle_to_groups, sizes_of
from tightbeam.deploy.runtimes.device.decoding import DeviceDecoding
from tightbeam.deploy.runtimes.device.graphs import DeviceGraphs
from tightbeam.deploy.runtimes.device.memory_pool import BatchMemory
from tightbeam.deploy.runtimes.device.slots import SlotRuntime

__all__ = ["DeviceRuntime"]


class DeviceRuntime(DeviceGraphs):
    """Runtime over two graphs on a GPU."""

    def renewal(self, tensor: str) -> str:
        """Return the fix for a decoder that was made before it had an input or output."""
        return "export the model again"

    @property
    def logits_obstacle(self) -> str:
        return "" if self.logits is not None else f"this decoder does not give; {self.renewal(LOGITS)}, or"

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
        aligned: bool = False,  # refused before, by the obstacle
    ) -> DeviceDecoding:
        B, N = attention_mask.shape
        self.check_limits(B, num_beams, N, positions, candidates)
        sizes = sizes_of(B, N, num_beams, positions, prompt_length, groups)
        given = self.given(source, attention_mask, num_beams)
        wanted = self.bytes_sent(given) | self.bytes_encoded(sizes) | self.bytes_of_states(sizes)
        wanted |= self.bytes_of_logits(sizes)
        memory = BatchMemory(self.on_device, self.on_host, wanted)
        return DeviceDecoding(self, self.encode_batch(given, sizes, memory), memory, sizes, candidates)

    @property
    def trie_obstacle(self) -> str:
        if "trie_nodes" in self.inputs:
            return ""
        return f"this decoder was made before its search head could take tries; {self.renewal('trie_nodes')}"

    @property
    def groups_obstacle(self) -> str:
        return obstacle_to_groups(self.decoder_interface.inputs)

    @property
    def alignment_obstacle(self) -> str:
        return "alignment heads are read by ONNX Runtime on the CPU; leave it out, or run the bundle with device='cpu'"

    def release_buffers(self) -> None:
        return

    def joining(self) -> SlotRuntime | None:
        return None if any(state.kind == "append" for state in self.states) else SlotRuntime(self)
