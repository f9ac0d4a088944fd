"""The loaded model, made of named parts. All code that generates loads or receives one."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from tightbeam.deploy.arrays import Array, Ints
from tightbeam.deploy.audio.extractors import recordings_of
from tightbeam.deploy.audio.features import LogMel
from tightbeam.deploy.audio.recordings import Recordings
from tightbeam.deploy.bundle.manifest import Manifest
from tightbeam.deploy.bundle.reader import Bundle
from tightbeam.deploy.bundle.verified import VerifiedFiles
from tightbeam.deploy.errors import GenerationError, InputError
from tightbeam.deploy.generation.fields import TIMES
from tightbeam.deploy.image.processors import AnyProcessor, read_processor
from tightbeam.deploy.model.settings import ModelSettings
from tightbeam.deploy.model.texts import Texts
from tightbeam.deploy.runtimes.base import Runtime
from tightbeam.deploy.runtimes.choice import check_choice, load_runtime
from tightbeam.deploy.scheduling.events import SchedulerEvents
from tightbeam.deploy.scheduling.sample import Sample
from tightbeam.deploy.scheduling.scheduler import Scheduler
from tightbeam.deploy.text.tokenizer import TextCodec, load_codec

__all__ = ["Model"]


class _RuntimeLock:
    """Held while the runtime is in use. A thread that holds it is refused, where a lock would wait for ever."""

    def __init__(self) -> None:
        self._lock, self._owner = threading.Lock(), 0

    def __enter__(self) -> None:
        if self._owner == threading.get_ident():
            raise InputError("a callback cannot generate with the model that calls it; generate after the call returns")
        self._lock.acquire()
        self._owner = threading.get_ident()

    def __exit__(self, *about: object) -> None:
        self._owner = 0
        self._lock.release()


class Model:
    """A bundle that is ready to generate.

    Parameters
    ----------
    bundle : Bundle
    runtime : Runtime
        Runs the bundle's graphs.
    codec : TextCodec or None
        The tokenizer; None for a bundle without one.

    Attributes
    ----------
    bundle, runtime
        The arguments.
    settings : ModelSettings
        Resolves settings for this model.
    text : Texts
        Tokenizes texts, and checks token ids.
    log_mel : LogMel or None
        The feature extractor of a speech model over windows (Whisper).
    recordings : Recordings or None
        The feature extractor of a speech model that takes whole recordings.
    image_processor : ImageProcessor, PatchProcessor or None
        The image processor of a model that reads images.
    """

    def __init__(self, bundle: Bundle, runtime: Runtime, codec: TextCodec | None) -> None:
        about = bundle.manifest
        self.bundle, self.runtime = bundle, runtime
        self.log_mel = LogMel.read(bundle.file(about.speech)) if about.speech and about.has_windows else None
        self.recordings: Recordings | None = recordings_of(bundle) if about.speech and not about.has_windows else None
        self.image_processor: AnyProcessor | None = read_processor(bundle.file(about.image)) if about.image else None
        is_donut = self.image_processor is not None and self.image_processor.kind == "Donut"
        self.settings = ModelSettings(about, runtime, codec, is_donut=is_donut)
        self.text = Texts(bundle, self.settings, codec)
        self._lock = _RuntimeLock()

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
    ) -> Model:
        """Load a bundle.

        Parameters
        ----------
        path : str or path
            The bundle folder.
        engine : str
            "onnxruntime", "tensorrt" or "tensorrt:NAME".
        threads : int, optional
            Threads of one operator in ONNX Runtime on the CPU.
        device : str
            The device of ONNX Runtime: "cpu" or "cuda".
        verify : bool or VerifiedFiles
            Compare every file with its SHA-256, as `Runner.load` says.
        manifest_sha256 : str, optional
            The SHA-256 that ``bundle.json`` must have.

        Returns
        -------
        Model

        Raises
        ------
        BundleError
            The bundle, or a TensorRT engine in it, cannot be read, or cannot run on this machine.
        InputError
            ``path`` is not a path, or ``engine``, ``device`` or ``threads`` is unknown or out of range.
        """
        check_choice(engine, device, threads)
        if not isinstance(path, str | os.PathLike):
            raise InputError(
                f"the bundle is {type(path).__name__}, expected the path of its folder; pass a str or a Path"
            )
        bundle = Bundle.load(path, verify=verify, weights_later=True, manifest_sha256=manifest_sha256)
        try:
            return cls(bundle, load_runtime(bundle, engine, device, threads, verify=verify), load_codec(bundle))
        except BaseException:
            bundle.stop_comparing()
            raise

    @property
    def manifest(self) -> Manifest:
        """The content of ``bundle.json``."""
        return self.bundle.manifest

    @property
    def gives_attention(self) -> bool:
        """True for a translator whose outputs can have their attention to the source."""
        return self.manifest.translates and not self.runtime.alignment_obstacle

    @property
    def decoder_only(self) -> bool:
        """True for a decoder-only model, whose sequences begin with the prompt rather than with a start token."""
        return self.manifest.sizes.decoder_only

    @property
    def is_speech(self) -> bool:
        """True for a speech model, which takes audio in place of token ids."""
        return self.manifest.speech is not None

    @property
    def has_windows(self) -> bool:
        """True for a speech model over windows of one length (Whisper), which has settings of its own."""
        return self.manifest.has_windows

    @property
    def reads_images(self) -> bool:
        """True for a model that takes images in place of token ids."""
        return self.manifest.image is not None

    @property
    def has_tokenizer(self) -> bool:
        """True for a bundle with a tokenizer."""
        return self.text.has_tokenizer

    def require_images(self) -> AnyProcessor:
        """Return the image processor.

        Returns
        -------
        ImageProcessor or PatchProcessor

        Raises
        ------
        InputError
            The model takes text or speech.
        """
        if self.image_processor is None:
            kind, input_ = ("a speech", "audio") if self.is_speech else ("a text", "text or token ids")
            raise InputError(f"this is {kind} model; pass {input_} instead of images")
        return self.image_processor

    def require_windows(self) -> LogMel:
        """Return the feature extractor of windows.

        Returns
        -------
        LogMel

        Raises
        ------
        InputError
            The model is not a speech model over windows.
        """
        if self.log_mel is None:
            raise InputError("this is a text model; pass text or token ids instead of audio")
        return self.log_mel

    def scheduler(self, max_rows: int, events: SchedulerEvents | None = None, *, retry: bool = True) -> Scheduler:
        """Return a scheduler without samples.

        Parameters
        ----------
        max_rows : int
            The most rows (samples x beams) that take steps.
        events : SchedulerEvents, optional
            Receives the events of samples, and may cancel samples.
        retry : bool
            If a batch fails, run each of its samples again, alone.

        Returns
        -------
        Scheduler
            For use by one thread. Other schedulers of this model run between its turns.
        """
        return Scheduler(self.runtime, max_rows, self._lock, events, retry=retry)

    def sample(
        self, number: int, tokens: Sequence[int] | Ints, settings: Mapping[str, Any], mask: Ints | None = None
    ) -> Sample:
        """Return a sample of token ids.

        Parameters
        ----------
        number : int
            The caller's number of the sample.
        tokens : sequence of int
            Token ids that ``text.check_ids`` accepts.
        settings : mapping
            Arguments of ``model.generate``, for this sample alone.
        mask : int64 [N], optional
            0 at padding, 1 elsewhere. The tokens of a prompt are contiguous.

        Returns
        -------
        Sample

        Raises
        ------
        GenerationError
            A setting is unknown, not supported, or impossible for this model or prompt.
        """
        options = self.settings.options(settings, len(tokens))
        return Sample.of_tokens(number, tokens, options, decoder_only=self.decoder_only, mask=mask)

    def sample_of_features(
        self, number: int, features: Array, settings: Mapping[str, Any], own_frames: int | None = None
    ) -> Sample:
        """Return a sample of one window of a speech model.

        Parameters
        ----------
        number : int
            As for `sample`.
        features : float32 [mels, frames]
            Log-mel features of a whole window, as `LogMel.features` makes them.
        settings : mapping
            As for `sample`.
        own_frames : int, optional
            As for `heard_in`.

        Returns
        -------
        Sample

        Raises
        ------
        GenerationError
            A setting is wrong, as for `sample`.
        """
        options = self.settings.for_one_window(self.settings.options(settings))
        if options.aligned:
            where = "Runner.transcribe_segments and run-model --word-timestamps"
            raise GenerationError(f"{TIMES}=True is for {where}; leave it out")
        return Sample(number, options, *self.heard_in(features, own_frames))

    def heard_in(self, features: Array, own_frames: int | None) -> tuple[Array, int]:
        """Return what the encoder reads of a window, and the positions that it makes of it.

        Parameters
        ----------
        features : float32 [mels, frames]
            Log-mel features of a whole window.
        own_frames : int, optional
            Frames of the recording, which come first; by default all.

        Returns
        -------
        features : float32 [mels, X]
            All frames, unless the bundle is of ``--short-audio``.
        positions : int
            N
        """
        if self.manifest.short_audio and own_frames is not None:
            features = self.require_windows().sound_of(features, own_frames)
            return features, self.manifest.source_positions(features.shape[1])
        return features, self.manifest.sizes.max_source

    def sample_of_recording(self, number: int, features: Array, settings: Mapping[str, Any]) -> Sample:
        """Return a sample of a speech model that takes whole recordings.

        Parameters
        ----------
        number : int
            As for `sample`.
        features : float32 [X, ...]
            Features of a recording, as `Recordings.features` makes them.
        settings : mapping
            As for `sample`.

        Returns
        -------
        Sample

        Raises
        ------
        GenerationError
            A setting is wrong, as for `sample`.
        """
        assert self.recordings is not None
        options = self.settings.options(settings).without_source_tokens("a recording").for_input(features)
        return Sample(number, options, features, self.recordings.positions(features))

    def sample_of_pixels(self, number: int, pixels: Array, settings: Mapping[str, Any]) -> Sample:
        """Return a sample of a model that reads images.

        Parameters
        ----------
        number : int
            As for `sample`.
        pixels : float32 [3, height, width] or [X, width]
            Pixels of an image in the model's size, as `ImageProcessor.pixels` makes them; or its patches, as
            `PatchProcessor.pixels` makes them.
        settings : mapping
            As for `sample`.

        Returns
        -------
        Sample

        Raises
        ------
        GenerationError
            A setting is wrong, as for `sample`.
        """
        positions = len(pixels) if pixels.ndim == 2 else self.manifest.sizes.max_source
        options = self.settings.options(settings).without_source_tokens("an image")
        return Sample(number, options, pixels, positions)
