"""TensorRT engines of a bundle: reading, checking, and choosing the one for this machine.

An engine is a folder of its own below ``engines/``, so that building one changes no other file of the bundle:

    engines/<name>/engine.json     the GPUs, limits and bundle that it was built for
    engines/<name>/encoder.engine, decoder.engine
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from tightbeam.deploy.bundle.manifest import (
    CacheStateEntry,
    EnginePrecision,
    Entry,
    FileEntry,
    PrecisionErrorEntry,
    TensorEntry,
)
from tightbeam.deploy.bundle.reader import Bundle, check_file
from tightbeam.deploy.bundle.verified import VerifiedFiles
from tightbeam.deploy.errors import BundleError, EngineFileError, place_of, short_repr
from tightbeam.plugins.tensorrt.distribution import CURRENT

__all__ = [
    "ENGINES",
    "ENGINE_FILE",
    "ENGINE_VERSION",
    "BuiltEngine",
    "EngineEntry",
    "EngineGraph",
    "EngineLimits",
    "KernelFile",
    "build_command",
    "built_from",
    "engine_names",
    "find_engine",
    "is_engine_name",
    "load_engine",
]

ENGINES = "engines"
ENGINE_FILE = "engine.json"
ENGINE_VERSION = 1
Count = Annotated[int, Field(ge=1, lt=2**31)]


class EngineLimits(Entry):
    """Largest batch of an engine, under the names of ``build-engine``'s options.

    Attributes
    ----------
    max_candidates : int
        Candidates of a sample at each step.
    """

    max_batch_size: Count
    max_num_beams: Count
    max_source_length: Count
    max_new_tokens: Count
    max_candidates: Count


class EngineGraph(FileEntry):
    """Serialized engine of one graph.

    Attributes
    ----------
    inputs, outputs : tuple of TensorEntry
        Inputs and outputs of the engine, with TensorRT's names, types and shapes.
    on_host : tuple of str
        Inputs that TensorRT reads in host memory, because sizes depend on them.
    plugins : dict of str to int
        Number of nodes of each of our operators.
    """

    inputs: tuple[TensorEntry, ...]
    outputs: tuple[TensorEntry, ...]
    on_host: tuple[str, ...]
    plugins: dict[str, int]


class KernelFile(FileEntry):
    """Compiled kernel of our operators. Its file name is a digest of its sources, options and version of CUDA.

    Attributes
    ----------
    kernel : str
        The kernel, a C++ expression.
    capability : str
        Compute capability of the GPUs that it runs on.
    """

    kernel: str
    capability: str


class EngineEntry(Entry):
    """Content of ``engine.json``.

    Attributes
    ----------
    flavour : str
        The TensorRT distribution, by its Python package: ``tensorrt`` or ``tensorrt_rtx``.
    capabilities : tuple of str
        Compute capabilities of the GPUs that it runs on, such as "80".
    built_from : dict of str to str
        SHA-256 of the bundle's files that it was built from, by name.
    kernels : tuple of KernelFile
        Kernels that its plugins may launch; any other kernel is compiled when it is first needed.
    """

    engine_version: int
    made_by: str
    flavour: str
    tensorrt_version: str
    capabilities: tuple[str, ...]
    precision: EnginePrecision
    limits: EngineLimits
    built_from: dict[str, str]
    encoder: EngineGraph
    decoder: EngineGraph
    cache_states: tuple[CacheStateEntry, ...]
    precision_error: PrecisionErrorEntry | None
    kernels: tuple[KernelFile, ...] = ()

    def files(self) -> tuple[FileEntry, ...]:
        """Entries of all files beside ``engine.json``."""
        return (self.encoder, self.decoder, *self.kernels)


@dataclass(frozen=True)
class BuiltEngine:
    """A TensorRT engine that was read and checked."""

    name: str
    path: Path
    entry: EngineEntry

    def file(self, entry: FileEntry) -> Path:
        return self.path / entry.file


def built_from(bundle: Bundle) -> dict[str, str]:
    """Return the SHA-256 of the files that an engine is built from, by name."""
    manifest = bundle.manifest
    return {entry.file: entry.sha256 for entry in (manifest.encoder, manifest.decoder, manifest.weights)}


def engine_names(bundle: Path) -> list[str]:
    """Return the names of the engines in a bundle's folder. Raises EngineFileError."""
    folder = bundle / ENGINES
    try:
        return sorted(
            path.parent.name for path in folder.glob(f"*/{ENGINE_FILE}") if not path.parent.name.startswith(".")
        )
    except OSError as error:
        raise EngineFileError(
            f"{folder} cannot be read ({error.strerror}); check its permissions and the disk"
        ) from error


def load_engine(bundle: Bundle, name: str, *, verify: bool | VerifiedFiles = True) -> BuiltEngine:
    """Read and check an engine.

    Parameters
    ----------
    bundle : Bundle
    name : str
    verify : bool or VerifiedFiles
        Compare its files with their SHA-256, as `Bundle.load` does.

    Raises
    ------
    EngineFileError
        A file is missing, changed, truncated, or of another format, or the engine was built from another bundle.
    """
    folder = bundle.path / ENGINES / name
    if not is_engine_name(name) or not _is_folder(folder):
        there = ", ".join(engine_names(bundle.path)) or "none"
        raise EngineFileError(f"bundle {bundle.path} has no engine {name!r}; it has {there}; {build_command(bundle)}")
    entry = _read_entry(bundle, folder)
    for file in entry.files():
        try:
            check_file(folder, file, verify)
        except BundleError as error:
            reason = str(error).rpartition(";")[0]
            raise EngineFileError(f"{reason}; {build_command(bundle, entry, replaces=name)}") from error
    if entry.built_from != built_from(bundle):
        raise EngineFileError(
            f"{folder} was built from another state of this bundle, which was exported again since; "
            f"{build_command(bundle, entry, replaces=name)}"
        )
    return BuiltEngine(name, folder, entry)


