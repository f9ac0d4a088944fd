"""Entries of ``bundle.json``. It is read strictly: an unknown or a missing key is an error.

Field names and their order are part of the bundle format (docs/reference/bundle.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

__all__ = [
    "ENGINE_PRECISIONS",
    "FORMAT_VERSION",
    "MANIFEST",
    "PRECISIONS",
    "WEIGHTS",
    "AlignmentEntry",
    "CacheStateEntry",
    "DivergenceEntry",
    "EnginePrecision",
    "Entry",
    "FileEntry",
    "GraphEntry",
    "GuardEntry",
    "KeyFormEntry",
    "LayerChoice",
    "Manifest",
    "ModelSizes",
    "ParityReport",
    "PassEntry",
    "Precision",
    "PrecisionErrorEntry",
    "Provenance",
    "QuantizedEntry",
    "TensorEntry",
    "TokenizerEntry",
    "is_translator",
]

FORMAT_VERSION = 2
MANIFEST = "bundle.json"
TRANSLATORS = ("fsmt", "m2m_100", "marian", "mbart", "seamless_m4t", "seamless_m4t_v2")
"""Families whose models translate; others do if their tokenizer has tokens of languages."""
WEIGHTS = "weights.safetensors"

Precision = Literal["fp32", "fp16", "int8", "int4"]
PRECISIONS: tuple[str, ...] = get_args(Precision)
"""Precisions of a bundle's graphs."""
EnginePrecision = Literal["fp32", "fp16", "bf16"]
ENGINE_PRECISIONS: tuple[str, ...] = get_args(EnginePrecision)
"""Precisions of a TensorRT engine."""


class Entry(BaseModel):
    """Part of a JSON file of a bundle. Unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class FileEntry(Entry):
    """File of the bundle: path relative to the folder, size in bytes, SHA-256 in hex."""

    file: str
    bytes: Annotated[int, Field(ge=0, lt=2**63)]
    sha256: str


class TensorEntry(Entry):
    """Graph input or output. A string in ``shape`` names a dynamic dimension."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]


class GraphEntry(FileEntry):
    """An ONNX file with its inputs and outputs. Encoder outputs feed the decoder inputs of the same name."""

    inputs: tuple[TensorEntry, ...]
    outputs: tuple[TensorEntry, ...]


class CacheStateEntry(Entry):
    """Cache of the decoder: an input and the output that updates it.

    Attributes
    ----------
    kind : "in_place" or "append"
        in_place: ``output`` shares the buffer of ``input``. append: ``output`` is the next step's ``input``.
    """

    input: str
    output: str
    kind: Literal["in_place", "append"]
    shape: tuple[int | str, ...]


class KeyFormEntry(Entry):
    """Form of the keys that a cache of keys alone holds.

    Attributes
    ----------
    orthonormal : bool
        Each head's keys are made orthonormal, and its queries take the rest.
    few : int
        Numbers cached beside the keys of a position, in the same rows: its input along directions that the keys hardly
        hold.
    """

    orthonormal: bool = False
    few: Annotated[int, Field(ge=0)] = 0


class LayerChoice(Entry):
    """Kinds of cache of one decoder layer, source and generated, and the reason for them.

    Attributes
    ----------
    source_keys, generated_keys : KeyFormEntry
        Form of the keys, if the cache holds keys alone.
    """

    layer: int
    source: str
    generated: str
    reason: str
    source_keys: KeyFormEntry = KeyFormEntry()
    generated_keys: KeyFormEntry = KeyFormEntry()


