"""Entries of ``bundle.json``. It is read strictly: an unknown or a missing key is an error.

Class names, field names and their order are part of the bundle format (docs/design.md, Bundle format).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

__all__ = [
    "ENGINE_PRECISIONS",
    "FORMAT_VERSION",
    "MANIFEST",
    "PRECISIONS",
    "WEIGHTS",
    "CacheStateEntry",
    "EnginePrecision",
    "Entry",
    "FileEntry",
    "GraphEntry",
    "GuardEntry",
    "LayerChoice",
    "Manifest",
    "ModelSizes",
    "ParityReport",
    "PassEntry",
    "Precision",
    "PrecisionErrorEntry",
    "TensorEntry",
    "TokenizerEntry",
]

FORMAT_VERSION = 1
MANIFEST = "bundle.json"
WEIGHTS = "weights.safetensors"

Precision = Literal["fp32", "fp16"]
PRECISIONS: tuple[str, ...] = get_args(Precision)
"""Precisions of a bundle's graphs."""
EnginePrecision = Literal["fp32", "fp16", "bf16"]
ENGINE_PRECISIONS: tuple[str, ...] = get_args(EnginePrecision)
"""Precisions of a TensorRT engine."""


class Entry(BaseModel):
    """A part of a file that a bundle has; what is not known there is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class FileEntry(Entry):
    """A file of the bundle: path relative to the folder, size in bytes, SHA-256 in hex."""

    file: str
    bytes: Annotated[int, Field(ge=0, lt=2**63)]
    sha256: str


class TensorEntry(Entry):
    """A graph input or output; a string in ``shape`` names a dynamic dimension."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]


class GraphEntry(FileEntry):
    """An ONNX file with its inputs and outputs. Encoder outputs feed the decoder inputs of the same name."""

    inputs: tuple[TensorEntry, ...]
    outputs: tuple[TensorEntry, ...]


class CacheStateEntry(Entry):
    """A decoder input that lives on from step to step.

    ``in_place``: ``output`` belongs in the buffer of ``input``. ``append``: ``output`` is the next step's ``input``.
    """

    input: str
    output: str
    kind: Literal["in_place", "append"]
    shape: tuple[int | str, ...]


class LayerChoice(Entry):
    """What one decoder layer keeps for the source and for the generated part, and why."""

    layer: int
    source: str
    generated: str
    reason: str


class GuardEntry(Entry):
    """How exact a layer's rewritten attention is on real activations, at the bundle's precision.

    ``error``: root mean square over that of the exact output; None for no number. ``original``: that of the attention
    as it was, likewise. ``condition``: of the key weights that had to be undone; 0 where none had to; None where they
    have no inverse. ``kept``: the kind of cache that the layer has in the end.
    """

    layer: int
    part: Literal["source", "generated"]
    wanted: str
    kept: str
    error: FiniteFloat | None
    allowed: FiniteFloat
    original: FiniteFloat | None
    condition: FiniteFloat | None


class PassEntry(Entry):
    """A graph pass that was applied: places rewritten, and why where there were none; the bytes it saves at batch 1,
    4 beams and the longest source and output."""

    name: str
    matched: int
    reason: str
    bytes_saved: int


class TokenizerEntry(Entry):
    """``tokenizers``: ``tokenizer.json`` is read alone. ``transformers``: its AutoTokenizer reads the folder."""

    kind: Literal["tokenizers", "transformers"]
    folder: str
    files: tuple[FileEntry, ...]


class ParityReport(Entry):
    """The comparison with ``model.generate`` that ended the export: how many ``tokens`` are equal. ``ties``: sequences
    that only rounding picks. ``differing``: those that differ in a bundle that is not exact (``weight_threshold``, or
    half precision)."""

    samples: int
    settings: int
    tokens: int
    ties: int
    differing: int = 0
    max_score_error: FiniteFloat


class PrecisionErrorEntry(Entry):
    """The error of a precision, measured in ONNX Runtime: of the log-probabilities, root mean square over that of the
    float32 graph's deviation from their mean; and at how many of ``steps`` the best token differed."""

    error: FiniteFloat
    steps: int
    differing: int


Size = Annotated[int, Field(ge=1, lt=2**31)]


class ModelSizes(Entry):
    """The model's sizes in the letters of docs/design.md; the longest source and target in tokens.

    ``decoder_only``: the source is a prompt, which generated sequences begin with. ``rotary``: positions turn queries
    and keys (RoPE). ``key_norm``: a norm stands between keys and their scores. ``streams``: positions that a row runs
    in a step.
    """

    D: Size
    H: Size
    G: Size
    K: Size
    V: Size
    L: Size
    vocabulary: Size
    source_vocabulary: Size
    max_source: Size
    max_target: Size
    decoder_only: bool = False
    rotary: bool = False
    key_norm: bool = False
    streams: Size = 1


class Manifest(Entry):
    """``bundle.json``. ``speech``: where the encoder takes ``input_features``, the file that says how to make them.
    ``weight_threshold``: source positions with less weight are left out, which is not exact; 0: none is.
    ``precision``: of products, caches and most weights. ``precision_error``: that of half precision; None in float32,
    and where nobody measured it."""

    format_version: int
    made_by: str
    model: str
    family: str
    variant: str
    precision: Precision
    sizes: ModelSizes
    layers: tuple[LayerChoice, ...]
    guard: tuple[GuardEntry, ...] = ()
    weight_threshold: Annotated[float, Field(ge=0, lt=1)] = 0.0
    passes: tuple[PassEntry, ...]
    encoder: GraphEntry
    decoder: GraphEntry
    cache_states: tuple[CacheStateEntry, ...]
    weights: FileEntry
    tokenizer: TokenizerEntry | None
    speech: FileEntry | None = None
    generation: dict[str, Any]
    parity: ParityReport | None
    precision_error: PrecisionErrorEntry | None = None

    def files(self) -> tuple[FileEntry, ...]:
        """Every file the bundle has beside ``bundle.json``."""
        speech = (self.speech,) if self.speech else ()
        return (self.encoder, self.decoder, self.weights, *speech, *(self.tokenizer.files if self.tokenizer else ()))
