"""Reader of bundles. A bundle is the one folder that passes from the build machine to the serving machine.

    bundle.json            the manifest: the model, its sizes, its settings, and the checksum of each file
    encoder.onnx           the graphs of one variant; they hold no weights
    decoder.onnx
    prompt.onnx            decoder-only models: a part of a prompt, if its caches allow that
    prefill.onnx           models with an encoder: the decoder over several tokens, if its caches allow that
    weights.safetensors    every weight once; the graphs point into it as external data
    tokenizer files        as the checkpoint ships them, if it has a tokenizer

Nothing in it is pickled, and everything is checked when it is read.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import dataclass, field, replace
from io import BufferedReader
from pathlib import Path, PurePosixPath

from pydantic import ValidationError

from tightbeam.deploy.bundle.manifest import FORMAT_VERSION, MANIFEST, FileEntry, Manifest, TokenizerEntry
from tightbeam.deploy.bundle.verified import VerifiedFiles
from tightbeam.deploy.bundle.weights_check import WeightsCheck, changed, unreadable, wrong_size
from tightbeam.deploy.errors import BundleError, InputError, place_of, short_repr

__all__ = ["Bundle", "check_file", "manifest_digest", "sha256_of"]

MOST_MANIFEST_BYTES = 16 << 20
"""Bound on ``bundle.json``, whose parsing takes over a second for 10 MB. Exports of 12 layers in int8 wrote 0.06 MB."""

CHECKPOINT = "config.json"
"""A file of every checkpoint of transformers, and of no bundle's top folder without a manifest."""


@dataclass(frozen=True)
class Bundle:
    """A bundle that was read and checked.

    Attributes
    ----------
    path : Path
        The folder.
    manifest : Manifest
        The content of ``bundle.json``.
    weights_check : WeightsCheck or None
        The comparison of the weights file with its SHA-256, which runs in a thread; None if the file was compared at
        once, or is not compared.
    """

    path: Path
    manifest: Manifest
    weights_check: WeightsCheck | None = field(default=None, compare=False)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        verify: bool | VerifiedFiles = True,
        weights_later: bool = False,
        manifest_sha256: str | None = None,
    ) -> Bundle:
        """Read and check a bundle.

        Parameters
        ----------
        path : str or path
            The folder.
        verify : bool or VerifiedFiles
            Compare every file with its SHA-256; with a record of verified files, those alone that it lacks, which are
            added to it.
        weights_later : bool
            Compare the weights file in a thread, which `Bundle.wait_for_weights` waits for, rather than at once.
        manifest_sha256 : str, optional
            The expected SHA-256 of ``bundle.json`` in hexadecimal digits, which you got from somebody you trust. With
            ``verify`` it stands for every file of the bundle, since ``bundle.json`` has the SHA-256 of each.

        Returns
        -------
        Bundle

        Raises
        ------
        BundleError
            A file is missing, changed, truncated, unreadable, of a newer format, or outside the folder. The message
            names it.
        """
        folder = Path(path)
        text = _manifest_text(folder)
        if manifest_sha256 is not None:
            _check_digest(folder, text, manifest_sha256)
        manifest = _parse_manifest(folder, text)
        bundle = cls(folder, manifest)
        later = manifest.weights if verify and weights_later else None
        for entry in manifest.files():
            check_file(folder, entry, False if entry is later else verify)
        if manifest.tokenizer:
            _check_tokenizer(folder, manifest.tokenizer)
        _check_consistency(folder, manifest)
        if later is not None:
            return replace(bundle, weights_check=WeightsCheck(bundle.file(later), later, verify))
        return bundle

    def wait_for_weights(self) -> None:
        """Wait until the weights file is compared with its SHA-256, if ``load`` left that for later.

        Raises
        ------
        BundleError
            The file was changed, or cannot be read. Every call raises it.
        """
        if self.weights_check is not None:
            self.weights_check.wait()

    def stop_comparing(self) -> None:
        """Stop comparing the weights file with its checksum, because the bundle is no longer needed."""
        if self.weights_check is not None:
            self.weights_check.stop()

    def __repr__(self) -> str:
        about = self.manifest
        return (
            f"Bundle({str(self.path)!r}, model={about.model!r}, family={about.family!r}, variant={about.variant!r}, "
            f"precision={about.precision!r})"
        )

    def file(self, entry: FileEntry) -> Path:
        """Return the path of a file of the bundle.

        Parameters
        ----------
        entry : FileEntry
            An entry of ``manifest``, such as ``manifest.weights``.

        Returns
        -------
        Path
        """
        return self.path / entry.file


