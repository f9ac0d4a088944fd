"""Parsing of a request: its samples, and the settings to run them with. Every error of a request is raised here."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import count
from math import ceil
from numbers import Real
from typing import Any

from tightbeam.deploy.arrays import Array
from tightbeam.deploy.chat.messages import Messages, check_messages
from tightbeam.deploy.documents.glossary import ForcedWords, Glossary
from tightbeam.deploy.errors import GenerationError, InputError, short_repr
from tightbeam.deploy.generation.layers import GENERATION_CONFIG, REQUEST
from tightbeam.deploy.generation.options import GenerationOptions
from tightbeam.deploy.generation.scoring import MOST_ALTERNATIVES
from tightbeam.deploy.generation.translation import check_without_text
from tightbeam.deploy.generation.values import is_number
from tightbeam.deploy.generation.without_effect import remove_settings_without_effect
from tightbeam.deploy.inputs.images import ImageReader
from tightbeam.deploy.inputs.json_line import json_value
from tightbeam.deploy.inputs.open_input import OpenInput
from tightbeam.deploy.inputs.recordings import RecordingReader
from tightbeam.deploy.inputs.result import InputResult
from tightbeam.deploy.inputs.sources import SourceReader
from tightbeam.deploy.inputs.windows import WindowReader
from tightbeam.deploy.model.model import Model
from tightbeam.deploy.scheduling.sample import Sample
from tightbeam.deploy.serving.protocol.encoded import file_bytes
from tightbeam.deploy.serving.protocol.messages import Request
from tightbeam.deploy.serving.protocol.named_files import NO_FILES, NamedFiles
from tightbeam.deploy.serving.protocol.parameters import DEADLINE, MAX_PARAMETER_BYTES
from tightbeam.deploy.serving.protocol.tensors import AUDIO, AUDIO_FILE, IMAGE, INPUT_IDS, LENGTHS, MESSAGES, TEXT
from tightbeam.deploy.serving.worker.glossaries import (
    GLOSSARY,
    TermsInput,
    check_for_terms,
    forcing,
    named_glossary,
    served_glossaries,
)
from tightbeam.deploy.serving.worker.tries import served_tries, with_served_trie
from tightbeam.deploy.text.truncation import Truncation, checked_truncation

__all__ = ["ParsedRequest", "RequestParser"]

MIN_BYTES, MAX_BYTES, BYTES_PER_POSITION = 1 << 16, 1 << 20, 64
"""Limits of a text in bytes. A tokenizer takes a second for the largest, and all other requests wait meanwhile."""
QUICK_BYTES = 1 << 12
"""Texts up to this size in all are tokenized between two steps; larger ones are tokenized while steps run."""
MAX_IMAGE_BYTES, MAX_AUDIO_BYTES = 1 << 26, 1 << 27
"""Limits of a file: an hour of 16 bits at 16 kHz has 110 MiB."""
MAX_PAGES, MAX_PIXELS = 128, 1 << 25
"""Pages of one image, and pixels of a page: decoding takes up to 22 bytes a pixel, in two threads."""
MAX_WINDOWS, MAX_RECORDING_S = 120, 3600
"""Limits of the recordings of a request, in windows for a model that has them: both an hour for Whisper."""
TEXT_PARAMETERS = frozenset(
    {
        *("language", "source_language", "target_language", "task", "trie", "glossary"),
        *("prompt", "hotwords", "decoder_input_text"),
    }
)
"""Parameters whose text is not read as JSON."""
LISTS_OF_TEXTS = frozenset({"stop_strings"})
"""Parameters whose text is read as JSON if that is a list."""
CACHED = 64
"""Number of parameter texts whose settings are cached: most requests have the same parameters as others."""
LONGEST_CACHED = 1 << 11
"""Characters of such a text. Longer ones are lists of a client's own, whose settings have megabytes."""
TRITON_PREFIX = "triton_"
"""Prefix of the parameters that are Triton's own."""


@dataclass(eq=False)
class ParsedRequest:
    """A request that can be run.

    Attributes
    ----------
    number : int
        The request's number.
    options : GenerationOptions
        The settings, resolved; lengths are those for a prompt of one token.
    rows : list of OpenInput
        The rows: a sample each, or the windows of a recording.
    """

    number: int
    options: GenerationOptions
    rows: list[OpenInput] = field(default_factory=list)


