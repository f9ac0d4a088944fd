"""Most instructions of each kernel, on any compute capability that the documents name: `make cuda-check`.

A budget is what the kernel has for the capabilities that were compiled when it was set, and up to a quarter more for
others. What needs more is either a mistake, such as a loop that was unrolled or an address that is worked out anew, or
a change that says why it raises the number here. None may spill a register or load single bytes from shared memory.
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


BUDGETS: dict[str, Budget] = {
    "beam_attention_kernel<__half, 1, 1, false>": Budget(
        3_200, 11_600, "one history a warp: loads, dots and sums of a beam's positions, and what begins and ends them"
    ),
    "beam_attention_kernel<__half, 4, 1, true>": Budget(
        5_400,
        108_300,
        "as above, for four rotated queries at once, with all registers of a multiprocessor for one block",
    ),
    "beam_attention_kernel<float, 1, 1, false>": Budget(
        2_900, 6_500, "one history a warp: loads, dots and sums of a beam's positions, and what begins and ends them"
    ),
    "beam_attention_tensor_core_kernel<__half, 1, 64, false>": Budget(
        2_600, 11_500, "a stretch of positions: its rows are found, then tiles of 16 of them"
    ),
    "beam_attention_tensor_core_kernel<__half, 2, 128, true>": Budget(
        4_300, 9_300, "the same, for 16 rotated queries of 128 numbers"
    ),
    "beam_latent_attention_simt_kernel<__half>": Budget(
        4_600, 58_100, "float32: scores by chunks of columns, then sums"
    ),
    "beam_latent_attention_simt_kernel<float>": Budget(
        4_600, 46_600, "float32: scores by chunks of columns, then sums"
    ),
    "beam_latent_attention_tensor_core_kernel<__half, 1, 128, false>": Budget(
        3_900, 1_200, "tiles of one row's history; its one or two turns cost less than its ends"
    ),
    "beam_latent_attention_tensor_core_kernel<__half, 1, 64, false>": Budget(
        3_500, 1_200, "the same, where shared memory has room for fewer rows"
    ),
    "beam_latent_attention_tensor_core_kernel<__half, 1, 64, true>": Budget(
        3_500, 1_500, "the same, whose keys are rotated on their way to the product"
    ),
    "beam_latent_attention_tensor_core_kernel<__half, 2, 64, false>": Budget(
        3_500, 1_200, "tiles of one row's history; its one or two turns cost less than its ends"
    ),
    "beam_latent_attention_tensor_core_kernel<__half, 2, 64, true>": Budget(
        3_500, 2_600, "tiles of one row's history, whose keys are rotated on their way to the product"
    ),
    "beam_top_k_samples<__half>": Budget(3_100, 520, "candidates of a sample, twice over"),
    "beam_top_k_samples<float>": Budget(3_100, 520, "candidates of a sample, twice over"),
    "beam_top_k_slices<__half>": Budget(2_700, 710, "32 tokens a thread, read once"),
    "beam_top_k_slices<float>": Budget(2_700, 660, "32 tokens a thread, read once"),
    "combine_splits_kernel<__half>": Budget(1_280, 100, "one number of a few splits a turn"),
    "combine_splits_kernel<float>": Budget(1_280, 100, "one number of a few splits a turn"),
    "latent_attention_simt_kernel<__half>": Budget(4_200, 240_000, "float32: scores by chunks of columns, then sums"),
    "latent_attention_simt_kernel<float>": Budget(4_200, 164_800, "float32: scores by chunks of columns, then sums"),
    "latent_attention_tensor_core_kernel<__half, 1, 1, 128, false>": Budget(
        1_800, 900, "a tile of states, both products of it"
    ),
    "latent_attention_tensor_core_kernel<__half, 2, 1, 64, false>": Budget(
        2_100, 750, "the same, where shared memory has room for fewer rows"
    ),
    "latent_attention_tensor_core_kernel<__half, 2, 1, 64, true>": Budget(2_500, 1_500, "the same with rotated keys"),
    "latent_attention_tensor_core_kernel<__half, 2, 2, 64, false>": Budget(
        2_300, 1_000, "a tile of states, both products of it"
    ),
    "latent_attention_tensor_core_kernel<__half, 2, 2, 64, true>": Budget(
        2_600, 2_400, "a tile of keys, rotated on their way to the product"
    ),
    "ngram_block<__half>": Budget(780, 100, "a copy, and the history"),
    "ngram_block<float>": Budget(990, 170, "a copy, and the history"),
    "source_attention_stream_kernel<__half, 4, 1>": Budget(
        4_100, 1_020, "float32, half precision before 8.0, and capped scores: rows through registers"
    ),
    "source_attention_stream_kernel<float, 4, 1>": Budget(
        3_700, 1_020, "float32, half precision before 8.0, and capped scores: rows through registers"
    ),
    "source_attention_tensor_core_kernel<__half, 1, 128>": Budget(
        3_000, 860, "a tile of 16 positions, both products of it"
    ),
    "source_attention_tensor_core_kernel<__half, 1, 64>": Budget(
        2_600, 490, "a tile of 16 positions, both products of it"
    ),
}
"""Kernel as the plans name it, without its namespace -> its budget."""
