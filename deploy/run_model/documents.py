"""`run-model --document` with a translator: each file keeps its format, and its text is translated."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from tightbeam.deploy.bundle.atomic_file import write_file
from tightbeam.deploy.console import say
from tightbeam.deploy.documents.format import Format
from tightbeam.deploy.documents.known_formats import format_of
from tightbeam.deploy.errors import BundleError, DeviceError, InputError
from tightbeam.deploy.inputs.documents import DocumentRunner, TranslatedDocument, glossary_of
from tightbeam.deploy.inputs.result import InputResult
from tightbeam.deploy.model.model import Model
from tightbeam.deploy.run_model.file_run import FileRun
from tightbeam.deploy.run_model.input_files import STDIN
from tightbeam.deploy.run_model.output_file import STDOUT
from tightbeam.deploy.run_model.result_folder import names_folder
from tightbeam.deploy.run_model.summary import RunSummary

__all__ = ["run_documents"]


def run_documents(run: FileRun, model: Model, contents: Iterable[bytes], load_seconds: float) -> int:
    """Translate each file of a run, and write it in its format.

    Parameters
    ----------
    run
        The run, whose sources are documents.
    model
        A translator.
    contents
        The content of each document.
    load_seconds
        Seconds that loading the model took.

    Returns
    -------
    int
        The exit code: 0, or 1 if a document could not be translated.

    Raises
    ------
    BundleError, GenerationError, InputError
        Nothing can be run.
    """
    kinds = [format_of("" if source == STDIN else source, run.document_format) for source in run.sources]
    outputs = _outputs(run, kinds)
    summary = RunSummary("document", load_seconds)

    def on_piece(result: InputResult) -> None:
        summary.tokens += result.new_tokens
        summary.by_default_length |= result.by_default_length

    glossary = None if run.glossary is None else glossary_of(model, run.glossary)
    documents = DocumentRunner(model, run.settings, run.batch_size or 8, run.max_rows, glossary, on_piece)
    every = zip(run.sources, kinds, outputs, contents, strict=True)
    for number, (source, kind, output, data) in enumerate(every, start=1):
        shown = "standard input" if source == STDIN else source
        several = {"file": shown} if len(run.sources) > 1 else {}
        try:
            made = documents.translate(data, kind)
            model.bundle.wait_for_weights()
        except DeviceError:
            raise
        except (BundleError, InputError) as error:
            say(f"error: {shown}: {error}")
            summary.failed += 1
            if run.json_lines:
                _write_line(output, {**several, "line": number, "error": str(error)})
            continue
        summary.inputs += 1
        if not run.quiet:
            for report in made.reports:
                say(f"note: {shown}, {report}")
        if run.json_lines:
            text = {} if kind.binary else {"text": made.data.decode("utf-8-sig", "replace")}
            _write_line(output, {**several, "line": number, **text, "reports": made.reports})
        else:
            _write(output, made)
    if not run.quiet:
        for note in summary.notes():
            say(f"note: {note}")
        say(summary.text())
    return 1 if summary.failed else 0


def _outputs(run: FileRun, kinds: Sequence[Format]) -> list[str]:
    """Return the file that each document is written to. Raises InputError."""
    if run.json_lines:
        if any(kind.binary for kind in kinds):
            raise InputError("--json holds text, and a document is not text; leave --json out, and pass --output")
        if names_folder(run.output):
            raise InputError("--json is one file of results; pass --output the name of a file")
        if run.output != STDOUT:
            Path(run.output).write_bytes(b"")
        return [run.output] * len(kinds)
    if not names_folder(run.output):
        if len(kinds) > 1:
            raise InputError("several documents are several files; pass --output FOLDER/ (or --json)")
        if run.output == STDOUT and kinds[0].binary and sys.stdout.isatty():
            raise InputError(f"a {kinds[0].name} document is not text; pass --output FILE")
        return [run.output]
    found = []
    for source in run.sources:
        if source == STDIN:
            raise InputError("standard input has no name for a file in a folder; pass --output FILE")
        found.append(str(Path(run.output) / Path(source).name))
    for place, path in enumerate(found):
        if path in found[:place]:
            raise InputError(f"two documents would be written to {path}; run one of them with another --output")
        if Path(path).exists() and (not run.force or Path(path).samefile(run.sources[place])):
            raise InputError(f"{path} exists; pass --force to replace a result, or another --output")
    return found


def _write(output: str, made: TranslatedDocument) -> None:
    if output == STDOUT:
        sys.stdout.flush()
        sys.stdout.buffer.write(made.data)
        sys.stdout.buffer.flush()
        return
    Path(output).parent.mkdir(parents=True, exist_ok=True)
    write_file(Path(output), [made.data])


def _write_line(output: str, record: dict[str, object]) -> None:
    line = json.dumps(record, ensure_ascii=False)
    if output == STDOUT:
        print(line, flush=True)
        return
    with open(output, "a", encoding="utf-8", errors="backslashreplace", newline="\n") as file:
        file.write(f"{line}\n")
