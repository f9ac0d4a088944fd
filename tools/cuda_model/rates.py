"""Times of the operators' calls by GPU, for ``export-model --gpu``: computed from the kernels' machine code.

    python -m tools.cuda_model.rates                # writes export/auto/gpu_rates.json anew

Calls are those of BART-large in float16 with 4 beams, 1,024 source positions and 60 tokens so far, by batch. A time is
the upper end of the model's: with its assumed losses of memory, waiting and launches.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Annotated, Any

import typer

from tightbeam.export.auto.gpus import RATES
from tools.cuda_model.gpus import GPUS, Device
from tools.cuda_model.model import floors_of
from tools.cuda_model.shapes import MODELS, OpCall, beam, beam_latent, latent, source
from tools.cuda_model.steps import operations_of

__all__ = ["BATCHES", "calls_of_gpu"]

BATCHES = (1, 8, 32, 128, 320)
MODEL = MODELS["BART-large"]


def calls_of_gpu(device: Device, batches: Iterable[int] = BATCHES) -> dict[str, list[list[float]]]:
    """Return [operations, seconds] of each operator's calls, by batch; operations as the cost model counts them."""
    found: dict[str, list[list[float]]] = {}
    for B in batches:
        calls = {
            "SourceAttention": source(MODEL, B),
            "LatentAttention of states": latent(MODEL, B),
            "LatentAttention of keys": _by_head(latent(MODEL, B), {"query": (B * MODEL.M, MODEL.H, MODEL.K)}),
            "BeamAttention": beam(MODEL, B, shared=True),
            "BeamLatentAttention of inputs": beam_latent(MODEL, B),
            "BeamLatentAttention of keys": _by_head(beam_latent(MODEL, B), _keys_of(B)),
        }
        for operator, call in calls.items():
            seconds = float(f"{floors_of(call, device).expected_s:.3g}")
            found.setdefault(operator, []).append([operations_of(MODEL, B, operator), seconds])
    return found


def _keys_of(B: int) -> dict[str, tuple[int, ...]]:
    R = B * MODEL.M
    cache = (R, MODEL.G, MODEL.T + 4, MODEL.K)
    return {"query": (R, MODEL.D), "cache": cache, "cache_out": cache}


def _by_head(call: OpCall, shapes: Mapping[str, tuple[int, ...]]) -> OpCall:
    """The same call over keys of each head, which queries of the head's width meet."""
    inputs = {name: shapes.get(name, shape) for name, shape in call.inputs.items()}
    outputs = {name: shapes.get(name, shape) for name, shape in call.outputs.items()}
    return replace(call, inputs=inputs, outputs=outputs, sizes={**call.sizes, "G": MODEL.G, "K": MODEL.K})


def main(
    gpu: Annotated[str, typer.Option(help="Names of GPUs, separated by commas.")] = ",".join(GPUS),
) -> None:
    """Compute the times of GPUs, and write them beside those of the others."""
    known: dict[str, Any] = json.loads(RATES.read_text("utf-8")) if RATES.is_file() else {}
    for name in gpu.split(","):
        device = GPUS[name]
        known[name] = {
            "bytes_per_s": device.bytes_per_s,
            "flops_per_s": device.flops_per_s,
            "kernels": calls_of_gpu(device),
        }
        print(name, flush=True)
    ordered = {name: known[name] for name in GPUS if name in known}
    RATES.write_text(json.dumps(ordered, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    typer.run(main)
