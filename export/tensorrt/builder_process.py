"""The process of TensorRT's builds: ``python -m tightbeam.export.tensorrt.builder_process``.

TensorRT can abort its process on unexpected input; the caller (``run_builds``) survives that and reports it. The
process reads a ``Request`` as JSON on standard input, and writes JSON objects on standard output, one a line:

    {"part"}                        a graph begins
    {"phase", "done", "steps"}      progress
    {"plugins", "inputs", "outputs"}  the graph is built; ``plugins``: nodes of each operator in the engine
    {"kernels"}                     at the end: folder, kernel and compute capability of all that the engines may start
    {"error"}                       the reason of a failure, which ends the process
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from tightbeam.plugins.tensorrt.ahead import kernels_of, profiled_calls
from tightbeam.plugins.tensorrt.distribution import TensorRT
from tightbeam.plugins.tensorrt.errors import TensorRTError
from tightbeam.plugins.tensorrt.plugin import plugin_errors, register_plugins

__all__ = ["GraphRequest", "Range", "Request", "build"]

Range = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""Smallest, usual and largest shape of an input; or its values, for an input on the host."""
FIRST_REASONS = 3


class GraphRequest(BaseModel):
    """A graph to build.

    ``part``: its name. ``model``: its ONNX file, with plugin nodes, beside its weights. ``target``: the engine's file.
    ``ranges``: shapes of every input. ``on_host``: values of the inputs that TensorRT may need on the host.
    """

    model_config = ConfigDict(frozen=True)

    part: str
    model: Path
    target: Path
    ranges: dict[str, Range]
    on_host: dict[str, Range]


class Request(BaseModel):
    """Graphs to build one after another. ``kernels_for``: compute capabilities whose kernels are wanted."""

    model_config = ConfigDict(frozen=True)

    capabilities: tuple[str, ...]
    graphs: tuple[GraphRequest, ...]
    kernels_for: tuple[str, ...] = ()


def build(
    request: GraphRequest, capabilities: Sequence[str], report: Callable[[Mapping[str, Any]], None]
) -> dict[str, Any]:
    """Build an engine and write its file.

    Parameters
    ----------
    request
        The graph.
    capabilities
        Compute capabilities such as "80", or "current".
    report
        Called with progress.

    Returns
    -------
    dict
        ``plugins``, ``inputs`` and ``outputs`` of the engine, as the process reports them.

    Raises
    ------
    TensorRTError
        With TensorRT's own reasons.
    """
    tensorrt = register_plugins()
    trt = tensorrt.trt
    plugin_errors.clear()
    tensorrt.errors.clear()
    builder = trt.Builder(tensorrt.logger)
    network = tensorrt.network(builder)
    parser = trt.OnnxParser(network, tensorrt.logger)
    if not parser.parse_from_file(str(request.model)):
        refused = [parser.get_error(index).desc() for index in range(parser.num_errors)]
        raise TensorRTError(_reason(tensorrt, "parse", [*plugin_errors, *refused]))
    config = tensorrt.configure(builder, capabilities)
    config.add_optimization_profile(_profile(builder, network, request))
    monitor = _monitor(trt, report)
    config.progress_monitor = monitor
    engine = builder.build_serialized_network(network, config)
    if engine is None or plugin_errors:
        raise TensorRTError(_reason(tensorrt, "build", [*plugin_errors, *tensorrt.errors]))
    with request.target.open("wb") as stream:
        stream.write(engine)
    return {
        "plugins": _plugins(trt, network),
        "inputs": [_described(network.get_input(i)) for i in range(network.num_inputs)],
        "outputs": [_described(network.get_output(i)) for i in range(network.num_outputs)],
    }


def _reason(tensorrt: TensorRT, what: str, reasons: list[str]) -> str:
    reasons = [reason for reason in reasons if "checkMacros" not in reason]  # TensorRT's warning about a missing driver
    why = "; ".join(dict.fromkeys(" ".join(reason.split()) for reason in reasons[:FIRST_REASONS])) or "no reason given"
    return f"{tensorrt.distribution} {tensorrt.version} cannot {what} the graph: {why}"


def _profile(builder: Any, network: Any, request: GraphRequest) -> Any:
    profile = builder.create_optimization_profile()
    for index in range(network.num_inputs):
        tensor = network.get_input(index)
        if tensor.is_shape_tensor:
            if tensor.name not in request.on_host:
                raise TensorRTError(
                    f"TensorRT needs the values of input {tensor.name} on the host, which no runtime passes"
                )
            profile.set_shape_input(tensor.name, *map(list, request.on_host[tensor.name]))
        elif any(size < 0 for size in tensor.shape):
            profile.set_shape(tensor.name, *request.ranges[tensor.name])
    return profile


def _plugins(trt: Any, network: Any) -> dict[str, int]:
    """Count of plugin layers by operator."""
    layers = (network.get_layer(index) for index in range(network.num_layers))
    found: Counter[str] = Counter()
    for layer in layers:
        if layer.type == trt.LayerType.PLUGIN_V3:
            layer.__class__ = trt.IPluginV3Layer
            found[layer.plugin.plugin_name] += 1
    return dict(found)


def _described(tensor: Any) -> dict[str, Any]:
    return {"name": tensor.name, "on_host": bool(tensor.is_shape_tensor)}


def _monitor(trt: Any, report: Callable[[Mapping[str, Any]], None]) -> Any:
    """A progress monitor that reports every phase, nested ones too."""

    class Monitor(trt.IProgressMonitor):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)
            self.steps: dict[str, int] = {}

        def phase_start(self, phase: str, parent: str | None, steps: int) -> None:
            self.steps[phase] = steps
            report({"phase": phase, "done": 0, "steps": steps})

        def step_complete(self, phase: str, step: int) -> bool:
            report({"phase": phase, "done": step + 1, "steps": self.steps.get(phase, 0)})
            return True

        def phase_finish(self, phase: str) -> None:
            steps = self.steps.pop(phase, 0)
            report({"phase": phase, "done": steps, "steps": steps})

    return Monitor()


def main() -> None:
    logging.disable()
    reports = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # TensorRT writes to standard output itself

    def report(line: Mapping[str, Any]) -> None:
        print(json.dumps(line), file=reports, flush=True)

    try:
        request = Request.model_validate(json.load(sys.stdin.buffer))
        for graph in request.graphs:
            report({"part": graph.part})
            report(build(graph, request.capabilities, report))
        report({"kernels": [[*kernel, of] for of in request.kernels_for for kernel in kernels_of(profiled_calls, of)]})
    except TensorRTError as error:
        report({"error": str(error)})
    except OSError as error:
        report({"error": f"cannot write the engine: {error.strerror or error}"})
    reports.flush()
    os._exit(0)  # what TensorRT does when the interpreter ends is of no use, and can abort


if __name__ == "__main__":
    main()
