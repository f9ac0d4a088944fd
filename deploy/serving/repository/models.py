"""Writer of a model repository for Triton: a bundle becomes a model.

REPOSITORY/NAME/config.pbtxt
REPOSITORY/NAME/README.md          the server's command, and a request
REPOSITORY/NAME/warmup/            the request that is run before the model is ready
REPOSITORY/NAME/VERSION/model.py   the file that Triton's Python backend loads
REPOSITORY/NAME/VERSION/bundle/    a copy of the bundle
REPOSITORY/NAME/VERSION/tries/     copies of tries, if any
REPOSITORY/NAME/VERSION/glossaries/ copies of glossaries, if any
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np

from tightbeam.deploy.bundle.atomic_dir import incomplete_folder, write_folder
from tightbeam.deploy.bundle.engine_files import ENGINE_FILE, ENGINES, build_command, engine_names, load_engine
from tightbeam.deploy.bundle.manifest import MANIFEST, Manifest
from tightbeam.deploy.bundle.reader import Bundle
from tightbeam.deploy.errors import InputError
from tightbeam.deploy.inputs.files.document import terms_of
from tightbeam.deploy.serving.protocol.named_files import GLOSSARIES, TRIES, by_name, copy_beside
from tightbeam.deploy.serving.protocol.parameters import BUNDLE
from tightbeam.deploy.serving.repository.config import (
    MADE_BY,
    WARM_UP,
    WARM_UP_IDS,
    RepositoryError,
    ServingSettings,
    model_config,
    settings_of,
)
from tightbeam.deploy.serving.repository.readme import readme
from tightbeam.deploy.tries.file import check_tries

__all__ = ["ServedModel", "served_models", "settings_there", "write_model"]

CONFIG, README, MODEL = "config.pbtxt", "README.md", "model.py"


@dataclass(frozen=True)
class ServedModel:
    """A model of a repository.

    Attributes
    ----------
    name : str
        The model's name for clients.
    bundle : Bundle
        The bundle of the newest version.
    stream : bool
        True for a model that streams.
    """

    name: str
    bundle: Bundle
    stream: bool


def served_models(repository: Path) -> list[ServedModel]:
    """Read the models of a repository that triton-repo made, by name; needs no protobuf.

    Raises
    ------
    RepositoryError
        There is no such repository, or no such model in it.
    BundleError
        The newest version of a model has no bundle, or a damaged one. Checksums are not compared.
    """
    try:
        found = [folder for folder in sorted(repository.iterdir()) if _is_ours(folder)]
        if not found:
            if (repository / MANIFEST).is_file():
                raise RepositoryError(
                    f"{repository} is a bundle; write a model of it first: triton-repo {repository} models, and then "
                    "serve-local models"
                )
            raise RepositoryError(
                f"{repository} holds no model made by triton-repo; write one: triton-repo BUNDLE {repository}"
            )
        return [
            ServedModel(
                name=model.name,
                bundle=Bundle.load(model / str(max(_versions(model), default=1)) / BUNDLE, verify=False),
                stream="decoupled: true" in (model / CONFIG).read_text(encoding="utf-8"),
            )
            for model in found
        ]
    except OSError as error:
        raise RepositoryError(
            f"cannot read {repository}: {error.strerror or error}; expected a model repository made by triton-repo"
        ) from None


def settings_there(repository: str | os.PathLike[str], name: str, *, force: bool = False) -> ServingSettings:
    """Settings of the model ``name``, to which a version is to be added. Raises RepositoryError where there is none."""
    model = Path(repository) / name
    _check_target(model, force=force, next_version=True)
    return _read_settings(model)


def _read_settings(model: Path) -> ServingSettings:
    try:
        return settings_of((model / CONFIG).read_text(encoding="utf-8"))
    except OSError as error:
        raise RepositoryError(f"cannot read {model / CONFIG}: {error.strerror or error}; check the file") from error


def write_model(
    bundle: Bundle,
    repository: str | os.PathLike[str],
    settings: ServingSettings,
    *,
    force: bool = False,
    next_version: bool = False,
    tries: Sequence[Path] = (),
    glossaries: Sequence[Path] = (),
) -> Path:
    """Write a model that serves a bundle, whole or not at all.

    Parameters
    ----------
    bundle
        The bundle, which is copied.
    repository
        The model repository; made if it does not exist.
    settings
        The model's settings. With ``next_version`` they replace the settings of the whole model.
    force
        Replace a model of the same name, with all its versions.
    next_version
        Add a version to the model of that name.
    tries
        Files of tries, which requests call by their names without the ending.
    glossaries
        Files of glossaries, likewise.

    Returns
    -------
    Path
        The folder of the new version.

    Raises
    ------
    RepositoryError
        No server can run the settings, the repository cannot be written, or the name is taken.
    EngineFileError
        The bundle lacks the TensorRT engine that the settings name.
    """
    settings.check()
    _check_named(bundle.manifest, tries, glossaries)
    engine, _, engine_name = settings.engine.partition(":")
    if engine_name:
        load_engine(bundle, engine_name, verify=False)
    elif engine == "tensorrt" and not engine_names(bundle.path):
        raise RepositoryError(f"bundle {bundle.path} has no TensorRT engine; {build_command(bundle)}")
    made_by = f"tightbeam {version('tightbeam')}"
    config = model_config(bundle.manifest, settings, made_by)
    model = Path(repository) / settings.name
    number = _check_target(model, force=force, next_version=next_version)
    if next_version and _read_settings(model).stream != settings.stream:
        raise RepositoryError(
            f"a version cannot change whether {model} streams, since its clients expect one or the other; "
            "choose another --name, or replace the model with --force"
        )

    def fill_version(folder: Path) -> None:
        shutil.copyfile(Path(__file__).parents[1] / MODEL, folder / MODEL)
        _copy(bundle, folder / BUNDLE, engines=settings.engine != "onnxruntime")
        copy_beside(tries, folder, TRIES)
        copy_beside(glossaries, folder, GLOSSARIES)

    def fill_settings(folder: Path) -> None:
        (folder / "warmup").mkdir(exist_ok=True)
        (folder / "warmup" / WARM_UP).write_bytes(np.array(WARM_UP_IDS, np.int64).tobytes())
        (folder / README).write_text(readme(bundle.manifest, settings, Path(repository)), encoding="utf-8")
        (folder / CONFIG).write_text(f"# Made by triton-repo of {made_by}\n{config}", encoding="utf-8")

    def fill(folder: Path) -> None:
        (folder / str(number)).mkdir()
        fill_version(folder / str(number))
        fill_settings(folder)

    try:
        model.parent.mkdir(parents=True, exist_ok=True)
        if next_version:
            _add_version(model, number, fill_version, fill_settings)
        else:
            write_folder(model, fill, force=force, workplace=_workplace(model.parent))
    except OSError as error:
        raise RepositoryError(f"cannot write {model}: {error.strerror or error}; nothing was left behind") from error
    return model / str(number)


def _check_named(manifest: Manifest, tries: Sequence[Path], glossaries: Sequence[Path]) -> None:
    """Raise RepositoryError for tries and glossaries that cannot be served with a model."""
    if glossaries and not manifest.takes_glossary:
        raise RepositoryError("--glossary is for a model of texts with an encoder and a tokenizer; leave it out")
    try:
        check_tries(by_name(tries, TRIES).values(), manifest.sizes.vocabulary)
        for file in by_name(glossaries, GLOSSARIES).values():
            terms_of(file)
    except InputError as error:
        raise RepositoryError(str(error)) from None


def _check_target(model: Path, *, force: bool, next_version: bool) -> int:
    """Check that a version may be written, before any work, and return its number."""
    try:
        taken = model.exists() or model.is_symlink()
        file = model.parent.exists() and not model.parent.is_dir()
    except OSError as error:
        raise RepositoryError(f"cannot write {model}: {error.strerror or error}; choose another folder") from error
    if file:
        raise RepositoryError(f"{model.parent} is a file, expected a folder; choose another path")
    ours = taken and _is_ours(model)
    if force and next_version:
        raise RepositoryError("--force replaces the versions that --next-version keeps; pass one of them")
    if taken and not ours:
        raise RepositoryError(f"{model} exists, and was not made by triton-repo; choose another --name")
    if taken and not force and not next_version:
        raise RepositoryError(
            f"{model} exists; pass --next-version to add a version, --force to replace it, or another --name"
        )
    if next_version and not taken:
        raise RepositoryError(f"{model} does not exist, so it has no next version; leave --next-version out")
    if not next_version:
        return 1
    return 1 + max(_versions(model), default=0)


def _is_ours(model: Path) -> bool:
    try:
        return f'key: "{MADE_BY}"' in (model / CONFIG).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return False


def _versions(model: Path) -> list[int]:
    return [int(path.name) for path in model.iterdir() if path.name.isdecimal()]


def _workplace(repository: Path) -> Path:
    """The folder in which a model is written before it is moved to its name.

    It is outside the repository if possible: a server that loads the whole repository does not start if one folder in
    it cannot be loaded.
    """
    repository = repository.resolve()
    parent = repository.parent
    one_disk = parent.stat().st_dev == repository.stat().st_dev
    return parent if one_disk and os.access(parent, os.W_OK | os.X_OK) else repository


def _add_version(
    model: Path, number: int, fill_version: Callable[[Path], None], fill_settings: Callable[[Path], None]
) -> None:
    """Add a version, and replace the settings; if one fails, neither is done."""
    version = model / str(number)
    with incomplete_folder(model, "settings") as partial:
        fill_settings(partial)
        write_folder(version, fill_version)
        try:
            files = [path for path in partial.rglob("*") if path.is_file()]
            for path in sorted(files, key=lambda path: path.name == CONFIG):  # last: the only one that the server reads
                target = model / path.relative_to(partial)
                target.parent.mkdir(exist_ok=True)
                path.replace(target)
        except BaseException:
            shutil.rmtree(version)
            raise


def _copy(bundle: Bundle, target: Path, *, engines: bool) -> None:
    """Copy the files that the manifests of the bundle and of its engines name, and no others."""
    for name in (MANIFEST, *(entry.file for entry in bundle.manifest.files())):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(bundle.path / name, target / name)
    for name in engine_names(bundle.path) if engines else []:
        engine = load_engine(bundle, name)
        folder = target / ENGINES / name
        folder.mkdir(parents=True)
        for file in (ENGINE_FILE, *(entry.file for entry in engine.entry.files())):
            shutil.copyfile(engine.path / file, folder / file)
