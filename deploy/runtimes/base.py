"""The protocol of a runtime, and the tables of graph inputs and outputs that all runtimes share.

docs/reference/graphs.md has the meaning of every tensor and the letters of the shapes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from tightbeam.deploy.arrays import Array, Floats, Ints
from tightbeam.deploy.bundle.manifest import CacheStateEntry, TensorEntry
from tightbeam.deploy.runtimes.kept_prompt import KeptPrompt
from tightbeam.deploy.search.compaction import Compaction
from tightbeam.deploy.search.rows import LogitRows
from tightbeam.deploy.tries.trie import Trie

__all__ = [
    "ALIGNMENT_KEYS",
    "ALIGNMENT_QUERIES",
    "CANDIDATE_OUTPUTS",
    "ENCODED_TOGETHER",
    "ENCODER_INPUTS",
    "FEATURE_INPUTS",
    "LOGITS",
    "LOGIT_TYPES",
    "PROMPT_OUT",
    "PROMPT_STARTS",
    "SMALL_INPUTS",
    "TRIE_ARRAYS",
    "Decoding",
    "Encoded",
    "GraphTensors",
    "JoiningDecoding",
    "JoiningRuntime",
    "KnownTokens",
    "Runtime",
    "StepOutputs",
    "banned_capacity",
    "by_group",
    "lay_out",
    "letters_of",
    "logits_entry",
    "obstacle_to_groups",
    "resolve",
    "sizes_of",
    "small_inputs",
    "source_outputs",
    "unexpected_names",
]

StepOutputs = tuple[Floats, Ints, Ints]
"""Candidate scores, beams and tokens of a step, each [B, C]."""

SMALL_INPUTS: dict[str, tuple[type[np.generic], tuple[int | str, ...]]] = {
    "tokens": (np.int64, ("R", 1)),
    "positions": (np.int64, ("R", 1)),
    "lengths": (np.int32, ("B",)),
    "first_positions": (np.int32, ("B",)),
    "ancestry": (np.int32, ("B", "M", "T_max")),
    "beam_index": (np.int64, ("R",)),
    "history": (np.int64, ("R", "T_history")),
    "history_lengths": (np.int32, ("B",)),
    "beam_scores": (np.float32, ("B", "M")),
    "banned": (np.int64, ("R", "P")),
    "normalize": (np.bool_, ()),
    "repetition_penalty": (np.float32, ()),
    "no_repeat_ngram_size": (np.int64, ()),
    "candidates": (np.int64, (1,)),
    "trie_offsets": (np.int32, ("Y + 3",)),
    "trie_tokens": (np.int32, ("Y",)),
    "trie_nodes": (np.int32, ("R",)),
    "all_logits": (np.bool_, ()),
}
"""Decoder inputs that the host writes, with types and shapes.

``ancestry`` is called ``cache_indirection`` in FasterTransformer, ONNX Runtime and TensorRT-LLM. ``ancestry`` and
``history`` have the capacity of the whole run; ``lengths`` and ``history_lengths`` are the used parts, and the rest is
0, a valid slot and a valid token. ``first_positions`` is the position of the first token that the decoder reads: the
last one of a prompt, 0 without a prompt. ``trie_nodes`` is 0 if any token may follow; without a trie Y is 0.
``all_logits`` is true if the search reads whole rows of logits.
"""

TRIE_ARRAYS = ("trie_offsets", "trie_tokens")
"""The small inputs that hold a trie, and are as large as it is."""

CANDIDATE_OUTPUTS: dict[str, type[np.generic]] = {
    "candidate_scores": np.float32,
    "candidate_beams": np.int64,
    "candidate_tokens": np.int64,
}
"""Decoder outputs that the host reads, each [B, C]."""
LOGIT_TYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": np.uint16}
"""The numpy type of a logit on the host by its tensor's type; numpy lacks bfloat16, so its bits are read."""
LOGITS = "logits"
"""Decoder output [R, vocabulary] that the host reads if a search asks for it; older bundles lack it."""
ALIGNMENT_QUERIES, ALIGNMENT_KEYS = "alignment_queries", "alignment_keys"
"""Outputs of the decoder [R, A, K] and of the encoder [B, A, N, K] that the host reads if times of tokens are asked
for; only speech models with alignment heads have them."""
GROUPED = "B groups"
"""The dimension of ``beam_scores`` in decoders that take groups of beams."""
FEATURE_INPUTS = frozenset({"flattened_patches", "input_features", "input_values", "pixel_values"})
"""Encoder inputs of speech and image models."""
PROMPT_STARTS, PROMPT_OUT = "starts", "source_out"
"""Names in the graph of a part of a prompt: the input with the position of each sample's first token, and the prefix of
the outputs that update the inputs ``source.<l>.key`` and ``source.<l>.value``."""
ENCODER_INPUTS = FEATURE_INPUTS | {"input_ids", "attention_mask", "num_beams"}
SOURCE_DIMENSIONS = frozenset({"B", "R", "N"})
Encoded = Mapping[str, Any]
"""Source inputs of the decoder by name, of an encoded batch: arrays, or a device's tensors."""
LARGE_BANNED_CAPACITY = 1024
"""Banned tokens of a row above which unused capacity is released."""


