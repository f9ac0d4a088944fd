"""faster-whisper on CTranslate2's models: recordings alone, or in windows of 30 s that run together."""

from __future__ import annotations

from functools import partial
from typing import Any

PACKAGES = ("faster-whisper", "ctranslate2")
IMPORTS = ("faster_whisper",)


def load_recordings(folder: str, precision: str, threads: int) -> tuple[Any, Any]:
    import faster_whisper
    from faster_whisper.audio import pad_or_trim

    model = faster_whisper.WhisperModel(folder, device="cpu", cpu_threads=threads, num_workers=1)
    together = faster_whisper.BatchedInferencePipeline(model)

    seconds = model.feature_extractor.chunk_length
    size = seconds * model.feature_extractor.sampling_rate
    # It pads to the 3,000 frames of 30 s, however long the windows of the checkpoint are.
    faster_whisper.transcribe.pad_or_trim = partial(pad_or_trim, length=model.feature_extractor.nb_max_frames)

    def features(samples: Any) -> None:
        for window in samples.reshape(-1, size):  # the extractor of recordings that run together, too, takes them alone
            model.feature_extractor(window)

    def transcribe(samples: Any, job: dict[str, Any]) -> Any:
        settings = job["settings"]
        own = {
            "language": settings.get("language"),
            "task": settings.get("task", "transcribe"),
            "beam_size": settings["num_beams"],
            "no_repeat_ngram_size": settings["no_repeat_ngram_size"],
            "length_penalty": settings.get("length_penalty", 1),
            "suppress_tokens": settings["suppress_tokens"],
            "suppress_blank": bool(settings.get("begin_suppress_tokens")),
            "temperature": 0.0,
            "compression_ratio_threshold": None,
            "log_prob_threshold": None,
            "no_speech_threshold": None,
            "condition_on_previous_text": False,
            "without_timestamps": True,
            "vad_filter": False,
            # CTranslate2 generates half of the length at most, the prompt left out.
            "max_new_tokens": 2 * settings["max_new_tokens"] - len(job["prompt"]),
        }
        if len(samples) <= size:
            segments, _ = model.transcribe(samples, **own)
        else:
            clips = [{"start": seconds * i, "end": seconds * (i + 1)} for i in range(len(samples) // size)]
            segments, _ = together.transcribe(samples, clip_timestamps=clips, batch_size=len(clips), **own)
        return [segment.tokens for segment in segments]

    return features, transcribe
