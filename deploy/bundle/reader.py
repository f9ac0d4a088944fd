"""The bundle: the one folder that passes from the build machine to the serving machine, its reader and its writer.

    bundle.json            what is inside, for whom, with sizes and checksums
    encoder.onnx           the graphs of one variant; they hold no weights
    decoder.onnx
    weights.safetensors    every weight once; both graphs point into it as external data
    tokenizer files        as the checkpoint ships them, where it has one

Nothing in it is pickled, and everything is checked when it is read. A bundle is written beside its place under another
name and moved there when it is whole.
"""

from __future__ import annotations

import hashlib
import json
import os
import reprlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

from tightbeam.deploy.bundle.atomic_dir import write_folder

__all__ = [
    "FORMAT_VERSION",
    "MANIFEST",
    "WEIGHTS",
    "Bundle",
    "BundleError",
    "CacheStateEntry",
    "Entry",
    "FileEntry",
    "GraphEntry",
    "GuardEntry",
    "LayerChoice",
    "Manifest",
    "ModelSizes",
    "ParityReport",
    "PassEntry",
    "PrecisionErrorEntry",
    "TensorEntry",
    "TokenizerEntry",
    "check_file",
    "file_entry",
    "with_entry",
    "write_bundle",
]

FORMAT_VERSION = 1
MANIFEST = "bundle.json"
WEIGHTS = "weights.safetensors"


class BundleError(ValueError):
    """A bundle cannot be read or written; the message says which file, what was expected, and the fix."""


class Entry(BaseModel):
    """A part of a file that a bundle has; what is not known there is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


AnyEntry = TypeVar("AnyEntry", bound=Entry)


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
    precision: Literal["fp32", "fp16"]
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


@dataclass(frozen=True)
class Bundle:
    """A bundle that was read and checked."""

    path: Path
    manifest: Manifest

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, verify: bool = True) -> Bundle:
        """Read a bundle; with ``verify``, compare every file with its checksum.

        Raises BundleError naming the file for anything missing, changed, truncated, unreadable, of a newer format, or
        outside the folder.
        """
        folder = Path(path)
        manifest = _read_manifest(folder)
        bundle = cls(folder, manifest)
        for entry in manifest.files():
            check_file(folder, entry, verify)
        if manifest.tokenizer:
            _check_tokenizer(folder, manifest.tokenizer)
        _check_consistency(folder, manifest)
        return bundle

    def file(self, entry: FileEntry) -> Path:
        return self.path / entry.file


def _read_manifest(folder: Path) -> Manifest:
    path = folder / MANIFEST
    try:
        if not folder.is_dir():
            raise BundleError(f"{folder} is no folder; expected a bundle made by export-model")
        if not path.is_file():
            raise BundleError(f"{folder} has no {MANIFEST}; expected a bundle made by export-model")
        text = (folder / _inside(MANIFEST, folder)).read_bytes()
    except OSError as error:
        raise BundleError(f"{path} cannot be read ({error.strerror}); check its permissions and the disk") from error
    try:
        data = json.loads(text.decode("utf-8"))
        text = json.dumps(data, allow_nan=False).encode()
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{path} is not JSON ({error}); export the model again") from error
    version = data.get("format_version") if isinstance(data, dict) else None
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise BundleError(
            f"{path} has format_version {reprlib.repr(version)}, expected 1 to {FORMAT_VERSION}; export the model again"
        )
    if version > FORMAT_VERSION:
        raise BundleError(
            f"{path} has format_version {reprlib.repr(version)}, this Tightbeam reads up to {FORMAT_VERSION}; "
            "upgrade Tightbeam, or export the model again with this version"
        )
    try:
        return Manifest.model_validate_json(text, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the whole"
        raise BundleError(f"{path}: {where}: {first['msg']}; export the model again") from error


def check_file(folder: Path, entry: FileEntry, verify: bool) -> None:
    """Raise BundleError unless ``folder`` has the file that ``entry`` describes, bytes compared with ``verify``."""
    path = folder / _inside(entry.file, folder)
    try:
        if not path.is_file():
            raise BundleError(f"{path} is missing; export the model again")
        size = path.stat().st_size
        if size != entry.bytes:
            raise BundleError(f"{path} has {size} bytes, expected {entry.bytes}; export the model again")
        if verify and _sha256(path) != entry.sha256:
            raise BundleError(f"{path} was changed since the export (its SHA-256 differs); export the model again")
    except OSError as error:
        raise BundleError(f"{path} cannot be read ({error.strerror}); check its permissions and the disk") from error


def _inside(name: str, folder: Path) -> PurePosixPath:
    """The path of a file of the bundle, which must stay in the folder, links resolved."""
    relative = PurePosixPath(name)
    try:
        stays = (folder / relative).resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError, ValueError):  # a loop of links, a NUL byte
        stays = False
    if relative.is_absolute() or ".." in relative.parts or not stays or not name.isprintable():
        raise BundleError(f"{folder / MANIFEST} names {name!r}, no path inside the bundle; do not use this bundle")
    return relative


def _check_tokenizer(folder: Path, entry: TokenizerEntry) -> None:
    """The tokenizer's library is given a folder, not files: what stands there must be what was checked."""
    inside = _inside(entry.folder, folder)
    named = {PurePosixPath(file.file) for file in entry.files}
    if entry.kind == "tokenizers" and inside / "tokenizer.json" not in named:
        raise BundleError(f"{folder / MANIFEST} names no {inside}/tokenizer.json; export the model again")
    for path in sorted((folder / inside).rglob("*")):
        if PurePosixPath(path.relative_to(folder)) not in named and (path.is_symlink() or not path.is_dir()):
            raise BundleError(f"{path} is not part of the bundle, and tokenizers read what is there; remove it")