ENCODED_TOGETHER = 512
"""Source positions that a CPU encodes at a time. More make the products no faster, but the arena larger, and it does
not shrink while tokens are generated: 1,024 positions take 52 MB more for BART-large in int8."""


@dataclass(frozen=True)
class KnownTokens:
    """The results of a run over tokens that were known.

    Attributes
    ----------
    logits : float array [S, vocabulary] or None
        The logits behind each token; None if they were not read.
    queries : float array [S, A, K] or None
        The queries of the alignment heads; None if they were not read, and without alignment heads.
    """

    logits: Array | None = None
    queries: Array | None = None


class Decoding(Protocol):
    """One batch being decoded. Its source and its caches are on the device, in buffers bound once."""

    @property
    def inputs(self) -> Mapping[str, Array]:
        """Host buffers of all `SMALL_INPUTS`, even if the graph lacks one. Write into them, then call ``step``.

        ``compact`` and ``reserve_banned`` replace buffers.
        """
        ...

    def step(self) -> StepOutputs:
        """Run one decoder step over ``inputs``.

        Returns
        -------
        scores : float32 [B, C]
        beams : int64 [B, C]
        tokens : int64 [B, C]
            -1 for a sample whose scores are NaN. The next step overwrites all three.
        """
        ...

    def fetch_logits(self) -> None:
        """Make later steps give `logits` too, if the runtime has no ``logits_obstacle``."""
        ...

    @property
    def logits(self) -> LogitRows | None:
        """All logits of the latest step, which the next one overwrites; None if they are not fetched."""
        ...

    def fetch_alignment(self) -> None:
        """Make later steps give `alignment_queries` too, if the runtime has no ``alignment_obstacle``."""
        ...

    @property
    def alignment_queries(self) -> Array | None:
        """The queries [R, A, K] of the alignment heads in the latest step, which the next one overwrites; None if they
        are not fetched."""
        ...

    @property
    def alignment_keys(self) -> Array | None:
        """The keys [B, A, N, K] of the alignment heads of a batch that was begun with ``aligned``; else None."""
        ...

    def prefill(self, sample: int, tokens: Ints, first: int, *, read: bool = False) -> KnownTokens | None:
        """Run the decoder over successive tokens of a sample's first row at once, and write their caches.

        Parameters
        ----------
        sample : int
            The sample's place.
        tokens : int64 [S]
        first : int
            The position of the first token, at which no step has run.
        read : bool
            Return logits and queries, too.

        Returns
        -------
        KnownTokens or None
            None if nothing was run, since the runtime or the bundle has no `prefill.onnx`.
        """
        ...

    def compact(self, compaction: Compaction) -> None:
        """Remove samples: move the last ones into their places, in every buffer. Later steps run the remaining rows."""
        ...

    def reserve_banned(self, count: int) -> None:
        """Make the buffer ``banned`` at least [R, count]. A new buffer is filled with -1."""
        ...

    def use_trie(self, trie: Trie) -> None:
        """Set ``trie_offsets`` and ``trie_tokens`` to a trie's. The runtime must have no ``trie_obstacle``."""
        ...

    def close(self) -> None:
        """Return the cache buffers to the runtime's pool. No step may follow."""
        ...

    @property
    def cache_bytes(self) -> tuple[int, int]:
        """Allocated bytes of the source cache and of the generated cache."""
        ...