def manifest_digest(folder: Path) -> str:
    """SHA-256 of a bundle's ``bundle.json``, in hexadecimal digits. Raises BundleError if it cannot be read."""
    return hashlib.sha256(_manifest_text(folder)).hexdigest()


def _check_digest(folder: Path, text: bytes, expected: str) -> None:
    """Raise BundleError unless ``bundle.json`` has the SHA-256 that the caller expects."""
    if re.fullmatch("[0-9a-fA-F]{64}", expected) is None:
        raise InputError(
            f"manifest_sha256 is {short_repr(expected)}, expected 64 hexadecimal digits; show-bundle prints them"
        )
    if (found := hashlib.sha256(text).hexdigest()) != expected.lower():
        raise BundleError(
            f"{folder / MANIFEST} has the SHA-256 {found}, expected {expected.lower()}: it is another bundle, or was "
            "changed; get it again from where the expected digest comes from"
        )


def _manifest_text(folder: Path) -> bytes:
    """The bytes of ``bundle.json``. Raises BundleError if there is none, or it cannot be read."""
    path = folder / MANIFEST
    try:
        if not folder.is_dir():
            raise BundleError(f"{folder} is not a folder; expected a bundle made by export-model")
        if not path.is_file():
            if (folder / CHECKPOINT).is_file():
                raise BundleError(f"{folder} is a checkpoint, not a bundle; export it first: export-model {folder}")
            raise BundleError(f"{folder} has no {MANIFEST}; expected a bundle made by export-model")
        with (folder / _inside(MANIFEST, folder)).open("rb") as file:
            text = file.read(MOST_MANIFEST_BYTES + 1)
        if len(text) > MOST_MANIFEST_BYTES:
            raise BundleError(
                f"{path} has more than {MOST_MANIFEST_BYTES >> 20} MiB, which no export writes; do not use this bundle"
            )
        return text
    except OSError as error:
        raise BundleError(f"{path} cannot be read ({error.strerror}); check its permissions and the disk") from error


def _parse_manifest(folder: Path, text: bytes) -> Manifest:
    path = folder / MANIFEST
    try:
        data = json.loads(text.decode("utf-8"))
        text = json.dumps(data, allow_nan=False).encode()
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{path} is not JSON ({error}); export the model again") from error
    version = data.get("format_version") if isinstance(data, dict) else None
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise BundleError(
            f"{path} has format_version {short_repr(version)}, expected 1 to {FORMAT_VERSION}; export the model again"
        )
    if version > FORMAT_VERSION:
        raise BundleError(
            f"{path} has format_version {short_repr(version)}, this Tightbeam reads up to {FORMAT_VERSION}; "
            "upgrade Tightbeam, or export the model again with this version"
        )
    try:
        return Manifest.model_validate_json(text, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        where = place_of(first["loc"]) or "the whole"
        raise BundleError(f"{path}: {where}: {first['msg']}; export the model again") from error


def check_file(folder: Path, entry: FileEntry, verify: bool | VerifiedFiles) -> None:
    """Raise BundleError unless ``folder`` has the file of ``entry``. ``verify`` compares its SHA-256 too."""
    path = folder / _inside(entry.file, folder)
    try:
        if not path.is_file():
            raise BundleError(f"{path} is missing; export the model again")
        status = path.stat()
        if status.st_size != entry.bytes:
            raise wrong_size(path, status.st_size, entry)
        record = verify if isinstance(verify, VerifiedFiles) else VerifiedFiles()
        if not verify or record.has(entry.sha256, status):
            return
        with path.open("rb") as stream:
            status = os.fstat(stream.fileno())  # of the file that is read
            if _sha256(stream) != entry.sha256:
                raise changed(path)
        record.add(entry.sha256, status)
    except OSError as error:
        raise unreadable(path, error) from error


def _inside(name: str, folder: Path) -> PurePosixPath:
    """Return the relative path of a file. Raises BundleError if it is outside the folder, links resolved."""
    relative = PurePosixPath(name)
    try:
        stays = (folder / relative).resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError, ValueError):  # a loop of links, a NUL byte
        stays = False
    if relative.is_absolute() or ".." in relative.parts or not stays or not name.isprintable():
        raise BundleError(
            f"{folder / MANIFEST} names {name!r}, which is not a path inside the bundle; do not use this bundle"
        )
    return relative


