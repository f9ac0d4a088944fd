"""Writer of bundles, and of engines in them: a folder is written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from tightbeam.deploy.bundle.atomic_dir import write_folder
from tightbeam.deploy.bundle.engine_files import ENGINE_FILE, ENGINES, BuiltEngine, EngineEntry, is_engine_name
from tightbeam.deploy.bundle.manifest import MANIFEST, Entry, FileEntry, Manifest
from tightbeam.deploy.bundle.reader import Bundle, sha256_of
from tightbeam.deploy.errors import BundleError, EngineFileError

__all__ = ["check_engine_target", "check_target", "file_entry", "with_entry", "write_bundle", "write_engine"]

AnyEntry = TypeVar("AnyEntry", bound=Entry)


def file_entry(folder: Path, name: str) -> FileEntry:
    """Return the entry of a file that was written into ``folder``."""
    path = folder / name
    return FileEntry(file=name, bytes=path.stat().st_size, sha256=sha256_of(path))


def check_target(target: Path, *, force: bool) -> None:
    """Raise BundleError unless a bundle may be written at ``target``. Cheap, to be called before an export."""
    try:
        empty = bool(target.name) and target.is_dir() and not target.is_symlink() and not any(target.iterdir())
        taken = not empty and (target.exists() or target.is_symlink())
        bundle = (target / MANIFEST).is_file()
        parent = target.absolute().parent
        existing = next(folder for folder in (parent, *parent.parents) if folder.exists())
        writable = existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)
    except OSError as error:
        raise BundleError(f"cannot write {target}: {error.strerror}; choose another --output") from error
    if taken and not bundle:
        raise BundleError(f"{target} exists and is not a bundle, so --force cannot replace it; take another --output")
    if taken and not force:
        raise BundleError(f"{target} exists; choose another --output, or replace it with --force")
    if not writable:
        raise BundleError(f"{existing} cannot be written to; choose another --output")


def write_bundle(target: str | os.PathLike[str], fill: Callable[[Path], Manifest], *, force: bool = False) -> Bundle:
    """Write a bundle atomically: the folder gets the name ``target`` when it is complete. A failure leaves nothing.

    Parameters
    ----------
    target : str or path
    fill : callable
        Writes the files into an empty folder, and returns the manifest.
    force : bool
        Replace an existing bundle, at the very end.

    Raises
    ------
    BundleError
        ``target`` exists and is not empty, or cannot be written, or the disk is full.
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
    """Write ``entry`` as JSON to the file ``name`` of ``folder``, and return it."""
    (folder / name).write_text(entry.model_dump_json(indent=2) + "\n", encoding="utf-8")
    return entry


def check_engine_target(bundle: Bundle, name: str, *, force: bool = False) -> Path:
    """Return the folder for a new engine. Raises EngineFileError. Cheap, to be called before a build."""
    if not is_engine_name(name):
        raise EngineFileError(
            f"{name!r} is not a name for an engine; choose another --name, without slashes or a leading dot"
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
    """Add an engine to a bundle atomically.

    Parameters
    ----------
    bundle : Bundle
    name : str
    fill : callable
        Writes the files into an empty folder, and returns the entry for ``engine.json``.
    force : bool
        Replace an engine of this name.

    Raises
    ------
    EngineFileError
        The name is invalid or taken, or the folder cannot be written.
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
