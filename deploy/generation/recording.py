"""Settings of a whole recording, which is gone through window by window: thresholds, further attempts, conditioning.

Source: transformers 5.24 `WhisperGenerationMixin.generate`, whose arguments they are.
"""

from __future__ import annotations

from dataclasses import dataclass

from tightbeam.deploy.errors import Fix, GenerationError, Setting
from tightbeam.deploy.generation.fields import ALL_SEGMENTS, ModelKind, fields_of
from tightbeam.deploy.generation.settings import Settings
from tightbeam.deploy.generation.vad import VadParameters

__all__ = ["RecordingSettings", "WindowStart", "read_recording_settings", "read_vad"]

DEFAULT_MIN_SPEECH_S = 0.1


@dataclass(frozen=True)
class WindowStart:
    """Beginning of one window of a recording.

    Attributes
    ----------
    before : tuple of int
        Tokens before the start token: a prompt, or the tokens of earlier windows.
    longest : int or None
        ``max_length`` before the tokens of this prompt are added; None takes the settings' own.
    temperature : float
        The temperature of sampling, one of the settings'; 0 takes the best tokens.
    draft : tuple of int or None
        A guess at the window's tokens; None takes the settings' own.
    """

    before: tuple[int, ...] = ()
    longest: int | None = None
    temperature: float = 0.0
    draft: tuple[int, ...] | None = None


@dataclass(frozen=True)
class RecordingSettings:
    """Resolved settings of a recording, by transformers' names.

    Attributes
    ----------
    return_timestamps : bool or None
        True and False if somebody asked for it by name; None leaves it to the length of the recording.
    temperatures : tuple of float
        The temperature of each attempt at a window; 0 takes the best tokens.
    compression_ratio_threshold, logprob_threshold : float or None
        An attempt of a higher ratio, or of a lower mean log-probability, is followed by the next one.
    no_speech_threshold : float or None
        A window of a lower mean log-probability is skipped if its probability of no speech is higher than this.
    condition_on_prev_tokens : bool
        True if windows begin with the tokens of the windows before them.
    prompt_ids : tuple of int
        Tokens that the first window begins with, or all of them.
    all_segments : bool
        True if all windows begin with the prompt, for conditioned windows.
    prev_sot : int or None
        The token before earlier tokens, ``<|startofprev|>``.
    no_speech : int or None
        The token whose probability is the probability of no speech.
    silence_threshold_db : float or None
        Level in decibels of full scale that speech is above; None runs all windows.
    min_speech_s : float
        Seconds above that level that a window needs to be run.
    clip_timestamps : tuple of (float, float)
        Starts and ends in seconds of the clips that are transcribed; empty for the whole recording.
    vad : VadParameters or None
        How speech is found; None takes all sound.
    batched_windows : bool
        Windows of whole parts of speech, side by side.
    seed : int or None
        Seed of the attempts that sample.
    asked : str
        A setting that somebody asked for and that only a whole recording follows; empty without one.
    """

    return_timestamps: bool | None = None
    temperatures: tuple[float, ...] = (0.0,)
    compression_ratio_threshold: float | None = None
    logprob_threshold: float | None = None
    no_speech_threshold: float | None = None
    condition_on_prev_tokens: bool = False
    prompt_ids: tuple[int, ...] = ()
    all_segments: bool = False
    prev_sot: int | None = None
    no_speech: int | None = None
    silence_threshold_db: float | None = None
    min_speech_s: float = DEFAULT_MIN_SPEECH_S
    clip_timestamps: tuple[tuple[float, float], ...] = ()
    vad: VadParameters | None = None
    batched_windows: bool = False
    seed: int | None = None
    asked: str = ""

    @property
    def measures(self) -> bool:
        """True if decisions need the log-probabilities of tokens."""
        return self.logprob_threshold is not None


def read_recording_settings(settings: Settings) -> RecordingSettings:
    """Read the settings of a recording.

    Parameters
    ----------
    settings : Settings
        Settings of a Whisper model.

    Returns
    -------
    RecordingSettings

    Raises
    ------
    GenerationError
        A setting does nothing beside the others.
    """
    _check_together(settings)
    own_fields = [name for name, own in fields_of(ModelKind.WHISPER).items() if own.of_recording]
    before, least = settings["no_timestamps_token_id"], settings["min_speech_s"]
    thresholds = ("compression_ratio_threshold", "logprob_threshold", "no_speech_threshold", "silence_threshold_db")
    same = (*thresholds, "condition_on_prev_tokens", "prompt_ids", "clip_timestamps", "batched_windows", "seed")
    return RecordingSettings(
        **{name: settings[name] for name in same},
        return_timestamps=settings["return_timestamps"] if settings.is_asked("return_timestamps") else None,
        temperatures=settings["temperature"],
        all_segments=settings["prompt_condition_type"] == ALL_SEGMENTS or settings["hotwords"] is not None,
        prev_sot=_prev_sot(settings),
        no_speech=before - 1 if before else None,
        vad=read_vad(settings),
        min_speech_s=DEFAULT_MIN_SPEECH_S if least is None else least,
        asked=next((name for name in sorted(own_fields) if settings.is_asked(name)), ""),
    )


def read_vad(settings: Settings) -> VadParameters | None:
    """Read how speech is found; None takes all sound. Raises GenerationError for parameters that do nothing."""
    if settings["vad_parameters"] and not settings["vad_filter"]:
        raise _without_vad(settings, "vad_parameters")
    return settings["vad_parameters"] or VadParameters() if settings["vad_filter"] else None


def _without_vad(settings: Settings, name: str) -> GenerationError:
    fix = Fix("pass {} too, or leave it out", Setting("vad_filter", True))
    return settings.error(name, "does nothing without vad_filter", fix=fix)


def _check_together(settings: Settings) -> None:
    """Raise GenerationError for a setting that does nothing beside the others."""
    both = "pass both, or leave it out"
    if "no_speech_threshold" in settings and "logprob_threshold" not in settings:
        raise settings.error("no_speech_threshold", "needs logprob_threshold, as in transformers", fix=both)
    for name in ("compression_ratio_threshold", "logprob_threshold"):
        alone = len(settings["temperature"]) == 1 and "no_speech_threshold" not in settings
        if settings.is_asked(name) and alone:
            fix = Fix("pass several, such as {}", Setting("temperature", (0.0, 0.2, 0.4)))
            raise settings.error(name, "does nothing with one temperature", fix=fix)
    if "seed" in settings and not settings.samples:
        raise settings.error("seed", "does nothing, since no temperature is above 0", fix="leave it out")
    if settings["prompt_condition_type"] == ALL_SEGMENTS and not settings["condition_on_prev_tokens"]:
        fix = Fix("pass {} too", Setting("condition_on_prev_tokens", True))
        raise settings.error("prompt_condition_type", "does nothing alone", fix=fix)
    if settings["batched_windows"] and not settings["vad_filter"]:
        raise _without_vad(settings, "batched_windows")
    if "min_speech_s" in settings and "silence_threshold_db" not in settings:
        raise settings.error("min_speech_s", "does nothing without silence_threshold_db", fix=both)


def _prev_sot(settings: Settings) -> int | None:
    """The token ``<|startofprev|>``; old checkpoints have it as the last but one of ``suppress_tokens``."""
    suppressed = settings["suppress_tokens"]
    token = settings["prev_sot_token_id"]
    if "prev_sot_token_id" not in settings and len(suppressed) > 1:
        token = suppressed[-2]
    return token if isinstance(token, int) else None