class Runtime(Protocol):
    """Runs the two graphs of a bundle on one device."""

    @property
    def logits_obstacle(self) -> str:
        """The clause that says why no step gives all logits, before a fix in the settings; empty if steps can."""
        ...

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
    ) -> Decoding:
        """Encode a batch and allocate its caches.

        Parameters
        ----------
        source : int64 [B, N], float32 [B, mels, frames] or float32 [B, X, ...]
            Token ids, log-mel features of windows, or features of whole recordings.
        attention_mask : int64 [B, N]
            0 at padding; over the positions that the encoder makes of the source.
        num_beams : int
            M.
        positions : int
            T_max, the capacity of the generated cache.
        candidates : int
            C, the continuations that a step returns for each sample.
        prompt_length : int
            P, the tokens that each row begins with. The decoder reads the last of them first.
        groups : int
            Groups of a sample's beams, each with C candidates. Above 1 the runtime must have no `groups_obstacle`.
        aligned : bool
            Hold the keys of the alignment heads. The runtime must have no `alignment_obstacle`.

        Raises
        ------
        BundleError
            See ``deploy/errors.py``.
        """
        ...

    @property
    def trie_obstacle(self) -> str:
        """The reason why this runtime takes no trie, and the fix; empty if it takes tries."""
        ...

    @property
    def groups_obstacle(self) -> str:
        """The reason why no step gives candidates by groups of beams, and the fix; empty if steps can."""
        ...

    @property
    def alignment_obstacle(self) -> str:
        """The reason why the alignment heads cannot be read, and the fix; empty if they can."""
        ...

    def joining(self) -> JoiningRuntime | None:
        """Return the `JoiningRuntime` of this runtime; None if samples cannot join its batches."""
        ...

    def release_buffers(self) -> None:
        """Free the host memory that no batch uses. A GPU's buffers stay, since new ones take long to allocate."""
        ...


class JoiningDecoding(Decoding, Protocol):
    """A batch that samples join one by one. Its buffers are larger than the batch, and grow if they must."""

    def reserve(self, *, width: int, positions: int, tokens: int) -> None:
        """Enlarge the buffers for samples that will join. The arguments are as in ``join``."""
        ...

    def free_places(self, count: int, width: int) -> Encoded | None:
        """Return the source inputs of the next places, to encode into them.

        Parameters
        ----------
        count : int
            Samples to encode, which join next, in this order.
        width : int
            Source positions of their batch.

        Returns
        -------
        Encoded or None
            None if fewer places are free, or if the buffers have another width.
        """
        ...

    def join(self, encoded: Encoded, sample: int, *, width: int, positions: int, tokens: int) -> None:
        """Add a sample behind the others, whose buffers stay as they are. ``inputs`` has new views after that.

        Parameters
        ----------
        encoded : Encoded
            A batch as ``JoiningRuntime.encode`` returns it.
        sample : int
            The sample's place in ``encoded``.
        width : int
            Source positions that are copied; the others are padding.
        positions : int
            Positions that the generated cache needs.
        tokens : int
            Tokens that the buffer ``history`` needs.
        """
        ...


class JoiningRuntime(Protocol):
    """The part of a runtime that joining needs."""

    @property
    def encoded_together(self) -> int:
        """Source positions to encode at a time."""
        ...

    @property
    def most_samples(self) -> int:
        """The most samples of a batch, and to encode at a time."""
        ...

    @property
    def steps_in_turn(self) -> int:
        """Steps that a batch takes before another batch does, because a change of batch takes time."""
        ...

    def encode(
        self,
        source: Array,
        attention_mask: Array,
        num_beams: int,
        into: Encoded | None = None,
        *,
        aligned: bool = False,
        kept: KeptPrompt | None = None,
    ) -> Encoded:
        """Encode a batch.

        Parameters
        ----------
        source, attention_mask, num_beams
            Arguments of ``Runtime.begin``.
        into : Encoded, optional
            Arrays that take the results, from ``JoiningDecoding.free_places``.
        aligned : bool
            Give the keys of the alignment heads too, as `ALIGNMENT_KEYS`.
        kept : KeptPrompt, optional
            Of a batch of one prompt: an earlier prompt, which the runtime may continue, and which this one replaces.

        Returns
        -------
        Encoded
        """
        ...

    def open(self, places: int, num_beams: int, candidates: int, groups: int = 1) -> JoiningDecoding:
        """Return a decoding without samples, for ``places`` samples at most."""
        ...


class GraphTensors(Protocol):
    """Inputs and outputs of a graph, as a manifest lists them."""

    @property
    def inputs(self) -> tuple[TensorEntry, ...]: ...
    @property
    def outputs(self) -> tuple[TensorEntry, ...]: ...


