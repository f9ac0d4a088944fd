"""The runner: a loaded bundle that generates from token ids, text, audio or images. Also a command.

python deploy/runner.py BUNDLE article.txt --num-beams 4
"""

from __future__ import annotations

if __name__ == "__main__":
    # Python puts the script's folder first on sys.path, where `text`, `search`, ... would hide other packages.
    import os
    import sys

    folder = os.path.dirname(os.path.realpath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry) != folder]

    import importlib.util
    import runpy

    try:
        if importlib.util.find_spec("tightbeam") is None or importlib.util.find_spec("tightbeam.deploy") is None:
            sys.modules.pop("tightbeam", None)  # a clone that is not installed has the packages' layout in tools/
            sys.path.insert(0, os.path.join(os.path.dirname(folder), "tools", "namespace"))
        runpy.run_module("tightbeam.deploy.commands.run_model", run_name="__main__")
    except ModuleNotFoundError as error:
        sys.exit(f"error: run-model needs the package {error.name}, which is not installed; pip install .")

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tightbeam.deploy.arrays import Array
from tightbeam.deploy.audio.alignment import check_frames, with_times
from tightbeam.deploy.audio.features import LogMel
from tightbeam.deploy.audio.recordings import Recordings
from tightbeam.deploy.bundle.manifest import Manifest
from tightbeam.deploy.bundle.reader import Bundle
from tightbeam.deploy.bundle.verified import VerifiedFiles
from tightbeam.deploy.chat.messages import TextSource, check_messages
from tightbeam.deploy.documents.known_formats import format_of
from tightbeam.deploy.errors import GenerationError, InputError
from tightbeam.deploy.generation.fields import TIMES
from tightbeam.deploy.generation.options import GenerationOptions
from tightbeam.deploy.generation.translation import check_without_text
from tightbeam.deploy.image.processors import AnyProcessor, check_pixels
from tightbeam.deploy.inputs.documents import DocumentRunner, TranslatedDocument, document_of, glossary_of
from tightbeam.deploy.inputs.images import read_images
from tightbeam.deploy.inputs.live import LiveTranscription
from tightbeam.deploy.inputs.open_input import OpenInput
from tightbeam.deploy.inputs.output import Output, TextSegment, output_of
from tightbeam.deploy.inputs.recordings import run_recordings
from tightbeam.deploy.inputs.run import finished
from tightbeam.deploy.inputs.sources import check_count, check_list, check_recordings
from tightbeam.deploy.inputs.text_stream import AsyncTextStream, TextStream
from tightbeam.deploy.inputs.windows import run_windows, stream_segments
from tightbeam.deploy.model.model import Model
from tightbeam.deploy.runtimes.base import Runtime
from tightbeam.deploy.runtimes.kept_prompt import KeptPrompt, check_kept
from tightbeam.deploy.scheduling.events import CallbackEvents, SchedulerEvents
from tightbeam.deploy.scheduling.results import join_results
from tightbeam.deploy.scheduling.sample import Sample, samples_of_features
from tightbeam.deploy.scheduling.scheduler import Scheduler
from tightbeam.deploy.search import SearchCallback, SearchResult
from tightbeam.deploy.search.callbacks import check_callback
from tightbeam.deploy.text.rows import beginnings_of
from tightbeam.deploy.text.token_ids import as_array
from tightbeam.deploy.text.tokenizer import TextCodec
from tightbeam.deploy.text.truncation import Side, Truncation

__all__ = ["Runner"]


