"""The runner: a loaded bundle that turns token ids, text or audio into generated sequences. Also a command.

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
        runpy.run_module("tightbeam.deploy.command", run_name="__main__")
    except ModuleNotFoundError as error:
        sys.exit(f"error: run-model needs the package {error.name}, which is not installed; pip install .")

import os
from collections.abc import Mapping, Sequence
from typing import Any

from tightbeam.deploy.arrays import Array
from tightbeam.deploy.batches import check_batch_size, check_texts_alone
from tightbeam.deploy.bundle.reader import Bundle
from tightbeam.deploy.errors import InputError
from tightbeam.deploy.generation.translation import check_without_text
from tightbeam.deploy.image_runner import ImageRunner
from tightbeam.deploy.runtimes.base import Runtime
from tightbeam.deploy.runtimes.choice import check_choice, load_runtime
from tightbeam.deploy.scheduling.sample import Sample
from tightbeam.deploy.search import SearchCallback, SearchResult
from tightbeam.deploy.speech_runner import SpeechRunner
from tightbeam.deploy.text.output import Output, output_of
from tightbeam.deploy.text.ragged import ragged_rows
from tightbeam.deploy.text.token_ids import check_batch
from tightbeam.deploy.text.tokenizer import TextCodec, load_codec

__all__ = ["Runner"]


class Runner(SpeechRunner, ImageRunner):
    """A loaded bundle, ready to generate. Calls from several threads run one after the other.

    Use `Runner.load` to make one from a bundle folder.

    Parameters
    ----------
    bundle : Bundle
        The bundle, read and checked.
    runtime : Runtime
        Runs the bundle's graphs.
    codec : TextCodec or None
        The tokenizer; None for a bundle without one, which takes and returns token ids only.

    Attributes
    ----------
    bundle : Bundle
        The bundle that was loaded.
    log_mel : LogMel or None
        The feature extractor of a speech model over windows (Whisper); None for others.
    recordings : Recordings or None
        The features of a speech model that takes whole recordings; None for others.
    image_processor : ImageProcessor, PatchProcessor or None
        The image processor of a model that reads images; None for others.
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
        super().__init__(bundle, runtime, codec)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        engine: str = "onnxruntime",
        threads: int | None = None,
        device: str = "cpu",
        verify: bool = True,
    ) -> Runner:
        """Load a bundle.

        Parameters
        ----------
        path : str or path
            The bundle folder.
        engine : str
            "onnxruntime"; "tensorrt", the TensorRT engine of this bundle that fits the GPU; or "tensorrt:NAME", the
            engine of that name.
        threads : int, optional
            Threads of one operator in ONNX Runtime on the CPU, 1 to 1024; by default one for each core that the process
            may use by affinity and by its container's quota.
        device : str
            Where ONNX Runtime runs: "cpu" or "cuda".
        verify : bool
            Compare every file with its SHA-256. On the CPU, a thread compares the weights while the model loads, and
            the first result waits for it; `wait_for_weights` waits before.

        Returns
        -------
        Runner

        Raises
        ------
        BundleError
            The bundle, or a TensorRT engine in it, cannot be read, or cannot run on this machine.
        InputError
            ``engine``, ``device`` or ``threads`` is unknown or out of range.
        """
        check_choice(engine, device, threads)
        bundle = Bundle.load(path, verify=verify, weights_later=True)
        try:
            return cls(bundle, load_runtime(bundle, engine, device, threads, verify=verify), load_codec(bundle))
        except BaseException:
            bundle.stop_comparing()
            raise

    def wait_for_weights(self) -> None:
        """Wait until the weights are compared with their SHA-256, which the first result does otherwise.

        Raises
        ------
        BundleError
            The weights file was changed since the export, or cannot be read.
        """
        self.bundle.wait_for_weights()

    def __repr__(self) -> str:
        about = self.manifest
        return (
            f"Runner({str(self.bundle.path)!r}, model={about.model!r}, family={about.family!r}, "
            f"variant={about.variant!r}, precision={about.precision!r}, runtime={type(self._runtime).__name__})"
        )

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
            different lengths are padded and masked here, and the tokens are those of each row alone.
        attention_mask : integers [B, N], optional
            0 at padding, 1 elsewhere. By default every position counts; of a decoder-only model, every token but the
            pad token, as in transformers.
        decoder_input_ids : integers [B, P], or sequence of B sequences of int, optional
            The tokens that the output of each sample begins with, with or without the start token before them; of an
            encoder-decoder model. They may have different lengths, and a sample's tokens are those that it gets alone.
        callback : SearchCallback, optional
            Receives tokens and each finished sample while the search runs, and may cancel samples.
        **settings
            Arguments of ``model.generate``, by the same names, ``generation_config`` among them. Lengths count the
            whole row, padding included.

        Returns
        -------
        SearchResult
            ``sequences`` int64 [B * num_return_sequences, T], each from the start token on, or from the prompt on,
            padded on the left, if the model is decoder-only. ``scores`` float32 [B * num_return_sequences] of beam
            search; None of greedy search. ``token_scores`` and ``alternatives`` where they are asked for.

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
        if self.is_speech:
            raise InputError("this is a speech model; pass audio instead of token ids (Runner.transcribe)")
        if self.reads_images:
            raise InputError("this model reads images; pass them instead of token ids (Runner.read_images)")
        settings = self._without_effect(settings)
        options = self.options(**settings)
        check_without_text(settings)
        rows = ragged_rows(input_ids)
        if decoder_input_ids is not None:
            if rows is not None and attention_mask is None:
                input_ids, attention_mask = self.pad(rows, options)
            ids, mask = check_batch(input_ids, attention_mask, options, self.manifest.sizes)
            return self._run(ids, mask, self._beginning_with(decoder_input_ids, len(ids), settings), callback)
        if rows is None:
            ids, mask = check_batch(input_ids, attention_mask, options, self.manifest.sizes)
            return self._generate(ids, mask, options, settings, callback)
        if attention_mask is not None:
            raise InputError("attention_mask is for rows of one length; leave it out, rows are padded and masked here")
        return self._generate_ragged(rows, options, settings, callback)

    def generate_text(
        self, texts: Sequence[str], *, truncate: bool = False, batch_size: int = 8, **settings: Any
    ) -> list[str]:
        """Generate text from texts.

        Parameters
        ----------
        texts : sequence of str
            Sources of an encoder-decoder model, or prompts of a decoder-only model.
        truncate : bool
            Cut a text that is longer than the model's positions, which is an error otherwise.
        batch_size : int
            Texts run together, at most.
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
            A text cannot be run. The message names its index; nothing has been generated then.
        BundleError
            The runtime failed.

        Examples
        --------
        >>> runner.generate_text(reports, num_beams=4)
        ['Lindenton festival opens in March with 259 singers', 'Birchbridge factory to build 413 bicycles']
        """
        settings = self._without_effect(settings)
        check_texts_alone(self.options(**settings))
        found = self._outputs(texts, truncate, batch_size, settings)
        return [text for output in found for text in output.texts or []]

    def generate_outputs(
        self, texts: Sequence[str], *, truncate: bool = False, batch_size: int = 8, **settings: Any
    ) -> list[Output]:
        """Generate from texts, as `generate_text` does, and return all that is known of the results.

        Parameters
        ----------
        texts : sequence of str
            Sources of an encoder-decoder model, or prompts of a decoder-only model.
        truncate : bool
            Cut a text that is longer than the model's positions, which is an error otherwise.
        batch_size : int
            Texts run together, at most.
        **settings
            Arguments of ``model.generate``, with ``return_token_scores`` and ``return_alternatives``, too.

        Returns
        -------
        list of Output
            One for each input: texts, token ids and scores of its sequences, best first, and what is asked for of their
            tokens.

        Raises
        ------
        GenerationError, InputError, BundleError
            Those of `generate_text`.
        """
        return self._outputs(texts, truncate, batch_size, self._without_effect(settings))

    def _outputs(
        self, texts: Sequence[str], truncate: bool, batch_size: int, settings: Mapping[str, Any]
    ) -> list[Output]:
        if isinstance(texts, str) or not hasattr(texts, "__iter__"):
            kind = "one string" if isinstance(texts, str) else type(texts).__name__
            raise InputError(f"texts is {kind}, expected a list of strings; pass [text]")
        check_batch_size(batch_size, "texts")
        self.options(**settings)
        samples: list[Sample] = []
        for index, text in enumerate(texts):
            try:
                samples.append(self.sample(index, self.encode(text, truncate=truncate, **settings)[0], settings))
            except InputError as error:
                raise InputError(f"text {index}: {error}") from None
        scheduler = self.scheduler(min(batch_size, max(1, len(samples))))  # on a GPU every place takes every step
        found = scheduler.run(samples)
        self.cache_bytes = scheduler.cache_bytes
        return [output_of(self, found[own.number], own.options, own.prompt_length) for own in samples]
