"""The naive deployment that tools/bench/serving.py compares with: ``generate``, one request after another.

Triton's Python backend loads this file.
"""

from __future__ import annotations

import json
import os
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # threads that spin would wait for the server's, and it for them

import torch
import transformers
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """INPUT_IDS int64 [1, N] -> OUTPUT_IDS int64 [num_return_sequences, T], as ``generate`` returns them."""

    def initialize(self, args: dict[str, str]) -> None:
        """Parameters: the checkpoint's folder, its class in transformers, threads, and settings as JSON."""
        parameters = {
            name: value["string_value"] for name, value in json.loads(args["model_config"])["parameters"].items()
        }
        torch.set_num_threads(int(parameters["threads"]))
        self._settings = json.loads(parameters["settings"])
        architecture = getattr(transformers, parameters["architecture"])
        self._model = architecture.from_pretrained(parameters["checkpoint"], dtype=torch.float32).eval()

    def execute(self, requests: list[Any]) -> list[Any]:
        """One response a request."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        ids = torch.from_numpy(pb_utils.get_input_tensor_by_name(request, "INPUT_IDS").as_numpy())
        with torch.no_grad():
            found = self._model.generate(ids, attention_mask=torch.ones_like(ids), **self._settings)
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT_IDS", found.numpy())])
