"""The report of a checkpoint, made or taken from the work folder, and the page that reports go to."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from tightbeam.deploy.console import say
from tightbeam.export.checkpoint.resolve import DEMO_FOLDER, checkpoint_name
from tools.real_check.check import Options, Report, check
from tools.real_check.errors import CheckError
from tools.real_check.inputs import RealInputs, folder_beside, read_inputs
from tools.real_check.published import fetched, listed

__all__ = ["above_rule", "report_of"]

REPORT = TypeAdapter(Report)
RULE = "\n---\n"


def report_of(name: str, inputs: Path | None, options: Options, stored: bool) -> Report:
    """Check a checkpoint, or take its stored result. What was found stays in the work folder.

    Parameters
    ----------
    name : str
        A folder, an alias or a hub id.
    inputs : Path or None
        The folder of real inputs; None is the one beside the checkpoint.
    options : Options
    stored : bool
        Take the result that the work folder has, if there is one.

    Raises
    ------
    CheckError
        The stored result cannot be read.
    """
    file = options.work / f"{checkpoint_name(name)}.json"
    if stored and file.exists():
        try:
            return REPORT.validate_json(file.read_bytes())
        except ValidationError:
            raise CheckError(
                f"{file} is not a result of this version; expected what real_check wrote; remove it, or leave out "
                "--stored"
            ) from None
    known_ids = listed()
    try:
        place = fetched(name, known_ids[name]) if name in known_ids else name
        report = check(place, partial(_inputs_of, inputs), options, say)
    except CheckError as error:
        report = Report(name, error=str(error))
    file.write_bytes(REPORT.dump_json(report, indent=1))
    return report


def above_rule(page: Path) -> str:
    """Read what a page has above its first rule; a title if there is no page yet.

    Raises
    ------
    CheckError
        The page is not text.
    """
    if not page.exists():
        return "# Real inputs\n"
    try:
        return page.read_text(encoding="utf-8").partition(RULE)[0]
    except UnicodeDecodeError:
        raise CheckError(f"{page} is not UTF-8; expected a page in Markdown; name another one with --page") from None


def _inputs_of(inputs: Path | None, checkpoint: Path) -> RealInputs:
    """The inputs in a folder, or those that lie beside a checkpoint."""
    if inputs is None and checkpoint == DEMO_FOLDER:
        lines = (DEMO_FOLDER / "examples.txt").read_text(encoding="utf-8").splitlines()
        return RealInputs(DEMO_FOLDER, tuple(lines), (), "", ())
    return read_inputs(inputs or folder_beside(checkpoint))
