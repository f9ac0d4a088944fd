"""The one graph in the least version of ONNX Runtime that the docs state, and what keeps it there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto
from onnx.inliner import inline_local_functions

from support.bundles.cache import BundleCache
from support.references.generate_runs import batch
from tightbeam.deploy import Bundle
from tightbeam.export.one_graph.check import scalar_inputs
from tightbeam.export.one_graph.graph import options_of, scalars_of
from tightbeam.export.one_graph.write import write_graphs

LEAST = "1.23.0"
SCRIPT = """
import sys
import numpy as np
import onnxruntime as ort

folder, inputs, outputs, version = sys.argv[1:]
assert ort.__version__ == version
with np.load(inputs) as given:
    np.save(outputs, ort.InferenceSession(folder + "/generate.onnx").run(["sequences"], dict(given))[0])
"""


@pytest.mark.parametrize("precision", ["int8", pytest.param("int4", marks=pytest.mark.slow)])
def test_integers_are_multiplied_unsigned(bundles: BundleCache, precision: str) -> None:
    """ONNX Runtime multiplies signed rows from 1.24 on, and 40 to 100 times slower than unsigned ones."""
    path = bundles("dedup", "bart", precision=precision) / "decoder.onnx"
    model = onnx.shape_inference.infer_shapes(
        inline_local_functions(onnx.load(path, load_external_data=False)), strict_mode=True
    )
    kinds = {each.name: each.type.tensor_type.elem_type for each in model.graph.value_info}
    graphs = [model.graph, *(part.g for node in model.graph.node for part in node.attribute if node.op_type == "If")]
    for graph in graphs:
        kinds |= {each.name: each.type.tensor_type.elem_type for each in graph.value_info}
    products = [node for graph in graphs for node in graph.node if node.op_type == "MatMulInteger"]
    assert products
    assert {kinds[name] for node in products for name in node.input[:2]} == {TensorProto.UINT8}


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "int8", "int4"])
def test_the_least_version_gives_the_same_tokens(bundles: BundleCache, precision: str, tmp_path: Path) -> None:
    packages = tmp_path / "packages"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", packages]
    subprocess.run([*install, f"onnxruntime=={LEAST}"], check=True)
    path = shutil.copytree(bundles("dedup", "bart", precision=precision), tmp_path / "bundle")
    bundle = Bundle.load(path)
    write_graphs(bundle.path, bundle.manifest)
    ids, mask = batch(bundle.manifest.sizes.source_vocabulary, 0)
    scalars = scalar_inputs({**scalars_of(options_of(bundle.manifest)), "num_beams": 3, "max_new_tokens": 9})
    np.savez(tmp_path / "inputs.npz", input_ids=ids, attention_mask=mask, **scalars)
    found = []
    for version, folder in ((LEAST, str(packages)), (ort.__version__, "")):
        outputs = tmp_path / f"{version}.npy"
        subprocess.run(
            [sys.executable, "-c", SCRIPT, bundle.path, tmp_path / "inputs.npz", outputs, version],
            env={**os.environ, "PYTHONPATH": folder},
            check=True,
        )
        found.append(np.load(outputs))
    np.testing.assert_array_equal(*found)
