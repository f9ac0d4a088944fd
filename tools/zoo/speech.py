"""Speech of espeak-ng, with the times of its words and phonemes."""

from __future__ import annotations

import _ctypes
import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import espeakng_loader
import numpy as np
from numpy.typing import NDArray

RATE_HZ = 16_000
_SYNCHRONOUS, _PHONEME_EVENTS, _UTF8 = 2, 1, 1
_WORD, _PHONEME, _END_OF_LIST = 1, 7, 0
_RATE, _VOLUME, _PITCH, _RANGE = 1, 2, 3, 4


@dataclass(frozen=True)
class Voice:
    """How a sentence is spoken."""

    name: str
    """A language of espeak-ng with a variant, such as `en-gb+f2`."""
    words_per_minute: int = 160
    pitch: int = 50
    """From 0 to 100."""


@dataclass(frozen=True)
class Utterance:
    """A spoken sentence."""

    wave: NDArray[np.float32]
    """Samples at RATE_HZ."""
    words: tuple[tuple[int, float], ...]
    """Of each word, the first character's place in the text, and the time at which it begins in seconds."""
    phonemes: tuple[tuple[str, float], ...]
    """Of each phoneme, its name and the time at which it begins in seconds. The last two are the pause at the end."""


class _Id(ctypes.Union):
    _fields_ = (("number", ctypes.c_int), ("name", ctypes.c_char_p), ("string", ctypes.c_char * 8))


class _Event(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("unique_identifier", ctypes.c_uint),
        ("text_position", ctypes.c_int),
        ("length", ctypes.c_int),
        ("audio_position_ms", ctypes.c_int),
        ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p),
        ("id", _Id),
    )


_Callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event))


class Speaker:
    """espeak-ng, loaded anew: the same calls give the same samples, whatever was spoken before."""

    def __init__(self) -> None:
        self._library: Any = ctypes.CDLL(espeakng_loader.get_library_path())
        data = espeakng_loader.get_data_path().encode()
        self._rate_hz = self._library.espeak_Initialize(_SYNCHRONOUS, 0, data, _PHONEME_EVENTS)
        self._listener: Callable[..., int] = _Callback(self._listen)  # kept, since the library only borrows it
        self._library.espeak_SetSynthCallback(self._listener)
        self._samples: list[NDArray[np.int16]] = []
        self._events: list[tuple[int, int, float, str]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Unload the library, whose variables would outlive it otherwise."""
        self._library.espeak_Terminate()
        _ctypes.dlclose(self._library._handle)

    def _listen(self, samples: Any, count: int, events: Any) -> int:
        if samples and count:
            self._samples.append(np.ctypeslib.as_array(samples, (count,)).copy())
        number = 0
        while events[number].type != _END_OF_LIST:
            event = events[number]
            name = event.id.string.decode("utf-8", "replace") if event.type == _PHONEME else ""
            self._events.append((event.type, event.text_position, event.audio_position_ms / 1000, name))
            number += 1
        return 0

    def speak(self, text: str, voice: Voice) -> Utterance:
        """Speak a text.

        Raises
        ------
        ValueError
            There is no such voice.
        """
        self._samples, self._events = [], []
        self._library.espeak_ng_SetRandSeed(ctypes.c_long(1))  # pitch and breath wander by chance
        if self._library.espeak_SetVoiceByName(voice.name.encode()):
            raise ValueError(f"espeak-ng has no voice {voice.name!r}")
        settings = ((_RATE, voice.words_per_minute), (_PITCH, voice.pitch), (_VOLUME, 100), (_RANGE, 50))
        for setting, value in settings:
            self._library.espeak_SetParameter(setting, value, 0)
        encoded = text.encode()
        self._library.espeak_Synth(encoded, len(encoded) + 1, 0, 0, 0, _UTF8, None, None)
        from scipy.signal import resample_poly  # two seconds, which the tests of all else do without

        wave = resample_poly(np.concatenate(self._samples) / 32768, RATE_HZ, self._rate_hz)
        return Utterance(
            wave=wave.astype(np.float32),
            words=tuple((place - 1, start) for kind, place, start, _ in self._events if kind == _WORD),
            phonemes=tuple((name, start) for kind, _, start, name in self._events if kind == _PHONEME),
        )
