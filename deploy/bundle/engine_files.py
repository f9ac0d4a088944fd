"""TensorRT engines of a bundle: what stands beside each of them, and whether one fits this machine.

An engine is a folder of its own below ``engines/``, so that building one changes nothing else of a bundle:

    engines/<name>/engine.json     what it was built for and from
    engines/<name>/encoder.engine, decoder.engine
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from tightbeam.deploy.bundle.atomic_dir import write_folder
from tightbeam.deploy.bundle.manifest import (
    CacheStateEntry,
    EnginePrecision,
    Entry,
    FileEntry,
    PrecisionErrorEntry,
    TensorEntry,
)
from tightbeam.deploy.bundle.reader import Bundle, BundleError, check_file
from tightbeam.deploy.bundle.writer import with_entry
from tightbeam.plugins.tensorrt.distribution import CURRENT

__all__ = [
    "ENGINES",
    "ENGINE_FILE",
    "ENGINE_VERSION",
    "BuiltEngine",
    "EngineEntry",
    "EngineFileError",
    "EngineGraph",
    "EngineLimits",
    "build_command",
    "built_from",
    "check_engine_target",
    "engine_names",
    "find_engine",
    "load_engine",
    "write_engine",
]

ENGINES = "engines"
ENGINE_FILE = "engine.json"
ENGINE_VERSION = 1
Count = Annotated[int, Field(ge=1, lt=2**31)]


class EngineFileError(BundleError):
    """An engine cannot be read, or does not fit; the message names the command that builds the right one."""


class EngineLimits(Entry):
    """The largest run that an engine was built for, under the names of ``build-engine``'s options. ``max_candidates``:
    candidates of a sample at each step."""

    max_batch_size: Count
    max_num_beams: Count
    max_source_length: Count
    max_new_tokens: Count
    max_candidates: Count


class EngineGraph(FileEntry):
    """One serialized engine: its inputs and outputs as TensorRT has them, and how many nodes of each of our operators
    stand in it. ``on_host``: inputs whose values TensorRT reads in host memory, since sizes depend on them."""

    inputs: tuple[TensorEntry, ...]
    outputs: tuple[TensorEntry, ...]
    on_host: tuple[str, ...]
    plugins: dict[str, int]


class EngineEntry(Entry):
    """``engine.json``. ``flavour``: the distribution, ``tensorrt`` or ``tensorrt_rtx``. ``capabilities``: of the GPUs
    it runs on, such as "80". ``built_from``: SHA-256 of the bundle's files it was made of, by name."""

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


@dataclass(frozen=True)
class BuiltEngine:
    """An engine that was read and checked."""

    name: str
    path: Path
    entry: EngineEntry

    def file(self, graph: EngineGraph) -> Path:
        return self.path / graph.file


def built_from(bundle: Bundle) -> dict[str, str]:
    """SHA-256 of what an engine is made of."""
    manifest = bundle.manifest
    return {entry.file: entry.sha256 for entry in (manifest.encoder, manifest.decoder, manifest.weights)}


def engine_names(bundle: Path) -> list[str]:
    """The engines that the folder of a bundle has. Raises EngineFileError."""
    folder = bundle / ENGINES
    try:
        return sorted(
            path.parent.name for path in folder.glob(f"*/{ENGINE_FILE}") if not path.parent.name.startswith(".")
        )
    except OSError as error:
        raise EngineFileError(
            f"{folder} cannot be read ({error.strerror}); check its permissions and the disk"
        ) from error


def load_engine(bundle: Bundle, name: str, *, verify: bool = True) -> BuiltEngine:
    """Read an engine; with ``verify``, compare its files with their checksums.

    Raises EngineFileError for anything missing, changed, truncated, of a newer format, or made from another bundle.
    """
    folder = bundle.path / ENGINES / name
    if not _is_name(name) or not _is_folder(folder):
        there = ", ".join(engine_names(bundle.path)) or "none"
        raise EngineFileError(f"bundle {bundle.path} has no engine {name!r}; it has {there}; {build_command(bundle)}")
    entry = _read_entry(bundle, folder)
    for graph in (entry.encoder, entry.decoder):
        try:
            check_file(folder, graph, verify)
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
    verify: bool = True,
) -> BuiltEngine:
    """The engine that runs on this machine: the one named, or else the only one that fits.

    ``distribution`` and ``version``: of the TensorRT that is here; ``capability``: of the GPU. Raises EngineFileError,
    with the command that builds a fitting engine, where none or several fit.
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
        return load_engine(bundle, fitting[0].name, verify=verify)  # only this one is read as a whole
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
    """What to type for an engine like ``entry`` that fits: the end of an error. ``replaces``: the one it is built in
    place of, by its name."""
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
        raise EngineFileError(f"{path} has engine_version {version!r}, this Tightbeam reads {ENGINE_VERSION}; {again}")
    try:
        return EngineEntry.model_validate_json(json.dumps(data, allow_nan=False), strict=True)
    except (ValidationError, ValueError) as error:
        first = error.errors()[0] if isinstance(error, ValidationError) else {"loc": (), "msg": str(error)}
        where = ".".join(str(part) for part in first["loc"]) or "the whole"
        raise EngineFileError(f"{path}: {where}: {first['msg']}; {again}") from error


def check_engine_target(bundle: Bundle, name: str, *, force: bool = False) -> Path:
    """The folder of an engine that may be written. Raises EngineFileError; cheap, for use before the work is done."""
    if not _is_name(name):
        raise EngineFileError(
            f"{name!r} is no name for an engine; choose another --name, without slashes or a leading dot"
        )
    target = bundle.path / ENGINES / name
    try:
        taken = target.exists()
    except OSError as error:
        raise EngineFileError(f"cannot write {target}: {error.strerror}; choose another --name") from error
    if taken and not force:
        raise EngineFileError(f"{target} exists; choose another --name, or replace it with --force")
    if not os.access(bundle.path, os.W_OK | os.X_OK):
        raise EngineFileError(f"{bundle.path} cannot be written to; check its permissions")
    return target


def write_engine(bundle: Bundle, name: str, fill: Callable[[Path], EngineEntry], *, force: bool = False) -> BuiltEngine:
    """Add an engine to a bundle: ``fill`` writes its files into an empty folder, which takes its place when whole.

    Raises EngineFileError for a name that is none, or taken (unless ``force``), or a folder that cannot be written.
    """
    target = check_engine_target(bundle, name, force=force)
    try:
        target.parent.mkdir(exist_ok=True)
        entry = write_folder(target, lambda folder: with_entry(folder, ENGINE_FILE, fill(folder)), force=force)
    except OSError as error:
        raise EngineFileError(f"cannot write {target}: {error.strerror or error}; nothing was left behind") from error
    finally:
        with suppress(OSError):  # another engine is there, or is being built
            target.parent.rmdir()
    return BuiltEngine(name, target, entry)


def _is_name(name: str) -> bool:
    """Of one folder, that is listed."""
    return name.isprintable() and name == Path(name).name and not name.startswith(".") and name != ""


def _is_folder(path: Path) -> bool:
    """False for what cannot be one, such as a name that is too long."""
    try:
        return path.is_dir()
    except OSError:
        return False
