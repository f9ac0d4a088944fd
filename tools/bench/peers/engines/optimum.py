"""optimum-onnx on ONNX Runtime, in float32 and in its own dynamic int8 for AVX-512 VNNI, a scale a column."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tools.bench.peers.engines._model_generate import calls_of

PACKAGES = ("optimum-onnx", "onnxruntime", "transformers")
IMPORTS = ("torch", "optimum.onnxruntime")
GRAPHS = ("encoder_model", "decoder_model", "decoder_with_past_model")


def _class(speech: bool) -> Any:
    from optimum.onnxruntime import ORTModelForSeq2SeqLM, ORTModelForSpeechSeq2Seq

    return ORTModelForSpeechSeq2Seq if speech else ORTModelForSeq2SeqLM


def convert(source: str, folder: str, precision: str, speech: bool) -> None:
    """Export a checkpoint in float32, or quantise such an export."""
    if precision == "fp32":
        _class(speech).from_pretrained(source, export=True, use_merged=False).save_pretrained(folder)
        return
    from optimum.onnxruntime import ORTQuantizer
    from optimum.onnxruntime.configuration import AutoQuantizationConfig

    int8 = AutoQuantizationConfig.avx512_vnni(is_static=False, per_channel=True)
    for graph in GRAPHS:
        quantizer = ORTQuantizer.from_pretrained(source, file_name=f"{graph}.onnx")
        quantizer.quantize(save_dir=folder, quantization_config=int8)
    own = Path(source, "generation_config.json")
    Path(folder, own.name).write_bytes(own.read_bytes())


def load(folder: str, precision: str, speech: bool, threads: int) -> tuple[Any, Any]:
    import onnxruntime
    import torch

    torch.set_num_threads(threads)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    ending = "_quantized.onnx" if precision == "int8" else ".onnx"
    encoder, decoder, with_past = (graph + ending for graph in GRAPHS)
    names = {"encoder_file_name": encoder, "decoder_file_name": decoder, "decoder_with_past_file_name": with_past}
    return calls_of(_class(speech).from_pretrained(folder, session_options=options, **names), speech)
