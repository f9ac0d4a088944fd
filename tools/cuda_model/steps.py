"""A decode step of each variant on a GPU: its products by the roofline, its attention by the model of the kernels.

    python -m tools.cuda_model.steps --batch 1,8,32,64,128,320

Beside it what ``--variant auto --gpu`` predicts, from the times that ``tools/cuda_model/rates.py`` wrote. Products are
those of ``graph_passes/caches/cost.py`` at the GPU's rates, which their cuBLAS kernels approach at best.
"""

from __future__ import annotations

from typing import Annotated

import typer

from tightbeam.export.auto.gpus import gpu_machine
from tightbeam.graph_passes import PRESETS, RunSize, Sizes, same_for_all
from tightbeam.graph_passes.caches.cost import Machine, WeightCounts, predict, step_work
from tools.cuda_model.gpus import GPUS, Device
from tools.cuda_model.model import floors_of
from tools.cuda_model.shapes import FLOAT, MODELS, Model, beam, beam_latent, latent, source, top_k

__all__ = ["attention_s", "operations_of", "step_s"]

SOURCE = {"kv": source, "states": latent}
VARIANTS = ("dedup", "el", "xcache")
FEED_FORWARD = 4
"""Width of the feed-forward layer over the model's."""


def sizes_of(model: Model) -> Sizes:
    """Sizes as the cost model has them."""
    return Sizes(
        model.D, model.H, model.G, model.K, model.K, model.layers, model.vocabulary, model.vocabulary, model.N, model.T
    )


def weights_of(model: Model) -> WeightCounts:
    """Numbers in the weights of a BART-like model's products."""
    square, wide = model.D**2, 2 * FEED_FORWARD * model.D**2
    decoder = model.layers * (6 * square + wide) + model.D * model.vocabulary
    return WeightCounts(model.layers * (4 * square + wide), decoder)


def operations_of(model: Model, B: int, operator: str) -> int:
    """Operations of a call, as the cost model counts them. ``operator``: as ``Machine.kernels`` names it."""
    run = RunSize(B, model.M, model.N, model.T, FLOAT)
    plans = [same_for_all(preset, 1, "") for preset in PRESETS.values()]
    works = [work for plan in plans for work in step_work(plan, sizes_of(model), run, weights_of(model))]
    return next(work.operations for work in works if work.operator == operator)


def attention_s(model: Model, B: int, variant: str, device: Device) -> float:
    """Seconds of both attentions of a layer, as the model expects them."""
    preset = PRESETS[variant]
    generated = beam_latent(model, B) if preset.generated == "x" else beam(model, B, shared=True)
    calls = (SOURCE[preset.source](model, B), generated)
    return sum(floors_of(call, device).expected_s for call in calls)


def step_s(model: Model, B: int, variant: str, device: Device) -> float:
    """Seconds of a step."""
    machine = Machine(device.bytes_per_s, device.flops_per_s)
    run = RunSize(B, model.M, model.N, model.T, 2)
    works = step_work(same_for_all(PRESETS[variant], model.layers, ""), sizes_of(model), run, weights_of(model))
    products = sum(work.seconds(machine) for work in works if "attention" not in work.name)
    search = floors_of(top_k(model, B), device).expected_s
    return products + model.layers * attention_s(model, B, variant, device) + search


def main(
    model: Annotated[str, typer.Option(help="Name of a model.")] = "BART-large",
    gpu: Annotated[str, typer.Option(help="Name of a GPU.")] = "H200",
    batch: Annotated[str, typer.Option(help="Batch sizes, separated by commas.")] = "1,8,32,64,128,320",
) -> None:
    """Print milliseconds of a step by variant and batch, and what auto would choose."""
    chosen, device = MODELS[model], GPUS[gpu]
    machine = gpu_machine(gpu)
    print(f"| B | {' | '.join(f'{name}, ms | auto says, ms' for name in VARIANTS)} | fastest | auto chooses |")
    print("|" + "---|" * (2 * len(VARIANTS) + 3))
    for B in map(int, batch.split(",")):
        run = RunSize(B, chosen.M, chosen.N, 2 * chosen.T, 2)
        costs = {
            name: predict(same_for_all(preset, chosen.layers, ""), sizes_of(chosen), run, weights_of(chosen), machine)
            for name, preset in PRESETS.items()
            if name != "baseline"
        }
        steps = {name: step_s(chosen, B, name, device) for name in VARIANTS}
        cells = " | ".join(f"{steps[name] * 1e3:.2f} | {costs[name].step * 1e3:.2f}" for name in VARIANTS)
        best, auto = min(steps, key=steps.__getitem__), min(costs, key=lambda name: costs[name].total)
        print(f"| {B} | {cells} | {best} | {auto} |")


if __name__ == "__main__":
    typer.run(main)
