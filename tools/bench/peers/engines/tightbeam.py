"""Tightbeam: the variant dedup on ONNX Runtime, in ``fp32``, ``int8`` or ``int8-cache-int8``."""

from __future__ import annotations

from typing import Any

PACKAGES = ("tightbeam", "onnxruntime")


def convert(checkpoint: str, folder: str, precision: str, speech: bool) -> None:
    from tightbeam.export import export_model

    products, _, cache = precision.partition("-cache-")
    export_model(checkpoint, folder, variant="dedup", precision=products, cache_precision=cache or None, check=False)


def load(folder: str, precision: str, speech: bool, threads: int) -> tuple[Any, Any]:
    from tightbeam.deploy import Runner
    from tightbeam.deploy.padding import right_pad

    runner = Runner.load(folder, threads=threads)

    def prepare(samples: Any) -> Any:
        return (samples,) if speech else right_pad(samples)

    def generate(batch: Any, job: dict[str, Any]) -> Any:
        call = runner.generate_from_features if speech else runner.generate
        return call(*batch, **job["settings"]).sequences.tolist()

    return prepare, generate
