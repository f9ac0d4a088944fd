"""Most instructions, registers and shared memory of each kernel, on every compute capability that the documents name.

A budget of instructions is what the kernel had when it was set, and up to a quarter more. Registers are rounded up to
8, as a GPU allocates them. A kernel that needs more either has a mistake, such as an unrolled loop or an address that
is computed again, or comes with a change that raises the number here and says why. No kernel may spill a register or
load single bytes from shared memory.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["BUDGETS", "Budget"]


@dataclass(frozen=True)
class Budget:
    """Upper bounds of a kernel.

    Attributes
    ----------
    instructions : int
        Instructions of the whole code.
    registers : int
        Registers of a thread.
    shared_bytes : int
        Shared memory that a launch asks for.
    reason : str
        What the code is made of.
    """

    instructions: int
    registers: int
    shared_bytes: int
    reason: str


BUDGETS: dict[str, Budget] = {
    "beam_attention_kernel<__half, 1, 1, false>": Budget(
        3_200,
        96,
        4_160,
        "one history a warp: loads, dots and sums of a beam's positions, and what begins and ends them",
    ),
    "beam_attention_kernel<__half, 4, 1, true>": Budget(
        5_400,
        184,
        24_704,
        "as above, for four rotated queries at once, with all registers of a multiprocessor for one block",
    ),
    "beam_attention_kernel<float, 1, 1, false>": Budget(
        2_900,
        112,
        4_160,
        "one history a warp: loads, dots and sums of a beam's positions, and what begins and ends them",
    ),
    "beam_attention_tensor_core_kernel<__half, 1, 64, false>": Budget(
        2_600, 128, 44_944, "a stretch of positions: its rows are found, then tiles of 16 of them"
    ),
    "beam_attention_tensor_core_kernel<__half, 2, 128, true>": Budget(
        4_300, 216, 76_176, "the same, for 16 rotated queries of 128 numbers"
    ),
    "beam_latent_attention_simt_kernel<__half>": Budget(
        4_600, 160, 15_168, "float32: scores by chunks of columns, then sums"
    ),
    "beam_latent_attention_simt_kernel<float>": Budget(
        4_600, 200, 15_168, "float32: scores by chunks of columns, then sums"
    ),
    "beam_latent_attention_tensor_core_kernel<__half, 1, 128, false>": Budget(
        3_900, 128, 94_288, "tiles of one row's history, a few, and what begins and ends them"
    ),
    "beam_latent_attention_tensor_core_kernel<__half, 1, 64, false>": Budget(
        3_500, 120, 83_920, "the same, with room for fewer rows in shared memory"
    ),
    "beam_latent_attention_tensor_core_kernel<__half, 1, 64, true>": Budget(
        3_500, 128, 83_920, "the same, whose keys are rotated on their way to the product"
    ),
    "beam_latent_attention_tensor_core_kernel<__half, 2, 64, false>": Budget(
        3_500, 128, 166_864, "tiles of one row's history, a few, and what begins and ends them"
    ),
    "beam_latent_attention_tensor_core_kernel<__half, 2, 64, true>": Budget(
        3_500, 128, 166_864, "tiles of one row's history, whose keys are rotated on their way to the product"
    ),
    "beam_top_k_samples<__half>": Budget(3_100, 64, 88, "candidates of a sample, twice over"),
    "beam_top_k_samples<float>": Budget(3_100, 64, 80, "candidates of a sample, twice over"),
    "beam_top_k_slices<__half>": Budget(2_700, 80, 3_376, "32 tokens a thread, read once"),
    "beam_top_k_slices<float>": Budget(2_700, 80, 3_328, "32 tokens a thread, read once"),
    "combine_splits_kernel<__half>": Budget(1_280, 56, 0, "one number of a few splits a turn"),
    "combine_splits_kernel<float>": Budget(1_280, 56, 0, "one number of a few splits a turn"),
    "latent_attention_simt_kernel<__half>": Budget(
        4_200, 152, 15_168, "float32: scores by chunks of columns, then sums"
    ),
    "latent_attention_simt_kernel<float>": Budget(
        4_200, 176, 15_168, "float32: scores by chunks of columns, then sums"
    ),
    "latent_attention_tensor_core_kernel<__half, 1, 1, 128, false>": Budget(
        1_800, 128, 94_288, "a tile of states, both products of it"
    ),
    "latent_attention_tensor_core_kernel<__half, 2, 1, 64, false>": Budget(
        2_100, 128, 101_264, "the same, with room for fewer rows in shared memory"
    ),
    "latent_attention_tensor_core_kernel<__half, 2, 1, 64, true>": Budget(
        2_500, 128, 101_264, "the same with rotated keys"
    ),
    "latent_attention_tensor_core_kernel<__half, 2, 2, 64, false>": Budget(
        2_300, 128, 201_104, "a tile of states, both products of it"
    ),
    "latent_attention_tensor_core_kernel<__half, 2, 2, 64, true>": Budget(
        2_600, 128, 201_104, "a tile of keys, rotated on their way to the product"
    ),
    "ngram_block<__half>": Budget(780, 56, 0, "a copy, and the history"),
    "ngram_block<float>": Budget(990, 56, 0, "a copy, and the history"),
    "source_attention_stream_kernel<__half, 4, 1>": Budget(
        4_100, 120, 33_024, "float32, half precision before 8.0, and capped scores: rows through registers"
    ),
    "source_attention_stream_kernel<float, 4, 1>": Budget(
        3_700, 112, 16_640, "float32, half precision before 8.0, and capped scores: rows through registers"
    ),
    "source_attention_tensor_core_kernel<__half, 1, 128>": Budget(
        3_000, 192, 69_632, "a tile of 16 positions, both products of it"
    ),
    "source_attention_tensor_core_kernel<__half, 1, 64>": Budget(
        2_600, 128, 36_864, "a tile of 16 positions, both products of it"
    ),
}
"""Kernel as the plans name it, without its namespace -> its budget."""
