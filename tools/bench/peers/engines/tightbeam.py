"""Tightbeam: the variant dedup on ONNX Runtime, in ``fp32`` or ``int8``, or with ``-cache-int8``."""

from __future__ import annotations

from typing import Any

PACKAGES = ("tightbeam", "onnxruntime")
IMPORTS = ("tightbeam.deploy.runner",)


def convert(checkpoint: str, folder: str, precision: str, speech: bool) -> None:
    from tightbeam.export import export_model

    products, _, cache = precision.partition("-cache-")
    export_model(checkpoint, folder, variant="dedup", precision=products, cache_precision=cache or None, check=False)


def load(folder: str, precision: str, speech: bool, threads: int) -> tuple[Any, Any]:
    from tightbeam.deploy import Runner
    from tightbeam.deploy.arrays import right_pad

    runner = Runner.load(folder, threads=threads)

    def prepare(samples: Any) -> Any:
        return (samples,) if speech else right_pad(samples)

    def generate(batch: Any, job: dict[str, Any]) -> Any:
        call = runner.generate_from_features if speech else runner.generate
        given = batch[0].shape[1] if runner.decoder_only else 0
        return call(*batch, **job["settings"]).sequences[:, given:].tolist()

    return prepare, generate


def load_recordings(folder: str, precision: str, threads: int) -> tuple[Any, Any]:
    from tightbeam.deploy import Runner
    from tightbeam.deploy.audio.stored_features import StoredFeatures
    from tightbeam.deploy.inputs.run import finished
    from tightbeam.deploy.inputs.windows import run_windows

    runner = Runner.load(folder, threads=threads)
    log_mel = runner.log_mel
    assert log_mel is not None

    def features(samples: Any) -> None:
        recording = StoredFeatures(log_mel, [samples])
        for first in range(0, recording.frames, log_mel.frames):
            recording.window(first, log_mel.frames)

    def transcribe(samples: Any, job: dict[str, Any]) -> Any:
        windows = len(samples) // log_mel.samples
        settings = {**job["settings"], "return_timestamps": False}
        (found,) = finished(run_windows(runner.model, [samples], batch_size=windows, settings=settings))
        if found.failure is not None:
            raise found.failure
        (tokens,) = found.result.sequences
        starts = [place for place, token in enumerate(tokens) if token == job["prompt"][0]]
        return [tokens[start:end] for start, end in zip(starts, [*starts[1:], None], strict=True)]

    return features, transcribe