class GuardEntry(Entry):
    """Error of a layer's rewritten attention on real activations, at the bundle's precision.

    Attributes
    ----------
    wanted, kept : str
        The kind of cache that was chosen, and the kind that the layer has after the guard.
    error : float or None
        Root mean square of the error over the root mean square of the exact output; None if it is NaN or infinite.
    allowed : float
        Upper bound on ``error``.
    original : float or None
        ``error`` of the attention before the rewrite.
    condition : float or None
        Condition number of the checkpoint's key weights; 0 if none are inverted, None if they have no inverse.
    keys : KeyFormEntry
        Form of the keys that ``error`` is of: the first that is exact enough, or the most exact one.
    inverted_condition : float or None
        Condition number of the key weights in that form, which are inverted; as ``condition``.
    """

    layer: int
    part: Literal["source", "generated"]
    wanted: str
    kept: str
    error: FiniteFloat | None
    allowed: FiniteFloat
    original: FiniteFloat | None
    condition: FiniteFloat | None
    keys: KeyFormEntry = KeyFormEntry()
    inverted_condition: FiniteFloat | None = None


class QuantizedEntry(Entry):
    """Product or embedding that int8 may quantise: its error in each form on real rows, and the form that it has.

    An error is the root mean square, over the rows, of each row's relative difference from float64. None is an error
    that was not measured, or is NaN or infinite.

    Attributes
    ----------
    name : str
        The graph and the node that was quantised.
    shape : tuple of int
        Of a product: numbers of a row, and columns, after the number of heads if each head has a matrix. Of an
        embedding: its width, and its tokens or positions.
    w4a16, int8, w8a16, fp16, fp32 : float or None
        Error with weights of 4 bits and rows of 16; in int8; with weights of 8 bits and rows of 16; in half precision;
        in float32.
    blocks : float or None
        Error with weights of 8 bits and rows of 16, with a scale for every 128 numbers, or fewer if 128 do not divide
        the width. In older bundles rows have 8 bits.
    allowed : float
        Upper bound on the error of the form in the bundle.
    kept : "w4a16", "int8", "w8a16", "fp32" or "blocks"
        The form in the bundle.
    reason : str
        The reason for another form than the first one of the precision.
    """

    name: str
    shape: tuple[int, int] | tuple[int, int, int]
    embedding: bool
    w4a16: FiniteFloat | None = None
    int8: FiniteFloat | None
    w8a16: FiniteFloat | None = None
    blocks: FiniteFloat | None = None
    fp16: FiniteFloat | None
    fp32: FiniteFloat | None
    allowed: FiniteFloat
    kept: Literal["w4a16", "int8", "w8a16", "fp32", "blocks"]
    reason: str


class DivergenceEntry(Entry):
    """Measurement of the forms of int8 or int4 products: how far they move the distribution of the next token.

    Attributes
    ----------
    divergence : float
        Mean of KL(float32 || these forms) over the steps of calibration inputs, in nats a token.
    w4a16, int8, w8a16, blocks, fp32 : int
        Products and embeddings in each form.
    bytes : int
        Bytes of their matrices, without scales; one that several products read counts once.
    """

    divergence: FiniteFloat
    w4a16: int = 0
    int8: int
    w8a16: int
    blocks: int = 0
    fp32: int
    bytes: int


class QuantizedCacheEntry(Entry):
    """Cache in int8: the error of a layer's attention if only these rows are rounded, on real activations.

    Attributes
    ----------
    layer : int
        Decoder layer.
    cache : "source" or "generated"
        The cache that has the rows; "source" in older bundles.
    part : "keys", "values" or "states"
        The rounded rows; states may be one matrix that all layers read.
    int8, fp16 : float or None
        Root mean square of the error over the root mean square of the exact output, with rows in int8 and in half
        precision; None if it is NaN or infinite.
    allowed : float
        Upper bound on ``int8``.
    """

    layer: int
    cache: Literal["source", "generated"] = "source"
    part: Literal["keys", "values", "states"]
    int8: FiniteFloat | None
    fp16: FiniteFloat | None
    allowed: FiniteFloat


class PassEntry(Entry):
    """Graph pass that was applied.

    Attributes
    ----------
    matched : int
        Number of places that it rewrote.
    reason : str
        The reason, if it matched nothing.
    bytes_saved : int
        Bytes of cache saved at batch 1, 4 beams and the longest source and output.
    """

    name: str
    matched: int
    reason: str
    bytes_saved: int