class RequestParser:
    """Parses and checks requests, in any thread. Pages and parts of recordings are left unread.

    Parameters
    ----------
    model
        The model that will run them.
    max_rows
        The most rows (samples x beams) that take steps together.
    max_request_rows
        The most rows (inputs) of a request; None for any number.
    files
        Files that requests may name.
    """

    def __init__(
        self,
        model: Model,
        max_rows: int,
        max_request_rows: int | None = None,
        files: NamedFiles = NO_FILES,
    ) -> None:
        self._model, self._max_rows, self._max_request_rows = model, max_rows, max_request_rows
        self._tries = served_tries(model.bundle.path, files.tries)
        self._glossaries = served_glossaries(model, files.glossaries)
        self._numbers = count()
        self._cached_settings = lru_cache(CACHED)(self._read_settings)
        self._cached_readers = lru_cache(CACHED)(self._reader)

    def is_quick(self, request: Request) -> bool:
        """Return True for a request of ids or short texts, which is parsed within a millisecond or so."""
        if self._model.is_speech or self._model.reads_images or MESSAGES in request.inputs:
            return False
        texts = request.inputs.get(TEXT)
        return texts is None or sum(map(len, texts.ravel().tolist())) <= QUICK_BYTES

    def parse(self, request: Request) -> ParsedRequest:
        """Parse a request. Its samples have numbers in the order in which they came.

        Raises
        ------
        InputError, GenerationError
            The request cannot be run; if it has several rows, the message names the row.
        """
        model = self._model
        settings, truncate, glossary = self._settings(request.parameters)
        limited = model.text.answer_settings(settings) if MESSAGES in request.inputs else settings
        options = model.settings.options(limited)
        if options.num_beams > self._max_rows:
            raise InputError(
                f"{options.rows_asked} is more than the {self._max_rows} rows that this server runs together; "
                f"pass {self._max_rows} or less"
            )
        name = _source_name(model, request)
        if truncate and name not in TEXTS:
            raise InputError(
                f"truncate={truncate} is for {' and '.join(TEXTS)}; leave it out, and pass {name} that fits"
            )
        if glossary is not None:
            if name != TEXT:
                raise InputError(f"{GLOSSARY} is for {TEXT}; leave it out")
            check_for_terms(model, settings, self._max_rows)
        source = request.inputs[name]
        if not len(source):
            raise InputError(f"{name} has no row; expected at least one")
        if self._max_request_rows is not None and len(source) > self._max_request_rows:
            raise InputError(
                f"{name} has {len(source):,} rows, expected {self._max_request_rows:,} at most; send the others in "
                "another request"
            )
        lengths = _lengths(request.inputs, name, source)
        parsed = ParsedRequest(request.number, options)
        seconds = 0.0
        for row, value in enumerate(source):
            try:
                if name in TEXTS:
                    text = _text(value, model.manifest.sizes.max_source)
                    given, own = TEXTS[name](text), settings
                    if name == MESSAGES:
                        tokens, cut, own = model.text.encode_conversation(given, settings, truncate=truncate)
                    else:
                        tokens, cut = model.text.encode(given, truncate=truncate, **settings)
                    side = model.text.cut_side(given, truncate) if cut else None
                    result = InputResult(row, cut=cut, cut_side=side)
                    opened = OpenInput(result, [self._sample(tokens, own, request, row)])
                    if glossary is not None and (terms := glossary.terms_in(text)):
                        again = partial(self._with_words, tokens, own, request, row)
                        opened = TermsInput(
                            result, opened.samples, text=text, glossary=glossary, terms=terms, model=model, again=again
                        )
                elif name == INPUT_IDS:
                    given = value[: lengths[row]]
                    ids = given if len(given) > model.manifest.sizes.max_source else given.tolist()
                    model.text.check_ids(ids)
                    check_without_text(settings)
                    opened = OpenInput(InputResult(row), [self._sample(ids, settings, request, row)])
                else:
                    most = MAX_IMAGE_BYTES if name == IMAGE else MAX_AUDIO_BYTES
                    content = value[: lengths[row]] if name == AUDIO else file_bytes(_data(value), name, most)
                    opened = self._file(row, content, request.parameters, seconds)
                    seconds += opened.result.seconds
            except (InputError, GenerationError) as error:
                raise (error.at(f"row {row}") if len(source) > 1 else error) from None
            parsed.rows.append(opened)
        parts = sum(self._parts(row) for row in parsed.rows)
        if options.alternatives * parts > MOST_ALTERNATIVES:
            raise InputError(
                f"return_alternatives for {parts:,} rows, pages and windows is more than {MOST_ALTERNATIVES:,} in all; "
                "pass less, or fewer inputs or tokens"
            )
        if options.return_attention:
            most = max((sample.source_tokens for row in parsed.rows for sample in row.samples), default=0)
            new, S = options.max_length - options.beginning, options.num_return_sequences
            if len(parsed.rows) * S * new * most > MOST_ALTERNATIVES:
                sequences = f"{len(parsed.rows)} x {S} sequences of {new:,} new and {most:,} source tokens"
                raise InputError(
                    f"return_attention for {sequences} is more than {MOST_ALTERNATIVES:,} numbers; pass fewer inputs, "
                    "sequences or tokens"
                )
        return parsed

    def _parts(self, row: OpenInput) -> int:
        """Return about how many samples a row has; a recording with timestamps makes its windows one by one."""
        log_mel = self._model.log_mel
        windows = 1 if log_mel is None else ceil(row.result.seconds / log_mel.chunk_s)
        return max(len(row.samples) + row.unread, windows)

    def _file(self, row: int, content: bytes | Array, parameters: str, before_s: float) -> OpenInput:
        """Read an image, or a recording that ``before_s`` seconds of others precede. Raises InputError."""
        opened = self._reader_of(parameters).read(row, content)
        if opened.failure is not None:
            raise opened.failure
        if before_s + opened.result.seconds > self._most_s:
            raise InputError(
                f"the recordings up to this one have more than {self._most_s:,.0f} seconds; send it in another request"
            )
        return opened

    def _reader(self, parameters: str) -> SourceReader:
        settings, _, _ = self._settings(parameters)
        if self._model.reads_images:
            return ImageReader(
                self._model, settings, numbers=self._numbers, most_pages=MAX_PAGES, most_pixels=MAX_PIXELS, together=0
            )
        if self._model.recordings is not None:
            return RecordingReader(self._model, settings, numbers=self._numbers, most_s=self._most_s, together=0)
        return WindowReader(self._model, settings, numbers=self._numbers, most_s=self._most_s)

    @property
    def _most_s(self) -> float:
        log_mel = self._model.log_mel
        return MAX_RECORDING_S if log_mel is None else MAX_WINDOWS * log_mel.chunk_s

    def _sample(self, tokens: list[int], settings: Mapping[str, Any], request: Request, row: int) -> Sample:
        decoder_only = self._model.decoder_only
        options = self._model.settings.options(settings, len(tokens))
        entropy = request.entropy + row.to_bytes(8, "little")
        return Sample.of_tokens(next(self._numbers), tokens, options, decoder_only=decoder_only, entropy=entropy)

    def _with_words(
        self, tokens: list[int], settings: Mapping[str, Any], request: Request, row: int, words: ForcedWords
    ) -> Sample:
        beams = self._model.settings.options(settings).num_beams
        return self._sample(tokens, forcing(settings, words, beams), request, row)

    def _settings(self, parameters: str) -> tuple[dict[str, Any], Truncation, Glossary | None]:
        read = self._cached_settings if len(parameters) <= LONGEST_CACHED else self._read_settings
        return read(parameters)

    def _reader_of(self, parameters: str) -> SourceReader:
        make = self._cached_readers if len(parameters) <= LONGEST_CACHED else self._reader
        return make(parameters)

    def _read_settings(self, parameters: str) -> tuple[dict[str, Any], Truncation, Glossary | None]:
        """Read the settings of a request, whether to truncate its texts, and at which side, and its glossary."""
        given = with_served_trie(_settings(parameters), self._tries)
        truncate = checked_truncation(given.pop("truncate", False))
        glossary = named_glossary(given.pop(GLOSSARY, None), self._glossaries)
        settings, _ = remove_settings_without_effect(given, speech=self._model.has_windows, source=REQUEST)
        return settings, truncate, glossary


