"""The model as Triton's Python backend loads it: everything stands in the package tightbeam, which has to be installed
for the Python that Triton runs."""

from __future__ import annotations

from typing import Any

import triton_python_backend_utils as pb_utils

from tightbeam.deploy.serving.backend import Backend


class TritonPythonModel:
    """The class that the Python backend looks for."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the bundle beside this file."""
        self._backend = Backend(args, pb_utils)

    def execute(self, requests: list[Any]) -> None:
        """Responder requests, through their response senders."""
        self._backend.execute(requests)

    def finalize(self) -> None:
        """End the process that generates."""
        self._backend.close()
