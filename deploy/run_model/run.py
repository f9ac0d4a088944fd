"""`run-model` on this machine: from the command line to a result for each line, file or document."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TextIO

from tightbeam.deploy.bundle.operators import operators_note
from tightbeam.deploy.console import counted, printable, say
from tightbeam.deploy.errors import InputError
from tightbeam.deploy.generation.languages import names_of
from tightbeam.deploy.generation.layers import COMMAND_LINE, with_source
from tightbeam.deploy.generation.options import GenerationOptions
from tightbeam.deploy.generation.whisper import has_timestamps
from tightbeam.deploy.generation.without_effect import remove_settings_without_effect
from tightbeam.deploy.inputs.file_lines import file_lines, named_files
from tightbeam.deploy.inputs.files.audio import is_audio
from tightbeam.deploy.inputs.files.image import is_image
from tightbeam.deploy.inputs.files.sound_source import SoundSource, is_raw_sound
from tightbeam.deploy.inputs.images import run_images
from tightbeam.deploy.inputs.lines import run_lines, stream_lines
from tightbeam.deploy.inputs.newlines import Newlines, escaped, kept, spaced
from tightbeam.deploy.inputs.open_input import OpenInput
from tightbeam.deploy.inputs.output import TextSegment
from tightbeam.deploy.inputs.recordings import run_recordings
from tightbeam.deploy.inputs.result import InputResult
from tightbeam.deploy.inputs.run import FoundSegments, FoundText
from tightbeam.deploy.inputs.windows import run_windows
from tightbeam.deploy.model.model import Model
from tightbeam.deploy.run_model.file_run import FileRun
from tightbeam.deploy.run_model.input_files import (
    AUDIO_NAMES,
    IDS,
    IMAGE_NAMES,
    STDIN,
    TEXT,
    InputFiles,
    Place,
    expand_patterns,
    json_objects,
    recording_on_standard_input,
    sound_on_standard_input,
)
from tightbeam.deploy.run_model.output_file import STDOUT, check_output, open_output
from tightbeam.deploy.run_model.progress import progress_of
from tightbeam.deploy.run_model.record import RunRecord, bundle_digest, settings_in_json
from tightbeam.deploy.run_model.result_folder import ResultFolder, names_folder
from tightbeam.deploy.run_model.resume import WrittenResults, read_written
from tightbeam.deploy.run_model.streamed_line import StreamedLine
from tightbeam.deploy.run_model.subtitles import FORMATS, SubtitleWriter
from tightbeam.deploy.run_model.summary import RunSummary

__all__ = ["run_files"]


PROMPT = "--prompt"


def run_files(run: FileRun) -> int:
    """Run all inputs, and write the results as they come.

    Returns
    -------
    int
        The exit code: 0, or 1 if an input could not be run; each failed input is named.

    Raises
    ------
    BundleError, GenerationError, InputError
        Nothing can be run, or the model failed.
    OSError
        An input cannot be read, or a result cannot be written.
    """
    run = replace(run, sources=expand_patterns(run.sources))
    _check(run)
    if run.raw is not None and STDIN in run.sources:
        live = SoundSource("standard input", run.raw, sound_on_standard_input("--sample-rate with -", run.sources))
        run = replace(run, live=live, stream=True)
    elif run.sound_input:
        with recording_on_standard_input(run.sources, live=run.stream) as found:
            if isinstance(found, SoundSource):
                return _run(replace(run, live=found))
            return _run(replace(run, sources=[found], recording_file=found))
    return _run(run)


def _run(run: FileRun) -> int:
    """Load the model, and run all inputs."""
    document = run.document and run.prompt is None
    if _is_typed(run) and document:  # the text is read whole before the model is loaded
        say("note: reading one text from standard input; end with Ctrl-D")
    sound = run.raw is not None or run.live is not None
    files = InputFiles(list(run.sources), document=document, sound=sound)
    start = time.perf_counter()
    model = Model.load(run.bundle, engine=run.engine, device=run.device, threads=run.threads)
    load_seconds = time.perf_counter() - start
    lines = run.line_format
    if document and not (lines.exact or lines.ids or lines.field):
        from tightbeam.deploy.run_model.documents import run_documents

        if model.manifest.translates:
            _check_documents(run)
            return run_documents(run, model, files, load_seconds)
    if (run.glossary, run.document_format) != (None, None):
        raise InputError("--glossary and --document-format are for --document with a translator; leave them out")
    if run.prompt is not None and not model.manifest.reads_text:
        run = replace(run, settings=with_source({**run.settings, "prompt": run.prompt}, COMMAND_LINE))
    elif run.prompt is not None:
        if tuple(run.sources) != (STDIN,):
            raise InputError("--prompt is the input of a text model, and a file is named too; leave one out")
        exact = replace(run.line_format, exact=True)
        files = InputFiles.of_text(PROMPT, run.prompt)
        run = replace(run, sources=[PROMPT], document=True, line_format=exact)
    return _Run(run, files, model).go(load_seconds)


def _check(run: FileRun) -> None:
    """Raise InputError for options that do not go together, and for an output that cannot be used."""
    if run.resume is not None:
        if run.output != STDOUT or run.force:
            raise InputError("--resume names the output, and replaces nothing; leave --output and --force out")
        if run.resume == STDOUT:
            raise InputError("--resume - is standard output, which keeps no results; name the file that has them")
        if run.stream:
            raise InputError("--resume needs whole results, and --stream writes pieces; leave one out")
    if run.resume is not None or not names_folder(run.output):
        check_output(run.target, run.force, run.sources, option=run.option)


def _check_documents(run: FileRun) -> None:
    """Raise InputError for options that the documents of a translator have no use for."""
    for asked, name in ((run.stream, "--stream"), (run.resume, "--resume"), (run.line_format.truncate, "--truncate")):
        if asked:
            raise InputError(f"{name} is not for --document with a translator, which runs sentences; leave it out")


def _is_typed(run: FileRun) -> bool:
    """True if the input is typed, so that a note should say that it is read."""
    return STDIN in run.sources and sys.stdin is not None and sys.stdin.isatty() and not run.quiet


class _Run:
    """A run with its model loaded. Raises InputError if the options do not fit the model."""

    def __init__(self, run: FileRun, files: InputFiles, model: Model) -> None:
        line_format = run.line_format
        if run.document and not (line_format.exact or line_format.ids or line_format.field) and model.decoder_only:
            run = replace(run, line_format=replace(line_format, exact=True))
        elif run.document and not line_format.exact:
            if not (line_format.ids or line_format.field):
                run = replace(run, line_format=replace(line_format, chunks=True))
            files.join_lines()
        self._run, self._files, self._model = run, files, model
        self._shown = ExitStack()  # the file of subtitles that is being written
        self._writer: SubtitleWriter | None = None
        self._place: Place | None = None  # of the input of which pieces are written
        self._line: StreamedLine | None = None  # of that input
        self._escapes_noted = False
        whole = model.is_speech or model.reads_images
        by_name = whole and run.line_format.field is None
        accepts: Callable[[str], bool] | None = (is_audio if model.is_speech else is_image) if by_name else None
        if run.raw is not None and model.is_speech:
            accepts = is_raw_sound
        files.take_folders(accepts, "sound files" if model.is_speech else "image files")
        self._check_kind()
        if by_name:
            files.take_binary_files()
        self._settings, notes = remove_settings_without_effect(
            dict(run.settings), speech=model.has_windows, defaults=model.manifest.generation
        )
        self._folder: ResultFolder | None = None
        self._check_subtitles()
        self._check_folder(whole)
        self._options: GenerationOptions = model.settings.options(self._settings)
        self._check_rows()
        self._check_scoring()
        if not whole and not run.line_format.ids:
            model.text.require_tokenizer()
        kind = IDS if run.line_format.ids else TEXT
        if whole:
            kind = AUDIO_NAMES if model.is_speech else IMAGE_NAMES
        if run.line_format.field is not None:
            kind = json_objects(run.line_format.field)
        files.check(kind)
        if kind is TEXT and not run.document and files.begins_with_object():
            notes.append("lines are JSON objects, and each is read as a text; --json-input FIELD reads a field of it")
        if _is_typed(run) and not run.document:
            notes.append(f"reading from standard input, {kind.short} in each line; end with Ctrl-D")
        self._newlines = self._choose_newlines()
        slower = operators_note(model.bundle) if run.engine == "onnxruntime" else None
        self._note(*notes, *([slower] if slower else ()))
        self._unit = "file" if whole else "document" if run.document else "line"

    def go(self, load_seconds: float) -> int:
        """Run the inputs without a result, and return the exit code."""
        run, files = self._run, self._files
        target = STDOUT if self._folder is not None else run.target
        self._record = RunRecord.beside(target, self._depends_on())
        written, lines = self._skip_written()
        summary = RunSummary(self._unit, load_seconds)
        hidden = run.quiet or (run.target == STDOUT and sys.stdout.isatty())
        results = self._results(lines, first=written.count + 1)
        opened = open_output(target, None if run.resume is None else written, self._record.write)
        shown = progress_of(hidden, files.count, written.count, sound=self._model.has_windows)
        # If writing fails, results are closed at once: Python must not end while a thread runs the model.
        with opened as sink, shown as progress, closing(results), self._shown:

            def on_transcribed(seconds: float) -> None:
                summary.audio_seconds += seconds
                progress.advance(0, summary.audio_seconds, summary.rates())

            self._on_transcribed, self._on_read = on_transcribed, progress.on_read
            for result in results:
                if isinstance(result, FoundSegments):
                    with suppress(InputError):  # an error of a file, which is raised again with the result
                        if run.stream and run.subtitles is not None:
                            self._show(sink, result.result, result.segments)
                    continue
                if isinstance(result, FoundText):
                    self._write_piece(sink, result)
                    continue
                self._model.bundle.wait_for_weights()  # otherwise changed weights would be an error of every line
                place, self._place = self._place_of(result), None
                if result.error is not None and run.recording_file is not None:
                    result.error = result.error.replace(run.recording_file, "standard input")
                self._write(sink, result, place)
                self._report(result, place.prefix)
                summary.add(result)
                counted = result.segments is not None and self._model.has_windows  # window by window
                if not counted and result.error is None:
                    summary.audio_seconds += result.seconds
                if result.error is not None and not result.seconds:
                    progress.on_read(0)
                progress.advance(1, summary.audio_seconds, summary.rates())
        if not run.quiet:
            self._note(*summary.notes())
            say(summary.text())
        if summary.failed:
            say(f"error: {summary.failed} of the {self._unit}s could not be run; each is named above")
        return 1 if summary.failed else 0

    def _place_of(self, result: InputResult) -> Place:
        """Return the place of the present input, which its result then names."""
        if self._place is None:
            self._place = self._files.next_place()
        result.number, result.file = self._place.number, self._place.file if self._files.several else None
        return self._place

    def _prefix(self, place: Place) -> str:
        """Return what stands before each text of an input: the name of its file, as in the lines of grep."""
        return f"{printable(place.file)}\t" if self._files.several and place.is_input else ""

    def _write_piece(self, sink: TextIO, found: FoundText) -> None:
        """Write a piece of the text of the present input."""
        self._model.bundle.wait_for_weights()
        place, result = self._place_of(found.result), found.result
        if self._run.json_lines:
            file = {} if result.file is None else {"file": result.file}
            record = {**file, "line": result.number, "piece": found.text}
            sink.write(f"{json.dumps(record, ensure_ascii=False)}\n")
        else:
            self._line = self._line or StreamedLine(self._newlines, self._prefix(place))
            sink.write(self._line.add(found.text))
        sink.flush()

    def _write(self, sink: TextIO, result: InputResult, place: Place) -> None:
        """Write a result in the requested format: in a folder to a file of its own."""
        run = self._run
        if run.subtitles is None:
            line = result.as_json() if run.json_lines else result.as_text(self._newlines)
            self._note_escapes(result)
            if self._folder is not None:
                self._write_file(self._folder, result, line)
                return
            if not run.json_lines:
                line = "\n".join(f"{self._prefix(place)}{own}" for own in line.split("\n"))
            if self._line is not None:
                line = self._line.rest(line)
            sink.write(f"{line}\n")  # in one call, so that Ctrl-C leaves whole lines
        elif result.error is None:
            try:
                self._show(sink, result, (result.segments or []) if self._writer is None else [])
            except InputError as error:
                result.error = str(error)
        self._writer = self._line = None
        self._shown.close()
        sink.flush()

    def _write_file(self, folder: ResultFolder, result: InputResult, text: str) -> None:
        """Write the text of a result to its own file; of an error only JSON is written."""
        if result.error is not None and not self._run.json_lines:
            return
        try:
            with folder.open(result.source or str(result.number)) as file:
                file.write(f"{text}\n")
        except InputError as error:
            result.error = str(error)

    def _show(self, sink: TextIO, result: InputResult, segments: Sequence[TextSegment]) -> None:
        """Write further subtitles of the present recording. Raises InputError if its file is taken."""
        assert self._run.subtitles is not None
        if self._writer is None:
            self._file = sink
            if self._folder is not None:
                self._file = self._shown.enter_context(self._folder.open(result.source or str(result.number)))
            self._writer = SubtitleWriter(self._run.subtitles, self._run.max_words)
        self._file.write(self._writer.add(segments))  # in one call, so that Ctrl-C leaves whole subtitles
        self._file.flush()

    def _choose_newlines(self) -> Newlines:
        """Return how texts are written: one alone as it is, and others in a line each, a language model's without a
        loss."""
        run = self._run
        one_document = run.document and self._files.count == 1 and run.resume is None
        on_screen = _is_typed(run) and run.target == STDOUT and sys.stdout.isatty()
        if (one_document or on_screen) and self._options.num_return_sequences == 1:
            return kept
        return escaped if self._model.decoder_only else spaced

    def _note_escapes(self, result: InputResult) -> None:
        """Say once that newlines are written as escapes."""
        if self._newlines is not escaped or self._run.json_lines or self._escapes_noted:
            return
        if any(text != escaped(text) for text in result.texts or ()):
            self._escapes_noted = True
            self._note(r"in a line of results a newline is written as \n, and a backslash as \\; --json has the texts")

    def _check_subtitles(self) -> None:
        run, several = self._run, self._files.count != 1
        if run.subtitles is None:
            return
        if not self._model.is_speech:
            raise InputError(f"--format {run.subtitles} is for speech models, this is {self._kind}; leave it out")
        if not self._model.has_windows and self._model.settings.options(self._settings).vad is None:
            problem = f"--format {run.subtitles} needs times, which this model does not make"
            raise InputError(
                f"{problem}; pass --vad-filter, which finds the times of the speech, or leave --format out"
            )
        if not self._model.has_tokenizer:
            raise InputError(f"--format {run.subtitles} needs text, and this bundle has no tokenizer; pass --json")
        if run.resume is not None or run.json_lines or run.line_format.field is not None:
            raise InputError(
                f"--format {run.subtitles} does not go with --resume, --json or --json-input; leave one out"
            )
        how = self._model.settings.options(self._settings).recording
        if how is not None and how.return_timestamps is False:
            raise InputError(f"--format {run.subtitles} needs timestamps; leave --no-return-timestamps out")
        if self._model.has_windows:
            self._settings = {**self._settings, "return_timestamps": True}
        if several and run.output == STDOUT:
            raise InputError(f"--format {run.subtitles} with several recordings needs --output FOLDER; pass it")
        if several and not names_folder(run.output):
            if Path(run.output).suffix.lower().removeprefix(".") in FORMATS:
                problem = f"--output {run.output} names one file, and several recordings have a file of subtitles each"
                raise InputError(f"{problem}; pass --output FOLDER/")
            self._make_folder(run.subtitles)

    def _check_folder(self, whole: bool) -> None:
        """Make the folder that --output names. Raises InputError if inputs have no files, and so no names."""
        run = self._run
        if run.resume is not None or not names_folder(run.output):
            return
        if not whole:
            raise InputError(f"{run.output} is a folder; pass --output the name of a file")
        if run.stream and run.subtitles is None:
            raise InputError(f"{run.output} is a folder, and --stream writes pieces to one file; pass its name")
        if run.line_format.field is not None:
            raise InputError(f"{run.output} is a folder, and --json-input writes lines; pass the name of a file")
        self._make_folder(run.subtitles or ("json" if run.json_lines else "txt"))

    def _make_folder(self, kind: str) -> None:
        self._folder = ResultFolder(self._run.output, kind, self._files.inside, force=self._run.force)
        self._folder.check(self._files.known_recordings())

    def _check_scoring(self) -> None:
        """Raise InputError for results that lines of text cannot show. Word times set ``return_timestamps``."""
        run, options = self._run, self._options
        asked = options.beside_texts
        if asked and not run.json_lines and not (options.aligned and run.subtitles):
            format_too = ", or --format srt or vtt" if options.recording is not None and options.aligned else " too"
            raise InputError(f"{asked} is more than a line of text; pass --json{format_too}")
        how = options.recording
        if options.aligned and how is not None and how.return_timestamps is None:
            timestamps = has_timestamps(self._model.manifest.generation, options.vocab_size)
            self._settings = {**self._settings, **({"return_timestamps": True} if timestamps else {})}
            self._model.settings.options(self._settings)

    def _check_kind(self) -> None:
        """Raise InputError for options or files that are for another kind of model."""
        line_format = self._run.line_format
        text_only = line_format.ids or line_format.truncate or line_format.escapes or self._run.document
        model, files = self._model, self._files
        self._kind = kind = (
            "a speech model" if model.is_speech else "a model of images" if model.reads_images else "a text model"
        )
        if text_only and (model.is_speech or model.reads_images):
            options = "--ids, --truncate, --escapes, --document and --prompt-file"
            raise InputError(f"{options} are for text, this is {kind}; leave them out")
        run = self._run
        if not model.is_speech and (run.recording_file or run.live or run.raw):
            option = "--sample-rate" if run.raw else "--sound-input"
            raise InputError(f"{option} is for speech models, this is {kind}; leave it out")
        fix = "an audio" if model.is_speech else "an image" if model.reads_images else "a text"
        if not model.is_speech and files.audio is not None:
            raise InputError(f"{files.audio} is an audio file, and this is {kind}; pass {fix} file")
        if self._run.stream and (model.reads_images or (model.is_speech and not model.has_windows)):
            raise InputError(f"--stream is for text models and Whisper, this is {kind}; leave it out")
        if self._run.stream and not self._run.subtitles and not model.has_tokenizer:
            raise InputError("--stream gives text, and this bundle has no tokenizer; leave it out")
        if not model.reads_images and files.image is not None:
            raise InputError(f"{files.image} is an image file, and this is {kind}; pass {fix} file")

    def _check_rows(self) -> None:
        most, beams = self._run.max_rows, self._options.num_beams
        if most is not None and most < beams:
            raise InputError(f"--max-rows {most} is less than the {beams} beams of one input; pass more")

    def _skip_written(self) -> tuple[WrittenResults, Iterable[bytes]]:
        """Return the results that the output holds, and the inputs after them."""
        run, written = self._run, WrittenResults()
        if run.resume is not None:
            if run.line_format.field is not None and not run.json_lines:
                raise InputError("--resume with --json-input needs --json: lines may have several texts each")
            one_line = run.json_lines or self._model.has_windows
            written = read_written(run.resume, 1 if one_line else self._options.num_return_sequences)
        lines, last = self._files.skip(written.count)
        if last is not None:
            file = last.file if self._files.several else None
            written.check(run.target, json_lines=run.json_lines, number=last.number, file=file)
            if not self._record.check(run.target):
                self._note(f"{self._record.path} cannot be read, so the settings of {run.target} are not compared")
            self._note(f"{run.target} has the results of {counted(written.count, self._unit)}, which are kept")
        return written, lines

    def _depends_on(self) -> Mapping[str, Any]:
        """Return everything but the inputs that results depend on, in JSON's types."""
        run, lines = self._run, self._run.line_format
        return {
            "bundle": bundle_digest(self._model.bundle.path),
            "model": self._model.manifest.model,
            "engine": run.engine,
            "document": run.document,
            "ids": lines.ids,
            "json-input": lines.field,
            "settings-field": lines.settings,
            "truncate": lines.truncate,
            "escapes": lines.escapes,
            "sample-format": None if run.raw is None else asdict(run.raw),
            **settings_in_json(self._model.settings.options(self._settings)),
        }

    def _results(self, lines: Iterable[bytes], first: int) -> Generator[InputResult | FoundSegments | FoundText]:
        """Return the results of the inputs in order. The segments of a recording, and pieces of a text that is
        streamed, come before its result."""
        run, model = self._run, self._model
        together = run.batch_size or (8 if run.max_rows is None else run.max_rows // self._options.num_beams)
        typed = STDIN in run.sources and not run.document
        how: dict[str, Any] = {"batch_size": together, "typed": typed, "settings": self._settings}
        if not (model.is_speech or model.reads_images):
            run_all = stream_lines if run.stream else run_lines
            return run_all(model, lines, run.line_format, max_rows=run.max_rows, first=first, **how)
        names = named_files(lines, "an image file" if model.reads_images else "an audio file")
        files: Iterable[Any] = names if run.line_format.field is None else file_lines(names, run.line_format.field)
        if run.live is not None:
            next(iter(lines))  # the place of standard input
            files = [run.live]
        elif run.raw is not None:
            files = (SoundSource(name, run.raw) if isinstance(name, str) else name for name in files)
        if not model.has_windows:
            done = (run_recordings if model.is_speech else run_images)(model, files, **how)
            return (each.result for each in done)
        how |= {
            "stream": run.stream and run.subtitles is None,
            "on_transcribed": lambda seconds: self._on_transcribed(seconds),
            "on_read": lambda seconds: self._on_read(seconds),
        }
        windows = run_windows(model, files, **how)
        return (each.result if isinstance(each, OpenInput) else each for each in windows)

    def _report(self, result: InputResult, place: str) -> None:
        """Print the error of a result, or its notes."""
        file = "standard input" if self._run.recording_file is not None else result.source
        about = place or (f"{file}: " if file else "")
        if result.error is not None:
            named_already = not place and (not file or file in result.error)
            say(f"error: {'' if named_already else about}{result.error}")
        self._note(*(f"{about}{note}" for note in result.notes))
        if result.language is not None and result.language_probability is not None and not self._run.json_lines:
            found = f"found the language {names_of([result.language])[0]}"
            self._note(f"{about}{found} with probability {result.language_probability:.2f}")
        if result.error is None and result.cut:
            whole = result.source_tokens + result.cut
            side = "beginning" if result.cut_side == "left" else "end"
            counts = f"from {whole:,} to {result.source_tokens:,} tokens"
            self._note(f"{place}cut at its {side} {counts}, which the model has positions for")
        if not self._run.json_lines and (result.token_scores or result.alternatives or result.attentions):
            self._note(f"{place}what was asked for beside its text is left out; pass --json to see it")

    def _note(self, *notes: str) -> None:
        for note in () if self._run.quiet else notes:
            say(f"note: {note}")