class TokenizerEntry(Entry):
    """Tokenizer of the bundle.

    Attributes
    ----------
    kind : "tokenizers" or "transformers"
        tokenizers: the library tokenizers reads ``tokenizer.json``. transformers: AutoTokenizer reads the folder.
    """

    kind: Literal["tokenizers", "transformers"]
    folder: str
    files: tuple[FileEntry, ...]

    @property
    def has_chat_template(self) -> bool:
        """True if a file is the chat template; old bundles may have it in ``tokenizer_config.json``."""
        return any(entry.file == f"{self.folder}/chat_template.jinja" for entry in self.files)


class AlignmentEntry(Entry):
    """Cross-attentions that say which part of the source a token comes from: the times of a speech model's tokens, and
    the words of a translator's source.

    Attributes
    ----------
    heads : tuple of (int, int)
        Layer and head of each, in the order of the graphs' outputs.
    median_filter_width : int
        Source positions that the filter over the attention of a speech model spans; 1 filters nothing.
    agreement : float or None
        Share of a translator's new tokens for which the heads name the source token without which the new one is least
        likely; None for a speech model, and if no token depends on one source token.
    """

    heads: Annotated[tuple[tuple[int, int], ...], Field(min_length=1)]
    median_filter_width: Annotated[int, Field(ge=1, lt=2**15)] = 1
    agreement: Annotated[float, Field(ge=0, le=1)] | None = None


class ParityReport(Entry):
    """Comparison with ``model.generate`` at the end of the export.

    Attributes
    ----------
    tokens : int
        Equal tokens.
    ties : int
        Sequences between which rounding alone decides.
    differing : int
        Sequences that differ, in an inexact bundle (``weight_threshold``, half precision, or int8).
    differing_float32 : int or None
        Sequences that differ from what the same graphs give in float32; None if these were not run.
    """

    samples: int
    settings: int
    tokens: int
    ties: int
    differing: int = 0
    differing_float32: int | None = None
    max_score_error: FiniteFloat


class PrecisionErrorEntry(Entry):
    """Error of a precision, measured in ONNX Runtime.

    Attributes
    ----------
    error : float
        Root mean square error of the log-probabilities, over their standard deviation in float32.
    differing : int
        Steps, of ``steps``, at which another token is the best.
    """

    error: FiniteFloat
    steps: int
    differing: int


class Provenance(Entry):
    """Origin of a bundle.

    Attributes
    ----------
    source : str
        Hub id of the checkpoint, or the name of its folder, without the path.
    revision : str or None
        Commit of the checkpoint on the hub; None if it is not known.
    created : str
        UTC time of the export, ISO 8601, such as ``2026-01-31T12:00:00Z``.
    versions : dict of str to str
        Versions of the packages that made the bundle: tightbeam, torch, transformers, onnx, onnxruntime.
    """

    source: str
    revision: str | None
    created: str
    versions: dict[str, str]


Size = Annotated[int, Field(ge=1, lt=2**31)]


