"""A fake of Triton's module ``triton_python_backend_utils``, and of its requests."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

__all__ = ["FakeRequest", "FakeTriton"]

FINAL = 1


class Tensor:
    def __init__(self, name: str, array: Any) -> None:
        self._name, self._array = name, array

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> Any:
        if isinstance(self._array, Exception):
            raise self._array
        return self._array


class TritonError(Exception):
    INVALID_ARG, UNAVAILABLE, CANCELLED = "INVALID_ARG", "UNAVAILABLE", "CANCELLED"

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.message, self.code = message, code


class TritonModelException(Exception): ...


class InferenceResponse:
    def __init__(self, output_tensors: list[Tensor] | None = None, error: TritonError | None = None) -> None:
        self.outputs = {tensor.name(): tensor.as_numpy() for tensor in output_tensors or []}
        self.error = error


class FakeRequest:
    """A request. ``cancelled_at``: calls of ``is_cancelled`` until it is; ``failing``: sends that fail, from 1."""

    def __init__(
        self,
        inputs: dict[str, Any],
        parameters: str = "{}",
        *,
        outputs: tuple[str, ...] = ("TEXT", "SCORES", "OUTPUT_IDS", "OUTPUT_LENGTHS", "INDEX", "FINISHED"),
        cancelled_at: int = 10**9,
        failing: tuple[int, ...] = (),
    ) -> None:
        self._inputs, self._parameters, self._outputs = inputs, parameters, outputs
        self._left, self._failing = cancelled_at, failing
        self.attempts = 0
        self.responses: list[InferenceResponse] = []
        self.flags: list[int] = []

    def inputs(self) -> list[Tensor]:
        return [Tensor(name, array) for name, array in self._inputs.items()]

    def parameters(self) -> str:
        return self._parameters

    def requested_output_names(self) -> list[str]:
        return list(self._outputs)

    def get_response_sender(self) -> FakeRequest:
        return self

    def is_cancelled(self) -> bool:
        self._left -= 1
        return self._left < 0

    def send(self, response: InferenceResponse, flags: int = 0) -> None:
        assert FINAL not in self.flags, "a response after the last one"
        self.attempts += 1
        if self.attempts in self._failing:
            raise RuntimeError("No space left on device")
        self.responses.append(response)
        self.flags.append(flags)

    @property
    def over(self) -> bool:
        """True if it got exactly one last response."""
        return self.flags.count(FINAL) == 1 and self.flags[-1] == FINAL

    @property
    def error(self) -> TritonError | None:
        """The error of the last response; no other has one."""
        assert not any(response.error for response in self.responses[:-1])
        return self.responses[-1].error if self.responses else None


class Metric:
    def __init__(self, values: Counter[str], name: str, labels: dict[str, str]) -> None:
        self.values, self.name, self.labels = values, name, labels

    def increment(self, amount: float) -> None:
        assert amount > 0
        self.values[self.name] += amount  # type: ignore[assignment]

    def set(self, value: float) -> None:
        self.values[self.name] = value  # type: ignore[assignment]


class FakeTriton:
    """The module. ``metrics``: their values by name."""

    Tensor, InferenceResponse = Tensor, InferenceResponse
    TritonError, TritonModelException = TritonError, TritonModelException
    TRITONSERVER_RESPONSE_COMPLETE_FINAL = FINAL

    def __init__(self) -> None:
        metrics: Counter[str] = Counter()
        self.metrics = metrics

        class MetricFamily:
            COUNTER, GAUGE = "counter", "gauge"

            def __init__(self, name: str, description: str, kind: str) -> None:
                assert description and kind == ("counter" if name.endswith("_total") else "gauge")
                self._name = name

            def Metric(self, labels: dict[str, str]) -> Metric:
                return Metric(metrics, self._name, labels)

        self.MetricFamily = MetricFamily


def broadcast(shape: tuple[int, ...]) -> Any:
    """An array as Triton before 24.11 passes it to numpy 2."""
    return np.broadcast_to(np.int64(5), shape)