def unexpected_names(encoder: GraphTensors, decoder: GraphTensors, states: Sequence[CacheStateEntry]) -> set[str]:
    """Return the names that make two graphs unusable: inputs without a source, missing outputs, unknown dimensions."""
    inputs = {tensor.name: tensor for tensor in decoder.inputs}
    produced = set(source_outputs(encoder))
    names = {tensor.name for tensor in encoder.inputs} - ENCODER_INPUTS
    names |= (inputs.keys() - {*SMALL_INPUTS, "attention_mask", *(state.input for state in states)}) ^ produced
    names |= CANDIDATE_OUTPUTS.keys() - {tensor.name for tensor in decoder.outputs}
    for name in produced & inputs.keys():
        names |= letters_of(inputs[name].shape) - SOURCE_DIMENSIONS
    return names


def source_outputs(encoder: GraphTensors) -> list[str]:
    """Return the names of the encoder's outputs that the decoder reads."""
    return [tensor.name for tensor in encoder.outputs if tensor.name != ALIGNMENT_KEYS]


def letters_of(shape: Sequence[int | str]) -> set[str]:
    """Return the dynamic dimensions of a shape."""
    return {size for size in shape if isinstance(size, str)}


def sizes_of(B: int, N: int, num_beams: int, positions: int, prompt_length: int, groups: int = 1) -> dict[str, int]:
    """Return the sizes of a new batch by letter, before the first step. Arguments are as in ``Runtime.begin``."""
    return {
        **{"B": B, "N": N, "M": num_beams, "R": B * num_beams, "T_max": positions, "T": 0, "P": 0, "Y": 0, "Y + 3": 3},
        "T_history": prompt_length - 1 + positions,
        "groups": groups,
    }


def resolve(shape: Sequence[int | str], sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Replace the letters of a shape by their sizes."""
    return tuple(sizes[size] if isinstance(size, str) else size for size in shape)


def by_group(name: str, array: Array, groups: int) -> Array:
    """Return a view of a small input or a result as the search head has it, with a sample for each group of beams."""
    if name == "history_lengths":
        return array.reshape(-1)
    return array.reshape(len(array) * groups, -1) if name == "beam_scores" or name in CANDIDATE_OUTPUTS else array


def obstacle_to_groups(inputs: Iterable[TensorEntry]) -> str:
    """Return the ``groups_obstacle`` of a runtime whose decoder has these inputs."""
    shapes = {tensor.name: tensor.shape for tensor in inputs}
    if GROUPED in shapes.get("beam_scores", ()):
        return ""
    return "this decoder was made before its search head could take groups; export the model again"


def logits_entry(outputs: Iterable[TensorEntry]) -> TensorEntry | None:
    """Return the output `LOGITS` [R, vocabulary] of a decoder; None if it has no output of this form."""
    for entry in outputs:
        if entry.name == LOGITS and entry.dtype in LOGIT_TYPES and entry.shape[0] == "R":
            return entry if len(entry.shape) == 2 and isinstance(entry.shape[1], int) else None
    return None


def lay_out(nbytes: Mapping[str, int], alignment: int) -> tuple[dict[str, int], int]:
    """Lay out arrays of ``nbytes`` in one block.

    Returns
    -------
    starts : dict of str to int
        Aligned offset of each array in bytes.
    end : int
        Bytes of the block.
    """
    starts, end = {}, 0
    for name, size in nbytes.items():
        starts[name] = end
        end += -(-size // alignment) * alignment
    return starts, end


def small_inputs(sizes: Mapping[str, int]) -> dict[str, Array]:
    """Allocate buffers of `SMALL_INPUTS`, all zero; ``sizes`` has B, M, R, T_max, T_history, P and groups.

    ``history_lengths`` is [B, groups] if there are several groups.
    """
    buffers = {name: np.zeros(resolve(shape, sizes), dtype) for name, (dtype, shape) in SMALL_INPUTS.items()}
    if sizes["groups"] > 1:
        buffers["history_lengths"] = np.zeros((sizes["B"], sizes["groups"]), np.int32)
    return buffers


def banned_capacity(count: int, capacity: int) -> int:
    """Return the capacity for ``count`` banned tokens of a row, in place of the present ``capacity``."""
    if count > capacity or capacity > max(4 * count, LARGE_BANNED_CAPACITY):  # a choice bans almost all tokens, once
        return 1 << (count - 1).bit_length() if count else 0
    return capacity
