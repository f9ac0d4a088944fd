"""Bundles in int8: no float product left, close to float32, and a sample's tokens are the same in any company."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from support.bundles import BundleCache
from support.generate_runs import batch
from tightbeam.deploy import Bundle, Runner
from tightbeam.deploy.compare import compare_runtimes, sources_of
from tightbeam.deploy.runtimes.onnxruntime_cpu import OnnxRuntimeCpu

TIMES_FP16 = 50
"""Bound on the error of int8 in that of fp16: 14 to 29 were measured, by family."""
CASES = [
    *(("bart", variant) for variant in ("dedup", "el", "slim", "baseline")),
    *((family, "dedup") for family in ("pegasus", "mbart", "marian", "fsmt", "t5", "whisper", "prophetnet")),
    *((family, "dedup") for family in ("gpt2", "llama", "qwen3")),
]


@pytest.mark.parametrize(("family", "variant"), CASES)
def test_products_are_integers_and_close(bundles: BundleCache, family: str, variant: str) -> None:
    exact, low = (Bundle.load(bundles(variant, family, precision=precision)) for precision in ("fp32", "int8"))
    found = {"Quantized": 0, "float": 0}
    for name in ("encoder", "decoder"):
        graph = onnx.load(low.path / f"{name}.onnx", load_external_data=False).graph
        constants = {tensor.name: tensor for tensor in graph.initializer}
        for node in graph.node:
            weight = constants.get(node.input[1]) if node.op_type in ("MatMul", "Gemm") else None
            found["float"] += weight is not None and len(weight.dims) == 2 and weight.dims[0] % 4 == 0
            found["Quantized"] += node.op_type == "QuantizedMatMul"
    assert found["Quantized"] > 4
    assert found["float"] == 0
    half = Bundle.load(bundles(variant, family, precision="fp16"))
    sources, runtime = sources_of(exact), OnnxRuntimeCpu(exact, 1)
    errors = [compare_runtimes(exact, runtime, OnnxRuntimeCpu(other, 1), sources).error for other in (low, half)]
    assert 0 < errors[0] < TIMES_FP16 * errors[1]


@pytest.mark.parametrize("family", ["bart", "t5"])
def test_samples_do_not_depend_on_their_batch(bundles: BundleCache, family: str) -> None:
    runner = Runner.load(bundles("dedup", family, precision="int8"), threads=1)
    lengths = (5, 11, 11, 23, 7, 11)
    ids, mask = batch(runner.manifest.sizes.source_vocabulary, 3, lengths)
    settings = {"num_beams": 3, "max_new_tokens": 12}
    together = runner.generate(ids, mask, **settings)
    for sample, length in enumerate(lengths):
        alone = runner.generate(ids[sample : sample + 1, :length], mask[sample : sample + 1, :length], **settings)
        width = alone.sequences.shape[1]
        np.testing.assert_array_equal(alone.sequences[0], together.sequences[sample, :width])
        np.testing.assert_allclose(alone.scores[0], together.scores[sample], rtol=1e-5)