def _check_consistency(folder: Path, manifest: Manifest) -> None:
    """What the files' checksums cannot show: a manifest whose parts contradict each other."""
    inputs = {tensor.name: tensor.shape for tensor in manifest.decoder.inputs}
    outputs = {tensor.name for tensor in manifest.decoder.outputs}
    for state in manifest.cache_states:
        if inputs.get(state.input) != state.shape or state.output not in outputs:
            raise BundleError(
                f"{folder / MANIFEST}: cache state {state.input!r} -> {state.output!r} {list(state.shape)} is no input "
                "and output of the decoder; export the model again"
            )
    if len(manifest.layers) != manifest.sizes.L:
        raise BundleError(
            f"{folder / MANIFEST} describes {len(manifest.layers)} layers, sizes.L is {manifest.sizes.L}; "
            "export the model again"
        )


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def file_entry(folder: Path, name: str) -> FileEntry:
    """Describe a file that was just written into ``folder``."""
    path = folder / name
    return FileEntry(file=name, bytes=path.stat().st_size, sha256=_sha256(path))


def check_target(target: Path, *, force: bool) -> None:
    """Raise BundleError unless a bundle may be written at ``target``; cheap, for use before the work is done."""
    try:
        taken = target.exists() or target.is_symlink()
        bundle = (target / MANIFEST).is_file()
        parent = target.absolute().parent
        existing = next(folder for folder in (parent, *parent.parents) if folder.exists())
        writable = existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)
    except OSError as error:
        raise BundleError(f"cannot write {target}: {error.strerror}; choose another --output") from error
    if taken and not force:
        raise BundleError(f"{target} exists; choose another --output, or replace it with --force")
    if taken and not bundle:
        raise BundleError(f"{target} exists and is no bundle, so --force does not replace it; choose another --output")
    if not writable:
        raise BundleError(f"{existing} cannot be written to; choose another --output")


def write_bundle(target: str | os.PathLike[str], fill: Callable[[Path], Manifest], *, force: bool = False) -> Bundle:
    """Write a bundle atomically: ``fill`` writes its files into an empty folder and returns the manifest.

    The folder takes the name ``target`` only when it is whole; after a failure nothing is left. With ``force`` an
    existing bundle is replaced, at the very end. Raises BundleError for an output that exists, that cannot be written,
    or for a full disk.
    """
    destination = Path(target)
    check_target(destination, force=force)
    try:
        destination.absolute().parent.mkdir(parents=True, exist_ok=True)
        manifest = write_folder(destination, lambda folder: with_entry(folder, MANIFEST, fill(folder)), force=force)
    except OSError as error:
        raise BundleError(f"cannot write {destination}: {error.strerror or error}; nothing was left behind") from error
    return Bundle(destination, manifest)


def with_entry(folder: Path, name: str, entry: AnyEntry) -> AnyEntry:
    """Write what describes a folder into it, as the file ``name``."""
    (folder / name).write_text(entry.model_dump_json(indent=2) + "\n", encoding="utf-8")
    return entry