def _messages(text: str) -> Messages:
    """Parse the messages of a row. Raises InputError, also for a text in JSON, which has no template."""
    try:
        return check_messages(json_value(text))
    except InputError:
        raise
    except (ValueError, RecursionError) as error:
        raise InputError(f"{MESSAGES} is not JSON ({error}); pass a list of messages as JSON in a text") from None


TEXTS: dict[str, Callable[[str], Any]] = {TEXT: str, MESSAGES: _messages}
"""Inputs that are texts, and the function that makes the source of one."""


def _source_name(model: Model, request: Request) -> str:
    """Return the name of the one input that holds the source."""
    given = [name for name in (TEXT, MESSAGES, INPUT_IDS, AUDIO, AUDIO_FILE, IMAGE) if name in request.inputs]
    if model.is_speech:
        taken: tuple[str, ...] = (AUDIO_FILE, AUDIO)
    elif model.reads_images:
        taken = (IMAGE,)
    else:
        taken = (*TEXTS, INPUT_IDS)
    if len(given) != 1 or given[0] not in taken:
        *others, last = (name for name in taken if name not in TEXTS or model.has_tokenizer)
        expected = f"{', '.join(others)} or {last}" if others else last
        raise InputError(f"the request has {' and '.join(given) or 'no source'}, expected {expected}")
    return given[0]