class ModelSizes(Entry):
    """Sizes of the model, in the letters of docs/design.md.

    Attributes
    ----------
    max_source, max_target : int
        The longest source and target in tokens.
    decoder_only : bool
        True if generated sequences begin with a prompt.
    merged : bool
        True if the decoder attends to source and output in one softmax.
    rotary : bool
        True if queries and keys are rotated (RoPE).
    key_norm : bool
        True if keys are normalized before the scores.
    streams : int
        Positions that a row runs in a step.
    source_width : int or None
        Width of the encoder's output, if it is not D.
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
    merged: bool = False
    rotary: bool = False
    key_norm: bool = False
    streams: Size = 1
    source_width: Size | None = None


class Manifest(Entry):
    """Content of ``bundle.json``.

    Attributes
    ----------
    precision : "fp32", "fp16", "int8" or "int4"
        Precision of products, caches and most weights.
    cache_precision : "int8" or None
        Precision of the source caches if it differs from ``precision``: integers, with a scale for each row.
    generated_cache_precision : "int8" or None
        The same of the generated caches; None in older bundles.
    weight_threshold : float
        Source positions with a smaller attention probability are skipped, which is inexact; 0 skips none.
    global_tokens : int
        Number of first tokens of each source that have global attention in the encoder; above 0 only for LED.
    short_audio : bool
        Windows are encoded without the silence that fills them, which is inexact: N is as long as the sound. True only
        for a speech model over windows.
    quantized : tuple of QuantizedEntry
        Products and embeddings of an int8 or int4 bundle; empty in other precisions, and in older bundles.
    divergences : tuple of DivergenceEntry
        How the forms of the products were chosen: each measurement in order, the bundle's forms last; empty in other
        precisions, and in older bundles.
    ggml_divergence : float or None
        Divergence of llama.cpp's form of as many bits, simulated on the same inputs: Q8_0, or Q4_0 in int4. None if no
        product allows it.
    quantized_caches : tuple of QuantizedCacheEntry
        Caches in int8; empty without them, and in older bundles.
    cache_divergence : float or None
        Mean of KL(float32 || float32 with the bundle's caches in int8) over the steps of calibration inputs, in nats a
        token; None without such caches, and in older bundles.
    speech : FileEntry or None
        Settings of a speech model's feature extractor. Its encoder takes ``input_features`` or ``input_values``.
    convolutions : tuple of (int, int, int)
        Kernel, stride and padding of each convolution that makes the encoder's N positions of the X samples or frames
        of a recording or, with ``short_audio``, of a window; empty if all sources have one length, or are tokens.
    image : FileEntry or None
        Settings of an image model's processor. Its encoder takes ``pixel_values`` or ``flattened_patches``.
    alignment : AlignmentEntry or None
        The attention heads that align tokens with the source; None without alignment heads, and in older bundles.
    prompt : GraphEntry or None
        The graph that encodes a part of a prompt behind cached positions, for a CPU; None if there cannot be one, and
        in older bundles.
    prefill : GraphEntry or None
        The decoder over several successive tokens of one row, for a CPU; None if there cannot be one, and in older
        bundles.
    one_graph : FileEntry or None
        The graph of encoder, decoder and search together, for other programs; None if the export was not asked for it.
    features_graph : FileEntry or None
        The graph of Whisper's features, for other programs; None without the one graph, and for other models.
    text_graph : FileEntry or None
        The one graph with the tokenizer in it; None if the export was not asked for it.
    precision_error : PrecisionErrorEntry or None
        The error of half precision, int8 or int4; None in float32, and if it was not measured.
    provenance : Provenance or None
        Origin of the bundle; None in format 1.
    """

    format_version: int
    made_by: str
    model: str
    family: str
    variant: str
    precision: Precision
    cache_precision: Literal["int8"] | None = None
    generated_cache_precision: Literal["int8"] | None = None
    sizes: ModelSizes
    layers: tuple[LayerChoice, ...]
    guard: tuple[GuardEntry, ...] = ()
    quantized: tuple[QuantizedEntry, ...] = ()
    divergences: tuple[DivergenceEntry, ...] = ()
    ggml_divergence: FiniteFloat | None = None
    quantized_caches: tuple[QuantizedCacheEntry, ...] = ()
    cache_divergence: FiniteFloat | None = None
    weight_threshold: Annotated[float, Field(ge=0, lt=1)] = 0.0
    global_tokens: Annotated[int, Field(ge=0, lt=2**31)] = 0
    short_audio: bool = False
    passes: tuple[PassEntry, ...]
    encoder: GraphEntry
    decoder: GraphEntry
    prompt: GraphEntry | None = None
    prefill: GraphEntry | None = None
    cache_states: tuple[CacheStateEntry, ...]
    weights: FileEntry
    tokenizer: TokenizerEntry | None
    speech: FileEntry | None = None
    convolutions: tuple[tuple[Size, Size, Annotated[int, Field(ge=0, lt=2**15)]], ...] = ()
    image: FileEntry | None = None
    alignment: AlignmentEntry | None = None
    one_graph: FileEntry | None = None
    features_graph: FileEntry | None = None
    text_graph: FileEntry | None = None
    generation: dict[str, Any]
    parity: ParityReport | None
    precision_error: PrecisionErrorEntry | None = None
    provenance: Provenance | None = None

    @property
    def has_windows(self) -> bool:
        """True for a speech model over windows of one length (Whisper), which has settings of its own."""
        return self.speech is not None and (self.short_audio or not self.convolutions)

    @property
    def takes_whole_recordings(self) -> bool:
        """True for a speech model over recordings of any length, in place of windows."""
        return self.speech is not None and not self.has_windows

    def source_positions(self, length: int) -> int:
        """Return the encoder's positions for ``length`` samples or frames; below 1 if there are too few."""
        for kernel, stride, padding in self.convolutions:
            length = (length + 2 * padding - kernel) // stride + 1
        return length

    def shortest_source(self, positions: int) -> int:
        """Return the fewest samples or frames that have ``positions`` positions."""
        for kernel, stride, padding in reversed(self.convolutions):
            positions = max(1, (positions - 1) * stride + kernel - 2 * padding)
        return positions

    def longest_source(self, positions: int) -> int:
        """Return the most samples or frames that have ``positions`` positions."""
        for kernel, stride, padding in reversed(self.convolutions):
            positions = positions * stride + kernel - 2 * padding - 1
        return positions

    @property
    def reads_text(self) -> bool:
        """True if sources are text or token ids; False for speech and images."""
        return self.speech is None and self.image is None

    @property
    def translates(self) -> bool:
        """True if the checkpoint is a translator."""
        return self.reads_text and is_translator(self.family, self.generation)

    @property
    def takes_glossary(self) -> bool:
        """True if outputs can have the terms of a glossary: it is for texts of an encoder, and needs a tokenizer."""
        return self.reads_text and self.tokenizer is not None and not self.sizes.decoder_only

    @property
    def error_inputs(self) -> str:
        """The inputs of ``precision_error``, in words. They are the same for every calibration."""
        if not self.reads_text:
            return "random features"
        return "random tokens" if self.tokenizer is None else "the built-in texts"

    @property
    def has_integers(self) -> bool:
        """True if products have matrices of integers."""
        return self.precision in ("int8", "int4")

    @property
    def cpu_alone(self) -> str | None:
        """The reason why only CPUs run the bundle, as a clause for an error; None if GPUs run it too."""
        if self.has_integers:
            return f"is in {self.precision}"
        return f"has its {' and '.join(self.int8_caches)} cache in int8" if self.int8_caches else None

    @property
    def int8_caches(self) -> tuple[str, ...]:
        """The caches in int8: "source", "generated", both or none."""
        precisions = {"source": self.cache_precision, "generated": self.generated_cache_precision}
        return tuple(name for name, precision in precisions.items() if precision is not None)

    def files(self) -> tuple[FileEntry, ...]:
        """Return every file of the bundle except ``bundle.json``."""
        graphs = (self.prompt, self.prefill, self.one_graph, self.features_graph, self.text_graph)
        optional = tuple(entry for entry in (*graphs, self.speech, self.image) if entry is not None)
        return (self.encoder, self.decoder, self.weights, *optional, *(self.tokenizer.files if self.tokenizer else ()))


def is_translator(family: str, generation: Mapping[str, Any]) -> bool:
    """Return True for a text model that translates, by its family and its checkpoint's settings."""
    return family in TRANSLATORS or bool(generation.get("lang_to_id"))