def find_engine(
    bundle: Bundle,
    name: str | None,
    distribution: str,
    version: str,
    capability: str,
    *,
    verify: bool | VerifiedFiles = True,
) -> BuiltEngine:
    """Find the engine for this machine: the one named, or else the only one that fits.

    Parameters
    ----------
    bundle : Bundle
    name : str or None
    distribution, version : str
        The TensorRT package of this machine and its version.
    capability : str
        Compute capability of the GPU.
    verify : bool or VerifiedFiles
        Compare the engine's files with their SHA-256, as `Bundle.load` does.

    Raises
    ------
    EngineFileError
        No engine fits, or several do. The message ends with the command that builds one.
    """
    names = [name] if name is not None else engine_names(bundle.path)
    wanted = build_command(bundle, capability=capability)
    if not names:
        raise EngineFileError(f"bundle {bundle.path} has no TensorRT engine; {wanted}")
    engines, misfits = [], {}
    for one in names:
        try:
            engine = load_engine(bundle, one, verify=False)
        except EngineFileError as error:
            if len(names) == 1:
                raise
            misfits[one] = f"cannot be used ({str(error).partition('; build one')[0]})"
            continue
        engines.append(engine)
        if (misfit := _misfit(engine.entry, distribution, version, capability)) is not None:
            misfits[one] = misfit
    fitting = [engine for engine in engines if engine.name not in misfits]
    if len(fitting) == 1:
        return load_engine(bundle, fitting[0].name, verify=verify)  # only this one is verified
    if fitting:
        several = ", ".join(engine.name for engine in fitting)
        raise EngineFileError(f"bundle {bundle.path} has several engines that fit: {several}; name one, tensorrt:NAME")
    reasons = "; ".join(f"{one} {reason}" for one, reason in misfits.items())
    if len(names) == 1:
        entry = engines[0].entry
        wanted = build_command(
            bundle, entry, capability, replaces=names[0] if capability in entry.capabilities else None
        )
    raise EngineFileError(f"no engine of {bundle.path} fits this machine: {reasons}; {wanted}")


def _misfit(entry: EngineEntry, distribution: str, version: str, capability: str) -> str | None:
    if (entry.flavour, entry.tensorrt_version) != (distribution, version):
        return f"is for {entry.flavour} {entry.tensorrt_version}, here is {distribution} {version}"
    if capability not in entry.capabilities:
        return f"is for compute capability {', '.join(entry.capabilities)}, this GPU has {capability}"
    return None


def build_command(
    bundle: Bundle, entry: EngineEntry | None = None, capability: str | None = None, *, replaces: str | None = None
) -> str:
    """Return the command that builds an engine like ``entry``, as the end of an error message.

    Parameters
    ----------
    bundle : Bundle
    entry : EngineEntry, optional
        The engine whose precision and limits to take.
    capability : str, optional
        Compute capability of the GPU; by default the capabilities of ``entry``, or the GPU of this machine.
    replaces : str, optional
        Name of the engine to replace.
    """
    if bundle.manifest.precision != "fp32":
        return f"engines are built from a bundle in fp32, and this one is in {bundle.manifest.precision}"
    chosen = capability or (",".join(entry.capabilities) if entry else CURRENT)
    options = [f"--compute-capability {chosen}"]
    if entry is not None:
        options.append(f"--precision {entry.precision}")
        options += [f"--{limit.replace('_', '-')} {size}" for limit, size in entry.limits.model_dump().items()]
    if replaces is not None:
        options.append(f"--name {shlex.quote(replaces)} --force")
    return f"build one: build-engine {shlex.quote(str(bundle.path))} {' '.join(options)}"


def _read_entry(bundle: Bundle, folder: Path) -> EngineEntry:
    path = folder / ENGINE_FILE
    again = build_command(bundle, replaces=folder.name)
    try:
        text = path.read_bytes()
    except OSError as error:
        raise EngineFileError(f"{path} cannot be read ({error.strerror}); {again}") from error
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise EngineFileError(f"{path} is not JSON ({error}); {again}") from error
    version = data.get("engine_version") if isinstance(data, dict) else None
    if version != ENGINE_VERSION:
        raise EngineFileError(
            f"{path} has engine_version {short_repr(version)}, this Tightbeam reads {ENGINE_VERSION}; {again}"
        )
    try:
        return EngineEntry.model_validate_json(json.dumps(data, allow_nan=False), strict=True)
    except (ValidationError, ValueError) as error:
        first = error.errors()[0] if isinstance(error, ValidationError) else {"loc": (), "msg": str(error)}
        where = place_of(first["loc"]) or "the whole"
        raise EngineFileError(f"{path}: {where}: {first['msg']}; {again}") from error


def is_engine_name(name: str) -> bool:
    """Return True for the name of a visible folder."""
    return name.isprintable() and name == Path(name).name and not name.startswith(".") and name != ""


def _is_folder(path: Path) -> bool:
    """Return True for a folder, False also for an invalid path, such as a name that is too long."""
    try:
        return path.is_dir()
    except OSError:
        return False