def _settings(parameters: str) -> dict[str, Any]:
    """Return the settings among a request's parameters: numbers, texts, true and false, or JSON in a text."""
    if len(parameters) > MAX_PARAMETER_BYTES:
        raise InputError(
            f"the parameters have {len(parameters):,} bytes, expected {MAX_PARAMETER_BYTES:,} at most; leave some out"
        )
    try:
        given = json.loads(parameters or "{}")
    except (ValueError, RecursionError) as error:
        raise InputError(f"the parameters are not JSON ({error}); pass an object of settings") from None
    if not isinstance(given, dict):
        raise InputError(f"the parameters are {short_repr(given)}, expected a JSON object; pass settings by name")
    settings = {name: value for name, value in given.items() if not name.startswith(TRITON_PREFIX)}
    for name, value in settings.items():
        if isinstance(value, str) and name not in TEXT_PARAMETERS:
            try:
                read = json.loads(value)
            except (ValueError, RecursionError):
                continue  # a text, such as early_stopping="never"; or the setting is refused by its name
            if name not in LISTS_OF_TEXTS or isinstance(read, list):
                settings[name] = read
    deadline_s = settings.pop(DEADLINE, 1)
    if not is_number(deadline_s, Real) or not deadline_s > 0:
        held = short_repr(deadline_s)
        raise InputError(f"{DEADLINE}={held} is not a number of seconds above 0; pass one, or leave it out")
    config = settings.get(GENERATION_CONFIG)
    if config is not None and not isinstance(config, dict):  # the name of a file is for this machine's users
        raise InputError(f'{GENERATION_CONFIG} is not a JSON object; pass settings such as {{"num_beams": 4}}')
    return settings


def _text(value: Array, positions: int) -> str:
    """Return the text of a row, for a model of ``positions`` positions."""
    data = _data(value)
    limit = min(max(MIN_BYTES, positions * BYTES_PER_POSITION), MAX_BYTES)
    if len(data) > limit:
        raise InputError(f"the text has {len(data):,} bytes, expected {limit:,} at most; shorten it")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"not UTF-8 (byte {error.start} is 0x{data[error.start]:02x}); convert the text") from None


def _data(value: Array) -> bytes:
    """Return the bytes of a row of strings."""
    (text,) = value.reshape(-1).tolist()
    return text if isinstance(text, bytes) else str(text).encode("utf-8", "surrogatepass")


def _lengths(inputs: Mapping[str, Array], name: str, source: Array) -> list[int]:
    """Return the lengths of the rows of ``source`` [b, n] without padding."""
    if LENGTHS not in inputs:
        return [source.shape[1]] * len(source)
    if name not in (INPUT_IDS, AUDIO):
        raise InputError(f"{LENGTHS} is for {INPUT_IDS} and {AUDIO}; leave it out")
    if inputs[LENGTHS].size != len(source):
        raise InputError(
            f"{LENGTHS} has {inputs[LENGTHS].size} numbers, expected {len(source)}; pass one for each row of {name}"
        )
    lengths: list[int] = inputs[LENGTHS].reshape(-1).tolist()
    wrong = next((length for length in lengths if not 1 <= length <= source.shape[1]), None)
    if wrong is not None:
        raise InputError(
            f"{LENGTHS} holds {wrong}, expected 1 to {source.shape[1]}, the width of {name}; pass that at most"
        )
    return lengths