def _check_tokenizer(folder: Path, entry: TokenizerEntry) -> None:
    """Raise BundleError for unlisted files in the tokenizer's folder, since its library reads the whole folder."""
    inside = _inside(entry.folder, folder)
    named = {PurePosixPath(file.file) for file in entry.files}
    if entry.kind == "tokenizers" and inside / "tokenizer.json" not in named:
        raise BundleError(f"{folder / MANIFEST} names no {inside}/tokenizer.json; export the model again")
    for path in sorted((folder / inside).rglob("*")):
        if PurePosixPath(path.relative_to(folder)) not in named and (path.is_symlink() or not path.is_dir()):
            raise BundleError(f"{path} is not part of the bundle, and tokenizers read the whole folder; remove it")


def _check_consistency(folder: Path, manifest: Manifest) -> None:
    """Raise BundleError for a manifest whose parts contradict each other."""
    inputs = {tensor.name: tensor.shape for tensor in manifest.decoder.inputs}
    outputs = {tensor.name for tensor in manifest.decoder.outputs}
    for state in manifest.cache_states:
        if inputs.get(state.input) != state.shape or state.output not in outputs:
            raise BundleError(
                f"{folder / MANIFEST}: the decoder lacks the cache state {state.input!r} -> {state.output!r} "
                f"{list(state.shape)}; export the model again"
            )
    if manifest.quantized and not manifest.has_integers:
        raise BundleError(
            f"{folder / MANIFEST} has a table of quantised products, the bundle is in {manifest.precision}; "
            "export the model again"
        )
    for entry in manifest.quantized:
        error = getattr(entry, entry.kept)
        if entry.kept != "fp32" and not (error is not None and 0 <= error <= entry.allowed):
            raise BundleError(
                f"{folder / MANIFEST}: {entry.name[:80]!r} is kept as {entry.kept}, whose error {error} is not "
                "allowed; export the model again"
            )
    generated = {state.input for state in manifest.cache_states}
    integers = [tensor.name for tensor in manifest.decoder.inputs if tensor.dtype == "int8"]
    quantized = {"source": any(name not in generated for name in integers)}
    quantized["generated"] = any(name in generated for name in integers)
    for cache in manifest.quantized_caches:
        if not quantized[cache.cache] or not (cache.int8 is not None and 0 <= cache.int8 <= cache.allowed):
            raise BundleError(
                f"{folder / MANIFEST}: the {cache.part} of layer {cache.layer} are not an int8 cache with an allowed "
                f"error: {cache.int8}, expected {cache.allowed} at most; export the model again"
            )
    precisions = {"cache_precision": "source", "generated_cache_precision": "generated"}
    for name, cache_name in precisions.items():
        given = getattr(manifest, name)
        if quantized[cache_name] != (given == "int8"):
            raise BundleError(
                f"{folder / MANIFEST}: {name} is {given!r}, and the decoder's {cache_name} caches are "
                f"{'int8' if quantized[cache_name] else 'float'}; export the model again"
            )
    if len(manifest.layers) != manifest.sizes.L:
        raise BundleError(
            f"{folder / MANIFEST} describes {len(manifest.layers)} layers, sizes.L is {manifest.sizes.L}; "
            "export the model again"
        )


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file in hex."""
    with path.open("rb") as stream:
        return _sha256(stream)


def _sha256(stream: BufferedReader) -> str:
    return hashlib.file_digest(stream, "sha256").hexdigest()
