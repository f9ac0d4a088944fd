"""A bundle as a GPU's runtime runs it: prompts are encoded whole."""

from __future__ import annotations

from dataclasses import replace

from tightbeam.deploy import Bundle
from tightbeam.deploy.runtimes.onnxruntime_cpu import OnnxRuntimeCpu

__all__ = ["open_whole"]


def open_whole(bundle: Bundle) -> OnnxRuntimeCpu:
    """The CPU runtime with a session of ``encoder.onnx``, where ``prompt.onnx`` would take its place."""
    return OnnxRuntimeCpu(replace(bundle, manifest=bundle.manifest.model_copy(update={"prompt": None})), threads=1)
