"""OpenVINO through optimum-intel, in float32 and with int8 weights (NNCF), as ``load_in_8bit`` makes them."""

from __future__ import annotations

from typing import Any

from tools.bench.peers.engines._model_generate import calls_of

PACKAGES = ("openvino", "nncf", "optimum-intel", "transformers")
IMPORTS = ("torch", "optimum.intel")


def _class(speech: bool) -> Any:
    from optimum.intel import OVModelForSeq2SeqLM, OVModelForSpeechSeq2Seq

    return OVModelForSpeechSeq2Seq if speech else OVModelForSeq2SeqLM


def convert(checkpoint: str, folder: str, precision: str, speech: bool) -> None:
    model = _class(speech).from_pretrained(checkpoint, export=True, compile=False, load_in_8bit=precision == "int8")
    model.save_pretrained(folder)


def load(folder: str, precision: str, speech: bool, threads: int) -> tuple[Any, Any]:
    import torch

    torch.set_num_threads(threads)
    settings = {"INFERENCE_NUM_THREADS": str(threads), "PERFORMANCE_HINT": "LATENCY"}
    if precision == "fp32":
        settings["INFERENCE_PRECISION_HINT"] = "f32"  # else bfloat16, if the processor has it
    return calls_of(_class(speech).from_pretrained(folder, ov_config=settings), speech)
