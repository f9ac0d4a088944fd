"""Responses: a request of Triton's is read, and the worker's events become its responses."""

from __future__ import annotations

from typing import Any

import numpy as np

from tightbeam.deploy.arrays import Array
from tightbeam.deploy.serving.dispatch.responder import Outcome, Responder, bytes_fault, deadline_of
from tightbeam.deploy.serving.dispatch.tensors import tensors_of, tensors_of_event
from tightbeam.deploy.serving.protocol.log import log_exception
from tightbeam.deploy.serving.protocol.messages import Event, FoundSegment, Refused, Request, Row, Token

__all__ = ["TritonResponder"]

NUMPY = (
    f"this Triton's Python backend cannot read numpy {np.__version__}; pip install 'numpy<2' for the Python that it "
    "runs, or take Triton 24.11 or newer"
)
"""Error of a Triton before 24.11, which reads numpy 2 as if it were numpy 1: every element of an array is the first
one. The warm-up request therefore holds numbers; a text would crash the process there."""


class TritonResponder(Responder):
    """The responses of one request.

    Parameters
    ----------
    request
        Triton's request.
    triton
        The module ``triton_python_backend_utils``.
    stream
        Send each row, each token that is certain, and each segment of a recording as a response of its own. Otherwise
        there is one response, when all rows are finished.
    folder
        The model's folder, whose path no client is told.
    """

    def __init__(self, request: Any, triton: Any, *, stream: bool, folder: str = "") -> None:
        super().__init__(folder)
        self._request = request
        self._triton = triton
        self._stream = stream
        self._sender = request.get_response_sender()
        self._wanted = frozenset(request.requested_output_names())

    def read(self, number: int) -> Request | None:
        try:
            inputs = {tensor.name(): tensor.as_numpy() for tensor in self._request.inputs()}
            if any(0 in array.strides and array.size > 1 for array in inputs.values()):
                self.fail(NUMPY, client_error=False)
                return None
            if fault := bytes_fault(inputs):
                self.fail(fault, client_error=True)
                return None
            self.size = max((len(array) for array in inputs.values()), default=1)
            parameters = self._request.parameters()
            self.deadline_s = deadline_of(parameters)
            return Request(number, inputs, parameters, stream=self._stream)
        except Exception as error:  # from Triton's decoding
            self.fail(f"the inputs cannot be read ({error})", client_error=True)
            return None

    def was_cancelled(self) -> bool:
        try:
            if not self.open or not self._request.is_cancelled():
                return False
        except Exception:  # from Triton, such as full shared memory; it is asked again
            return False
        self._end("cancelled", "the request was cancelled", self._triton.TritonError.CANCELLED)
        return True

    def add(self, event: Event) -> None:
        if not self.open:
            return  # cancelled
        try:
            self._add(event)
        except Exception as error:  # from Triton's encoding, such as full shared memory
            self.fail(f"the response cannot be sent ({error})", client_error=False)

    def _add(self, event: Event) -> None:
        if isinstance(event, Refused):
            self.fail(event.message, client_error=event.client_error)
        elif not self.is_new(event):
            return
        elif isinstance(event, Token | FoundSegment):
            self._send(tensors_of_event(event), last=False)
        elif isinstance(event, Row):
            last = len(self.rows) == self.size
            if self._stream:
                self._send(tensors_of_event(event), last=last)
            elif last:
                outputs = [self.rows[row].output for row in range(self.size)]
                self._send(tensors_of(outputs, event.fill), last=True)

    def fail(self, reason: str, *, client_error: bool) -> None:
        if not self.open:
            return
        if client_error:
            self._end("refused", reason, self._triton.TritonError.INVALID_ARG)
        else:
            self._end("failed", reason, self._triton.TritonError.UNAVAILABLE)

    def _send(self, arrays: dict[str, Array], *, last: bool) -> None:
        tensors = [self._triton.Tensor(name, array) for name, array in arrays.items() if name in self._wanted]
        flags = self._triton.TRITONSERVER_RESPONSE_COMPLETE_FINAL if last else 0
        self._sender.send(self._triton.InferenceResponse(tensors), flags=flags)
        self.outcome = "finished" if last else None

    def _end(self, outcome: Outcome, reason: str, code: int) -> None:
        self.outcome = outcome
        error = self._triton.TritonError(self.told(reason, failed=outcome == "failed"), code)
        final = self._triton.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        try:
            self._sender.send(self._triton.InferenceResponse(error=error), flags=final)
        except Exception as fault:  # no response can be sent any more; the other requests go on
            log_exception(fault)
