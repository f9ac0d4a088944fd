"""Records of runs: everything that results depend on, so that no other run continues them.

out.jsonl                the results
.out.jsonl.run.json      the record of their run, a JSON object
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

from tightbeam.deploy.bundle.atomic_file import write_file
from tightbeam.deploy.bundle.manifest import MANIFEST
from tightbeam.deploy.errors import BundleError, InputError
from tightbeam.deploy.generation.options import GenerationOptions
from tightbeam.deploy.generation.stop_strings import StopStrings
from tightbeam.deploy.tries.trie import Trie

__all__ = ["RunRecord", "bundle_digest", "check_same_run", "settings_in_json"]

MOST_SHOWN = 200
"""Characters of a value in JSON; a longer one is recorded by its SHA-256."""
BUNDLE = "bundle"
"""Name of the digest of the bundle."""


@dataclass(frozen=True)
class RunRecord:
    """The record of a run whose results are one file.

    Attributes
    ----------
    path : Path
        The record's file.
    values : mapping
        What the results depend on, by name, in JSON's types.
    """

    path: Path
    values: Mapping[str, Any]

    @classmethod
    def beside(cls, output: str, values: Mapping[str, Any]) -> RunRecord:
        """Return the record of a run that writes the file ``output``."""
        path = Path(output)
        return cls(path.with_name(f".{path.name}.run.json"), json.loads(json.dumps(values)))

    def write(self) -> None:
        """Write the record. A folder that takes no other file gets none, and `check` says so."""
        with suppress(OSError):
            write_file(self.path, [json.dumps(self.values, ensure_ascii=False, indent=1).encode()])

    def check(self, output: str) -> bool:
        """Compare the run that began ``output`` with this one.

        Parameters
        ----------
        output : str
            The name of the results, for the error.

        Returns
        -------
        bool
            False if the record is missing or cannot be read.

        Raises
        ------
        InputError
            Another run began them, or its record is damaged.
        """
        try:
            before = json.loads(self.path.read_bytes())
        except OSError:
            return False
        except (ValueError, RecursionError):
            before = None
        if not isinstance(before, dict):
            raise InputError(
                f"{self.path} is damaged, it should have the settings of {output}; remove it to go on without comparing"
            )
        check_same_run(output, before, self.values)
        return True


def check_same_run(output: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise InputError, naming what differs, unless a run is the one that made the results in ``output``."""
    for name in [*now, *(name for name in before if name not in now)]:
        old, new = before.get(name), now.get(name)
        if old != new:
            if name == BUNDLE:
                raise InputError(f"{output} holds results of another bundle; pass that one, or another --output")
            raise InputError(
                f"{output} holds results of other settings ({name} is {json.dumps(old)} there, {json.dumps(new)} "
                "here); pass the same ones, or another --output"
            )


def settings_in_json(options: GenerationOptions) -> dict[str, Any]:
    """Return resolved settings in JSON's types, by the names of their options; a long value as its SHA-256."""
    return {own.name.replace("_", "-"): _short(_in_json(getattr(options, own.name))) for own in fields(options)}


def _in_json(value: Any) -> Any:
    """Return a setting in JSON's types; a trie becomes a digest of its arrays."""
    if isinstance(value, Trie):
        return hashlib.sha256(value.offsets.tobytes() + value.tokens.tobytes()).hexdigest()
    if isinstance(value, StopStrings):
        return list(value.strings)
    if is_dataclass(value):
        return {own.name: _in_json(getattr(value, own.name)) for own in fields(value)}
    if isinstance(value, tuple):
        return [_in_json(part) for part in value]
    return value.hex() if isinstance(value, bytes) else value


def _short(value: Any) -> Any:
    text = json.dumps(value)
    return value if len(text) <= MOST_SHOWN else f"SHA-256 {hashlib.sha256(text.encode()).hexdigest()}"


def bundle_digest(bundle: Path) -> str:
    """Return the SHA-256 of bundle.json, which has the checksums of all files of the bundle. Raises BundleError."""
    try:
        return hashlib.sha256((bundle / MANIFEST).read_bytes()).hexdigest()
    except OSError as error:
        reason = (error.strerror or "").lower()
        raise BundleError(
            f"{bundle / MANIFEST} cannot be read ({reason}); put the bundle there, or share its folder"
        ) from None