class Runner:
    """A loaded bundle, ready to generate. Calls from several threads run one after the other.

    Use `Runner.load` to make one from a bundle folder.

    Parameters
    ----------
    bundle : Bundle
        The bundle, read and checked.
    runtime : Runtime
        Runs the bundle's graphs.
    codec : TextCodec or None
        The tokenizer; None for a bundle without a tokenizer, which takes and returns token ids only.

    Attributes
    ----------
    model : Model
        The loaded model, made of named parts.
    cache_bytes : (int, int)
        Bytes of the source cache and of the generated cache in the last batch.

    Raises
    ------
    TypeError
        A path is given in place of the parts of a loaded bundle, which `Runner.load` takes.

    Examples
    --------
    >>> runner = Runner.load("demo-dedup")
    >>> runner.generate_text(["The festival in Lindenton has invited 259 singers. It opens in March."], num_beams=4)
    ['Lindenton festival opens in March with 259 singers']
    """

    def __init__(self, bundle: Bundle, runtime: Runtime | None = None, codec: TextCodec | None = None) -> None:
        if not isinstance(bundle, Bundle) or runtime is None:
            raise TypeError("Runner(...) takes the parts of a loaded bundle; to load a folder, call Runner.load(path)")
        self._begin(Model(bundle, runtime, codec))

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        engine: str = "onnxruntime",
        threads: int | None = None,
        device: str = "cpu",
        verify: bool | VerifiedFiles = True,
        manifest_sha256: str | None = None,
    ) -> Runner:
        """Load a bundle.

        Parameters
        ----------
        path : str or path
            The bundle folder.
        engine : str
            "onnxruntime"; "tensorrt" for the TensorRT engine of this bundle that fits the GPU; or "tensorrt:NAME" for
            the engine with this name.
        threads : int, optional
            Threads of one operator in ONNX Runtime on the CPU, 1 to 1024; by default one for each core that the process
            may use by affinity and by its container's quota.
        device : str
            The device of ONNX Runtime: "cpu" or "cuda".
        verify : bool or VerifiedFiles
            Compare every file with its SHA-256. On the CPU, a thread compares the weights while the model loads, and
            the first result waits for it; `wait_for_weights` waits before. With a record of the files that were
            compared before, only new and changed files are compared, and added to it.
        manifest_sha256 : str, optional
            The SHA-256 that ``bundle.json`` must have, in hexadecimal digits, as ``show-bundle`` prints it. With
            ``verify`` it stands for every file of the bundle.

        Returns
        -------
        Runner

        Raises
        ------
        BundleError
            The bundle, or a TensorRT engine in it, cannot be read, or cannot run on this machine.
        InputError
            ``path`` is not a path, or ``engine``, ``device`` or ``threads`` is unknown or out of range.
        """
        runner = cls.__new__(cls)
        runner._begin(
            Model.load(
                path, engine=engine, threads=threads, device=device, verify=verify, manifest_sha256=manifest_sha256
            )
        )
        return runner

    def _begin(self, model: Model) -> None:
        self.model = model
        self.cache_bytes = (0, 0)

    def wait_for_weights(self) -> None:
        """Wait until the weights are compared with their SHA-256. Otherwise the first result waits for it.

        Raises
        ------
        BundleError
            The weights file was changed since the export, or cannot be read.
        """
        self.bundle.wait_for_weights()

    def __dir__(self) -> list[str]:
        """Return the public names, for ``dir(runner)``.

        Returns
        -------
        list of str
            The names without those of Python and of the implementation.
        """
        return [name for name in super().__dir__() if not name.startswith("_")]

    def __repr__(self) -> str:
        about = self.manifest
        return (
            f"Runner({str(self.bundle.path)!r}, model={about.model!r}, family={about.family!r}, "
            f"variant={about.variant!r}, precision={about.precision!r}, runtime={type(self.model.runtime).__name__})"
        )

    @property
    def bundle(self) -> Bundle:
        """The bundle that was loaded."""
        return self.model.bundle

    @property
    def manifest(self) -> Manifest:
        """The content of ``bundle.json``."""
        return self.model.manifest

    @property
    def decoder_only(self) -> bool:
        """True for a decoder-only model, whose sequences begin with the prompt rather than with a start token."""
        return self.model.decoder_only

    @property
    def is_speech(self) -> bool:
        """True for a speech model, which takes audio in place of token ids."""
        return self.model.is_speech

    @property
    def has_windows(self) -> bool:
        """True for a speech model over windows of one length (Whisper), which has settings of its own."""
        return self.model.has_windows

    @property
    def reads_images(self) -> bool:
        """True for a model that takes images in place of token ids."""
        return self.model.reads_images

    @property
    def has_tokenizer(self) -> bool:
        """True for a bundle with a tokenizer."""
        return self.model.has_tokenizer

    @property
    def log_mel(self) -> LogMel | None:
        """The feature extractor of a speech model over windows (Whisper); None for others."""
        return self.model.log_mel

    @property
    def recordings(self) -> Recordings | None:
        """The features of a speech model that takes whole recordings; None for others."""
        return self.model.recordings

    @property
    def image_processor(self) -> AnyProcessor | None:
        """The image processor of a model that reads images; None for others."""
        return self.model.image_processor

    def options(self, **settings: Any) -> GenerationOptions:
        """Resolve generation settings: the bundle's defaults, overridden by ``settings``.

        Parameters
        ----------
        **settings
            Arguments of transformers' ``model.generate``, by the same names (``num_beams``, ``max_new_tokens``, ...).
            ``generation_config`` is a transformers `GenerationConfig`, a dict, or the name of a JSON file. The other
            settings override it, and its fields that are None keep the checkpoint's values.

        Returns
        -------
        GenerationOptions
            For a decoder-only model, lengths are resolved for a prompt of one token.

        Raises
        ------
        GenerationError
            A setting is unknown, not supported, or impossible for this model.
        """
        return self.model.settings.options(settings)

    def encode(self, source: TextSource, *, truncate: Truncation = False, **settings: Any) -> tuple[list[int], int]:
        """Tokenize a source.

        Parameters
        ----------
        source : str, or sequence of dict
            The text of a source, or of the prompt of a decoder-only model; or the messages of a conversation, as for
            `chat`.
        truncate : bool or str
            Cut a text that is longer than the model's positions, which is an error otherwise. True cuts the beginning
            of a prompt of a decoder-only model, and the end of other sources; "left" or "right" names the side. Special
            tokens that the tokenizer adds stay, and the new tokens of ``settings`` keep their positions. Of a
            conversation the oldest turns are left out.
        **settings
            Arguments of ``model.generate``. They matter for prompts, and ``source_language`` for a translator.

        Returns
        -------
        tokens : list of int
        cut : int
            Number of tokens that were cut off; 0 if the text fits.

        Raises
        ------
        InputError
            The source cannot be run.
        """
        return self.model.text.encode(source, truncate=truncate, **settings)

    def decode(self, sequence: Array | Sequence[int]) -> str:
        """Make text of one generated sequence.

        Parameters
        ----------
        sequence : integers [T]
            A row of ``SearchResult.sequences``; special tokens are left out.

        Returns
        -------
        str
            The text.

        Raises
        ------
        InputError
            The bundle has no tokenizer, or ``sequence`` holds other values than token ids.
        """
        return self.model.text.decode(sequence)

    def generate(
        self,
        input_ids: Array | Sequence[Sequence[int]],
        attention_mask: Array | None = None,
        *,
        decoder_input_ids: Array | Sequence[Sequence[int]] | None = None,
        callback: SearchCallback | None = None,
        **settings: Any,
    ) -> SearchResult:
        """Generate from token ids, like ``model.generate(input_ids, attention_mask=..., **settings)``.

        Parameters
        ----------
        input_ids : integers [B, N], or sequence of B sequences of int
            Sources of an encoder-decoder model, or prompts of a decoder-only model, padded on either side. Rows of
            different lengths run without padding, and each gets the same tokens as alone.
        attention_mask : integers [B, N], optional
            0 at padding, 1 elsewhere. By default every position counts; for a decoder-only model every token except the
            pad token, as in transformers.
        decoder_input_ids : integers [B, P], or sequence of B sequences of int, optional
            For an encoder-decoder model: the tokens that the output of each sample begins with, with or without the
            start token. Rows may have different lengths, and each sample gets the same tokens as alone.
        callback : SearchCallback, optional
            Receives tokens and each finished sample while the search runs, and may cancel samples.
        **settings
            Arguments of ``model.generate``, by the same names, ``generation_config`` among them. As in transformers,
            padding in front of a prompt counts in lengths, and in the n-grams of ``no_repeat_ngram_size``.

        Returns
        -------
        SearchResult
            ``sequences`` int64 [B * num_return_sequences, T] from the start token on; for a decoder-only model from the
            prompt on, padded on the left. ``scores`` float32 [B * num_return_sequences] of beam search; None for greedy
            search. ``finish_reasons`` and ``new_tokens`` of each sequence. ``token_scores``, ``alternatives`` and
            ``attentions`` if they are asked for.

        Raises
        ------
        GenerationError
            A setting is unknown, not supported, or impossible for this model.
        InputError
            The ids or the mask have a wrong shape, type or value.
        BundleError
            The runtime failed; see ``deploy/errors.py``.

        Examples
        --------
        >>> rows = [runner.encode(report)[0] for report in reports]
        >>> result = runner.generate(rows, num_beams=4, max_new_tokens=8)
        >>> result.sequences
        array([[   2,    0,  601,  370,  464,  589,  262,  657,    2],
               [   2,    0,  559,  307, 1009,   23,  908,  560,    2]])
        >>> result.scores
        array([-0.11889504, -0.0877986 ], dtype=float32)
        """
        self._check_reads_tokens()
        settings = self.model.settings.without_effect(settings)
        options = self.options(**settings)
        check_without_text(settings)
        rows = self.model.text.rows(input_ids, attention_mask, options)
        each = [settings] * len(rows)
        if decoder_input_ids is not None:
            beginnings = beginnings_of(decoder_input_ids, len(rows))
            each = [{**settings, "decoder_input_ids": beginning} for beginning in beginnings]
        samples = []
        for index, (ids, mask) in enumerate(rows):
            try:
                samples.append(self.model.sample(index, ids, each[index], mask))
            except (GenerationError, InputError) as error:
                raise (error.at(f"row {index}") if len(rows) > 1 else error) from None
        return self._generate(samples, callback)

    def generate_text(
        self, texts: Sequence[TextSource], *, truncate: Truncation = False, batch_size: int = 8, **settings: Any
    ) -> list[str]:
        """Generate text from texts.

        Parameters
        ----------
        texts : sequence of str or of messages
            Sources of an encoder-decoder model, or prompts of a decoder-only model; or conversations, as for `chat`.
        truncate : bool or str
            Cut a text that is longer than the model's positions, which is an error otherwise: True at the beginning for
            a decoder-only model and else at the end; or "left" or "right".
        batch_size : int
            The most texts that run together.
        **settings
            Arguments of ``model.generate``, by the same names.

        Returns
        -------
        list of str
            ``num_return_sequences`` texts for each input, best first, without the prompt of a decoder-only model.

        Raises
        ------
        GenerationError
            A setting is unknown, not supported, impossible for this model, or asks for more than texts.
        InputError
            A text cannot be run. The message names its index, and nothing is generated.
        BundleError
            The runtime failed.

        Examples
        --------
        >>> runner.generate_text(reports, num_beams=4)
        ['Lindenton festival opens in March with 259 singers', 'Birchbridge factory to build 413 bicycles']
        """
        settings = self.model.settings.without_effect(settings)
        _check_texts_alone(self.options(**settings))
        found = self._outputs(texts, truncate, batch_size, settings)
        return [text for output in found for text in output.texts or []]

    def generate_outputs(
        self, texts: Sequence[TextSource], *, truncate: Truncation = False, batch_size: int = 8, **settings: Any
    ) -> list[Output]:
        """Generate from texts like `generate_text`, and return token ids and scores beside the texts.

        Parameters
        ----------
        texts : sequence of str or of messages
        truncate : bool or str
        batch_size : int
        **settings
            The arguments of `generate_text`, ``return_token_scores``, ``return_alternatives`` and ``return_attention``
            among the settings.

        Returns
        -------
        list of Output
            One for each input: texts, token ids and scores of its sequences, best first, with the scores, alternatives
            and attention of their tokens if these are asked for.

        Raises
        ------
        GenerationError, InputError, BundleError
            The errors of `generate_text`, except that settings may ask for more than texts.
        """
        return self._outputs(texts, truncate, batch_size, self.model.settings.without_effect(settings))

    def translate_document(
        self,
        document: str | os.PathLike[str] | bytes,
        *,
        document_format: str | None = None,
        glossary: str | os.PathLike[str] | Mapping[str, str] | Sequence[Sequence[str]] | None = None,
        batch_size: int = 8,
        **settings: Any,
    ) -> TranslatedDocument:
        """Translate a document sentence by sentence, and keep its structure.

        Parameters
        ----------
        document : str, path or bytes
            The name of a file (str or path), or the content of one (bytes).
        document_format : str, optional
            Its format: text, markdown, html, subtitles, po or docx; by default that of the ending of its name.
        glossary : str, path, mapping or list of pairs, optional
            Terms whose translation is forced, with ``|`` between forms: the name of a file with a term and its
            translation in each line, a mapping such as ``{"house": "Haus|Häuser"}``, or a list of such pairs.
        batch_size : int
            The most sentences that run together.
        **settings
            Arguments of ``model.generate``, by the same names.

        Returns
        -------
        TranslatedDocument
            Its content in ``data``, and in ``reports`` what did not come back as it was.

        Raises
        ------
        GenerationError
            A setting is unknown, not supported, or impossible for this model.
        InputError
            The document or the glossary cannot be read, or the model reads no text.
        BundleError
            The runtime failed.
        """
        check_count("batch_size", batch_size, "sentences")
        self._check_reads_tokens()
        name, data = document_of(document)
        kind = format_of(name, document_format)
        terms = None if glossary is None else glossary_of(self.model, glossary)
        own = DocumentRunner(self.model, self.model.settings.without_effect(settings), batch_size, glossary=terms)
        return own.translate(data, kind)

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        truncate: Truncation = False,
        kept: KeptPrompt | None = None,
        **settings: Any,
    ) -> str:
        """Generate the next answer of a conversation.

        The prompt is ``tokenizer.apply_chat_template(messages, add_generation_prompt=True)`` of the checkpoint's own
        tokenizer and chat template.

        Parameters
        ----------
        messages : sequence of dict
            Messages with the fields ``role`` ("system", "user" or "assistant") and ``content``: a text, or a list of
            parts of the form ``{"type": "text", "text": ...}``. If the last message is the assistant's, the answer goes
            on from it, as with ``continue_final_message=True``.
        truncate : bool or str
            True or "left": leave out the oldest turns of a conversation that is longer than the model's positions less
            the new tokens, which is an error otherwise. The system messages at the beginning stay.
        kept : KeptPrompt, optional
            The earlier turns of this conversation, which are then not encoded again. It keeps this prompt's.
        **settings
            Arguments of ``model.generate``, by the same names.

        Returns
        -------
        str
            The answer, or the rest of the one that ``messages`` end with.

        Raises
        ------
        GenerationError
            A setting is unknown, not supported, impossible for this model, or asks for more than one text.
        InputError
            The bundle has no chat template, or the template refuses the messages.
        BundleError
            The runtime failed.

        Examples
        --------
        >>> runner.chat([{"role": "user", "content": "What is the capital of Norway?"}], max_new_tokens=40)
        'The capital of Norway is Oslo.'
        """
        settings = self.model.settings.without_effect(settings)
        options = self.options(**settings)
        _check_texts_alone(options)
        if (returned := options.num_return_sequences) > 1:
            several = f"num_return_sequences={returned} is for several texts, and this returns one answer"
            raise GenerationError(f"{several}; leave it out, or call Runner.generate_text")
        tokens, _ = self.encode(check_messages(messages), truncate=truncate, **settings)
        sample = self.sample(0, tokens, settings, kept)
        found = output_of(self.model, self._run([sample], 1)[0], sample)
        return (found.texts or [""])[0]

    def stream_text(
        self,
        source: TextSource | Sequence[int],
        *,
        truncate: Truncation = False,
        kept: KeptPrompt | None = None,
        **settings: Any,
    ) -> TextStream:
        """Generate from one text, and return its output in pieces, each as soon as no later token can change it.

        The pieces join to the text that `generate_text` returns. Greedy search and sampling give text with nearly
        every token; beam search gives what all sequences that may still be the best have in common. The next tokens
        are generated when the next piece is asked for.

        Parameters
        ----------
        source : str, sequence of dict, or sequence of int
            A source of an encoder-decoder model, or a prompt of a decoder-only model; the messages of a conversation,
            as for `chat`; or token ids.
        truncate : bool or str
            As in `generate_text`.
        kept : KeptPrompt, optional
            The earlier turns of this conversation, as for `chat`.
        **settings
            Arguments of ``model.generate``, by the same names.

        Returns
        -------
        TextStream
            An iterator over the pieces, str. Its ``result`` is the `Output` behind the last piece, and None before.
            `TextStream.close`, or leaving a loop over a stream that has no other reference, ends the generation and
            frees its buffers.

        Raises
        ------
        GenerationError
            A setting is unknown, not supported, impossible for this model, or asks for several sequences.
        InputError
            The text cannot be run, or the bundle has no tokenizer.
        BundleError
            The runtime failed; raised by the iterator.

        Examples
        --------
        >>> for piece in runner.stream_text(report, num_beams=4):
        ...     print(piece, end="", flush=True)
        Lindenton festival opens in March with 259 singers
        """
        settings = self.model.settings.without_effect(settings)
        self.options(**settings)
        tokens: Any = source if isinstance(source, str | list | tuple) else as_array("source", source).tolist()
        if isinstance(tokens, str) or (isinstance(tokens, list | tuple) and tokens and isinstance(tokens[0], Mapping)):
            tokens, _ = self.encode(tokens, truncate=truncate, **settings)
        else:
            self._check_reads_tokens()
            check_without_text(settings)
        return TextStream(self.model, self.sample(0, tokens, settings, kept))

    def stream_text_async(
        self,
        source: TextSource | Sequence[int],
        *,
        truncate: Truncation = False,
        kept: KeptPrompt | None = None,
        **settings: Any,
    ) -> AsyncTextStream:
        """Generate from one text like `stream_text`, for ``async for``. The event loop is never blocked.

        The steps run in threads of the loop's default executor. A cancelled task ends the generation behind the step
        that runs.

        Parameters
        ----------
        source : str, sequence of dict, or sequence of int
        truncate : bool or str
        kept : KeptPrompt, optional
        **settings
            The arguments of `stream_text`.

        Returns
        -------
        AsyncTextStream
            An asynchronous iterator over the pieces, str, with ``result`` and ``aclose``.

        Raises
        ------
        GenerationError, InputError, BundleError
            The errors of `stream_text`.
        """
        return AsyncTextStream(self.stream_text(source, truncate=truncate, kept=kept, **settings))

    def generate_from_features(
        self,
        input_features: Array,
        attention_mask: Array | None = None,
        *,
        callback: SearchCallback | None = None,
        **settings: Any,
    ) -> SearchResult:
        """Generate from a speech model's features, like ``model.generate(input_features, **settings)``.

        Parameters
        ----------
        input_features : float32 [B, mels, frames] or [B, X, ...]
            Log-mel features of whole windows from `LogMel.features`, or features of whole recordings from
            `Recordings.features`, padded on the right.
        attention_mask : integers [B, X], optional
            1 at the samples or frames of recordings, which come first, 0 at padding; by default all count. For windows
            it is read only with ``return_token_timestamps``, and by a bundle of ``--short-audio``. As in transformers,
            padding changes the encoder's output for a shorter whole recording, but not for Cohere ASR and Canary;
            `transcribe` runs each without padding.
        callback : SearchCallback, optional
            Receives results while the search runs, as in `generate`.
        **settings
            Arguments of ``model.generate``, by the same names.

        Returns
        -------
        SearchResult
            Sequences from the start token on, the prompt of language and task included. With
            ``return_token_timestamps``, also ``token_timestamps`` float32 [B, T].

        Raises
        ------
        GenerationError
            A setting is unknown, not supported, or impossible for this model.
        InputError
            The features have a wrong shape, type or value, or this is a text model.
        BundleError
            The runtime failed.
        """
        settings = self.model.settings.without_effect(settings)
        if self.recordings is not None:
            options = self.model.settings.for_one_window(self.options(**settings)).without_source_tokens("a recording")
            rows, masks = self.recordings.checked(input_features, attention_mask)
            return self._generate(samples_of_features(rows, masks, options), callback)
        options = self.model.settings.for_one_window(self.options(**settings))
        log_mel = self.model.require_windows()
        if attention_mask is not None and not options.aligned and not self.manifest.short_audio:
            raise InputError(f"attention_mask of windows is read with {TIMES}=True alone; leave it out")
        features = log_mel.checked(input_features)
        own_frames = check_frames(attention_mask, *features.shape[::2])
        heard = [self.model.heard_in(own, frames) for own, frames in zip(features, own_frames, strict=True)]
        masks = [np.ones(positions, dtype=np.int64) for _, positions in heard]
        found = self._generate(samples_of_features([own for own, _ in heard], masks, options), callback)
        about = self.manifest.alignment
        return found if about is None else with_times(found, options.beginning, own_frames, about.median_filter_width)

    def transcribe(
        self, recordings: Sequence[str | os.PathLike[str] | bytes | Array], *, batch_size: int = 8, **settings: Any
    ) -> list[str]:
        """Transcribe recordings. A recording longer than a window is transcribed window by window, by timestamps.

        Parameters
        ----------
        recordings : sequence of str, path, bytes or float array [n]
            Names of sound or video files, contents of such files, or samples in -1..1 at the model's rate, such as
            ``log_mel.sampling_rate_hz``.
        batch_size : int
            The most windows that run together.
        **settings
            Arguments of ``model.generate``, by the same names, Whisper's among them.

        Returns
        -------
        list of str
            One text for each recording; empty texts if the bundle has no tokenizer.

        Raises
        ------
        GenerationError
            A setting is unknown, not supported, or impossible for this model.
        InputError
            A recording cannot be read as audio; the message names its file.
        BundleError
            The runtime failed.
        """
        settings = self.model.settings.without_effect(settings)
        _check_texts_alone(self.options(**settings))
        found = self._transcribed(recordings, batch_size, settings)
        return [each.result.texts[0] if each.result.texts else "" for each in found]

    def transcribe_outputs(
        self, recordings: Sequence[str | os.PathLike[str] | bytes | Array], *, batch_size: int = 8, **settings: Any
    ) -> list[Output]:
        """Transcribe recordings like `transcribe`, and return languages, segments and token ids beside the texts.

        Parameters
        ----------
        recordings : sequence of str, path, bytes or float array [n]
        batch_size : int
        **settings
            The arguments of `transcribe`.

        Returns
        -------
        list of Output
            One for each recording: text, token ids, ``language`` and ``language_probability``; ``segments`` if it ran
            by timestamps; the scores and alternatives of tokens if these are asked for.

        Raises
        ------
        GenerationError, InputError, BundleError
            The errors of `transcribe`, except that settings may ask for more than texts.
        """
        settings = self.model.settings.without_effect(settings)
        made = [each.made for each in self._transcribed(recordings, batch_size, settings)]
        return [output for output in made if output is not None]

    def transcribe_segments(
        self, recordings: Sequence[str | os.PathLike[str] | bytes | Array], *, batch_size: int = 8, **settings: Any
    ) -> list[list[TextSegment]]:
        """Transcribe recordings by timestamps.

        Parameters
        ----------
        recordings : sequence of str, path, bytes or float array [n]
        batch_size : int
        **settings
            The arguments of `transcribe`.

        Returns
        -------
        list of list of TextSegment
            The segments of each recording, in order. Joined, their tokens are the tokens of ``model.generate``. With
            ``return_token_timestamps`` they have words with times and probabilities.

        Raises
        ------
        GenerationError, InputError, BundleError
            The errors of `transcribe`.
        """
        settings = self._with_timestamps(self.model.settings.without_effect(settings))
        return [each.result.segments or [] for each in self._transcribed(recordings, batch_size, settings)]

    def stream_segments(
        self, recording: str | os.PathLike[str] | bytes | Array, *, batch_size: int = 8, **settings: Any
    ) -> Iterator[TextSegment]:
        """Transcribe one recording by timestamps, and yield its segments as they are found.

        Parameters
        ----------
        recording : str, path, bytes or float array [n]
            A recording, as in `transcribe_segments`. It is read whole before this returns.
        batch_size : int
            As in `transcribe_segments`.
        **settings
            As in `transcribe_segments`.

        Returns
        -------
        iterator of TextSegment
            The segments of `transcribe_segments`, each as soon as its window is done. A caller that stops early closes
            or drops the iterator, and the other windows are not run.

        Raises
        ------
        GenerationError, InputError, BundleError
            The errors of `transcribe_segments`. Settings and the recording are checked before this returns.
        """
        settings = self._with_timestamps(self.model.settings.without_effect(settings))
        check_count("batch_size", batch_size, "windows")
        (source,) = check_recordings([recording], "the recording")
        return stream_segments(self.model, source, batch_size=batch_size, settings=settings)

    def live(self, *, step_s: float | None = None, **settings: Any) -> LiveTranscription:
        """Transcribe sound that is still coming, by agreement of successive runs (LocalAgreement-2).

        Parameters
        ----------
        step_s : float, optional
            Seconds of new sound that start a run of the model; 1 by default, and at most a quarter of its window.
        **settings
            The arguments of `transcribe`, except ``clip_timestamps``. With ``condition_on_prev_tokens`` each run has
            the end of the text before its sound as its prompt.

        Returns
        -------
        LiveTranscription
            Takes sound by ``add(samples)``, which returns what is settled and what is pending, and ends by
            ``finish()``.

        Raises
        ------
        GenerationError
            A setting is unknown, not supported, or impossible for this model or for live sound.
        InputError
            The model is not a Whisper model with timestamps and a tokenizer, or ``step_s`` is out of range.

        Examples
        --------
        >>> live = runner.live(language="en")
        >>> for samples in microphone:
        ...     for update in live.add(samples):
        ...         print(update.text, end="", flush=True)
        >>> print("".join(update.text for update in live.finish()))
        """
        return LiveTranscription(self.model, self.model.settings.without_effect(settings), step_s)

    def generate_from_pixels(
        self, pixel_values: Array, *, callback: SearchCallback | None = None, **settings: Any
    ) -> SearchResult:
        """Generate from the pixels of images, like ``model.generate(pixel_values, **settings)``.

        Parameters
        ----------
        pixel_values : float32 [B, 3, height, width] or [B, X, width]
            Pixels of images in the model's size from `ImageProcessor.pixels`, or patches of each image from
            `PatchProcessor.pixels`, padded with zeros.
        callback : SearchCallback, optional
            Receives results while the search runs, as in `generate`.
        **settings
            Arguments of ``model.generate``, by the same names.

        Returns
        -------
        SearchResult
            Sequences from the start token on.

        Raises
        ------
        GenerationError
            A setting is unknown, not supported, or impossible for this model.
        InputError
            The pixels have a wrong shape, type or value, or this model does not read images.
        BundleError
            The runtime failed.
        """
        settings = self.model.settings.without_effect(settings)
        options = self.options(**settings).without_source_tokens("an image")
        pixels, mask = check_pixels(self.model.require_images(), pixel_values, self.manifest.sizes.max_source)
        return self._generate(samples_of_features(pixels, mask, options), callback)

    def read_images(self, images: Sequence[Any], *, batch_size: int = 8, **settings: Any) -> list[Output]:
        """Generate text from images.

        Parameters
        ----------
        images : sequence of str, path, bytes or uint8 [rows, columns, 3]
            Names of PNG, JPEG, TIFF, WebP or BMP files, contents of such files, or arrays of red, green and blue.
        batch_size : int
            The most images that run together.
        **settings
            Arguments of ``model.generate``, by the same names.

        Returns
        -------
        list of Output
            One for each image: texts, token ids and scores of its sequences, best first; without a
            tokenizer no texts. A TIFF of several pages has the best sequences joined, and in ``pages`` one output each.

        Raises
        ------
        GenerationError
            A setting is unknown, not supported, or impossible for this model.
        InputError
            An image cannot be read; the message names its file or its index.
        BundleError
            The runtime failed.
        """
        settings = self.model.settings.without_effect(settings)
        check_count("batch_size", batch_size, "images")
        return read_images(self.model, images, batch_size=batch_size, settings=settings)

    def sample(
        self, number: int, tokens: Sequence[int], settings: Mapping[str, Any], kept: KeptPrompt | None = None
    ) -> Sample:
        """Return a sample of token ids for `scheduler`.

        Parameters
        ----------
        number : int
            The caller's number of the sample, which no other sample has.
        tokens : sequence of int
            Token ids of a source, or of the prompt of a decoder-only model.
        settings : mapping
            Arguments of ``model.generate``, for this sample alone.
        kept : KeptPrompt, optional
            An earlier prompt of the same conversation.

        Returns
        -------
        Sample

        Raises
        ------
        GenerationError
            A setting is unknown, not supported, or impossible for this model or prompt.
        InputError
            There are no tokens, too many, or one outside the vocabulary.
        """
        self.model.text.check_ids(tokens)
        return replace(self.model.sample(number, tokens, settings), kept=check_kept(kept))

    def scheduler(self, max_rows: int, events: SchedulerEvents | None = None) -> Scheduler:
        """Return a scheduler without samples. Samples of any settings can be added and cancelled one by one.

        Parameters
        ----------
        max_rows : int
            The most rows (samples x beams) that take steps.
        events : SchedulerEvents, optional
            Receives the events of samples, and may cancel samples.

        Returns
        -------
        Scheduler
            For use by one thread. Other calls of this runner run between its turns.

        Raises
        ------
        InputError
            ``max_rows`` is not a positive integer.
        """
        check_count("max_rows", max_rows, "rows")
        return self.model.scheduler(max_rows, events)

    def _check_reads_tokens(self) -> None:
        if self.is_speech:
            raise InputError("this is a speech model; pass audio instead of token ids (Runner.transcribe)")
        if self.reads_images:
            raise InputError("this model reads images; pass them instead of token ids (Runner.read_images)")

    def _outputs(
        self, texts: Sequence[TextSource], truncate: Truncation, batch_size: int, settings: Mapping[str, Any]
    ) -> list[Output]:
        check_list("texts", texts, "strings", "text")
        check_count("batch_size", batch_size, "texts")
        self.options(**settings)
        samples: list[Sample] = []
        cuts: list[tuple[int, Side | None]] = []
        for index, text in enumerate(texts):
            try:
                tokens, cut = self.encode(text, truncate=truncate, **settings)
            except InputError as error:
                raise InputError(f"text {index}: {error}") from None
            cuts.append((cut, self.model.text.cut_side(text, truncate) if cut else None))
            samples.append(self.model.sample(index, tokens, settings))
        if not samples:
            return []
        found = self._run(samples, min(batch_size, len(samples)))
        outputs = (output_of(self.model, found[own.number], own) for own in samples)
        return [replace(own, cut=cut, cut_side=side) for own, (cut, side) in zip(outputs, cuts, strict=True)]

    def _generate(self, samples: Sequence[Sample], callback: SearchCallback | None) -> SearchResult:
        """Run samples of the same settings together, and join their results."""
        check_callback(callback)
        return join_results(samples, self._run(samples, len(samples), callback))

    def _run(
        self, samples: Sequence[Sample], batch_size: int, callback: SearchCallback | None = None
    ) -> dict[int, SearchResult]:
        """Run samples to their end, ``batch_size`` at a time, since on a GPU every place of a batch takes every step.

        With a callback, no sample runs again after a failure, since the callback would receive its tokens twice.
        """
        events = None if callback is None else CallbackEvents(callback)
        max_rows = batch_size * max(sample.options.num_beams for sample in samples)
        scheduler = self.model.scheduler(max_rows, events, retry=callback is None)
        found = scheduler.run(samples)
        self.cache_bytes = scheduler.cache_bytes
        return found

    def _with_timestamps(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        settings = {**settings, "return_timestamps": True}
        if not (options := self.options(**settings)).aligned:
            _check_texts_alone(options)
        return settings

    def _transcribed(self, recordings: Any, batch_size: int, settings: Mapping[str, Any]) -> list[OpenInput]:
        check_list("recordings", recordings, "file names", "path")
        if isinstance(recordings, np.ndarray) and recordings.ndim == 1 and recordings.dtype.kind == "f":
            raise InputError("recordings is one array of samples, expected a list of recordings; pass [samples]")
        check_count("batch_size", batch_size, "windows")
        sources = check_recordings(recordings)
        if self.recordings is None:
            run = finished(run_windows(self.model, sources, batch_size=batch_size, settings=settings))
        else:
            run = run_recordings(self.model, sources, batch_size=batch_size, settings=settings)
        done = []
        for index, each in enumerate(run):
            if isinstance(each.failure, InputError) and not isinstance(sources[index], str):
                raise InputError(f"recording {index}: {each.failure}")
            if each.failure is not None:
                raise each.failure
            done.append(each)
        return done


def _check_texts_alone(options: GenerationOptions) -> None:
    """Raise GenerationError for settings that ask for more than texts."""
    if asked := options.beside_texts:
        of_speech = options.scoring is not None and options.scoring.times
        fix = "Runner.transcribe_segments" if of_speech else "Runner.generate_outputs or Runner.generate"
        raise GenerationError(f"{asked} is more than texts; call {fix}")
