"""Tightbeam: the variant dedup on ONNX Runtime."""

from __future__ import annotations

from typing import Any

PACKAGES = ("tightbeam", "onnxruntime")


def convert(checkpoint: str, folder: str, precision: str, speech: bool) -> None:
    from tightbeam.export import export_model

    export_model(checkpoint, folder, variant="dedup", precision=precision, check=False)


def load(folder: str, precision: str, speech: bool, threads: int) -> tuple[Any, Any]:
    from tightbeam.deploy import Runner
    from tightbeam.deploy.text.padding import right_pad

    runner = Runner.load(folder, threads=threads)

    def prepare(samples: Any) -> Any:
        return (samples,) if speech else right_pad(samples)

    def generate(batch: Any, job: dict[str, Any]) -> Any:
        call = runner.generate_from_features if speech else runner.generate
        return call(*batch, **job["settings"]).sequences.tolist()

    return prepare, generate
