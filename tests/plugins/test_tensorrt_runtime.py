"""Engine files loaded by TensorRT: results and errors with a stand-in, and TensorRT-RTX without a GPU."""

from __future__ import annotations

import logging
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tightbeam.plugins.tensorrt.distribution import TensorRT
from tightbeam.plugins.tensorrt.errors import TensorRTError
from tightbeam.plugins.tensorrt.plugin import plugin_errors, register_plugins
from tightbeam.plugins.tensorrt.runtime import LoadedGraph

Array = Any


class Trt(ModuleType):
    """The part of TensorRT's module that loads and runs an engine."""

    __version__ = "1.7"

    class ILogger:
        Severity = SimpleNamespace(INTERNAL_ERROR=0, ERROR=1, WARNING=2, INFO=3, VERBOSE=4)

    TensorLocation = SimpleNamespace(HOST="host", DEVICE="device")
    DataType = SimpleNamespace(**{name: name for name in ("FLOAT", "HALF", "BF16", "INT32", "INT64", "BOOL")})
    DynamicShapesKernelSpecializationStrategy = SimpleNamespace(NONE="none")

    def __init__(self, **responses: Any) -> None:
        super().__init__("trt")
        self.responses = {
            **{"engine": self, "context": self, "enqueued": True, "shape": True, "address": True, "missing": []},
            **responses,
        }
        self.said = ""
        self.num_io_tensors = 2

    def Runtime(self, logger: Any) -> Any:
        self.logger = logger
        return self

    def deserialize_cuda_engine(self, data: Any) -> Any:
        assert bytes(data) == b"engine"
        return self._answer("engine")

    def create_runtime_config(self) -> Any:
        self.config = SimpleNamespace()
        return self.config

    def create_execution_context(self, config: Any = None) -> Any:
        assert config is None or config.dynamic_shapes_kernel_specialization_strategy == "none"
        return self._answer("context")

    def get_tensor_name(self, index: int) -> str:
        return "ab"[index]

    def get_tensor_dtype(self, name: str) -> str:
        return {"a": "HALF", "b": "FP8"}[name]

    def get_tensor_location(self, name: str) -> str:
        return {"a": "host", "b": "device"}[name]

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> Any:
        return self._answer("shape")

    def set_tensor_address(self, name: str, address: int) -> Any:
        return self._answer("address")

    def infer_shapes(self) -> Any:
        if self.responses["missing"] is None:
            raise RuntimeError("no shapes")
        return self.responses["missing"]

    def get_tensor_shape(self, name: str) -> Any:
        return [3, 4]

    def is_stream_capturable(self, stream: int) -> Any:
        return self._answer("capturable")

    def execute_async_v3(self, stream: int) -> Any:
        plugin_errors.extend(self.responses.get("plugin_errors", ()))
        return self._answer("enqueued")

    def _answer(self, name: str) -> Any:
        if not self.responses[name]:
            self.logger.log(1, f"no {name},\n  said TensorRT")
        return self.responses[name]


def loaded(path: Path, distribution: str = "tensorrt_rtx", **responses: Any) -> LoadedGraph:
    path.write_bytes(b"engine")
    return LoadedGraph(TensorRT(Trt(**responses), distribution), path)


def test_tensors_of_a_loaded_graph(tmp_path: Path) -> None:
    graph = loaded(tmp_path / "a.engine", capturable=False)
    assert graph.on_host == {"a"}
    assert graph.types == {"a": "float16", "b": "FP8"}
    graph.set_input("a", [1, 2], 256)
    graph.set_output("b", [3, 4], 512)
    graph.execute(5)
    graph.set_output("b", [4, 4], 512)
    with pytest.raises(TensorRTError, match=r"'b' is \[3, 4\], expected \[4, 4\]"):
        graph.execute(5)
    assert not graph.can_be_captured(5)
    assert loaded(tmp_path / "a.engine", "tensorrt").can_be_captured(5)


@pytest.mark.parametrize(
    ("responses", "call", "said"),
    [
        ({"engine": None}, "", "tensorrt_rtx 1.7 cannot load {path} (no engine, said TensorRT)"),
        ({"context": None}, "", "tensorrt_rtx 1.7 cannot prepare {path} (no context, said TensorRT)"),
        ({"shape": False}, "set_input", "input 'a' cannot have the shape [1] (no shape, said TensorRT)"),
        ({"address": False}, "set_output", "the address of 'a' was refused (no address, said TensorRT)"),
        ({"missing": ["x", "y"]}, "execute", "the inputs x, y were not set"),
        ({"missing": None}, "execute", "TensorRT cannot infer the outputs' shapes from the inputs"),
        ({"enqueued": False}, "execute", "the engine was not enqueued (no enqueued, said TensorRT)"),
        (
            {"enqueued": False, "plugin_errors": ["NGramBlock: no"]},
            "execute",
            "NGramBlock: no (no enqueued, said TensorRT)",
        ),
        ({"plugin_errors": ["NGramBlock: no"]}, "execute", "NGramBlock: no"),
    ],
)
def test_errors_of_tensorrt_are_one_line(tmp_path: Path, responses: dict[str, Any], call: str, said: str) -> None:
    arguments: dict[str, tuple[Any, ...]] = {
        "set_input": ("a", (1,), 256),
        "set_output": ("a", (1,), 256),
        "execute": (5,),
    }
    with pytest.raises(TensorRTError) as caught:
        graph = loaded(tmp_path / "a.engine", **responses)
        getattr(graph, call)(*arguments[call])
    assert str(caught.value) == said.format(path=tmp_path / "a.engine")
    plugin_errors.clear()


@pytest.mark.parametrize("there", [True, False])
def test_an_empty_or_missing_engine_file(tmp_path: Path, there: bool) -> None:
    path = tmp_path / "a.engine"
    if there:
        path.touch()
    with pytest.raises(TensorRTError, match=r"a\.engine cannot be read"):
        LoadedGraph(TensorRT(Trt(), "tensorrt"), path)


def test_messages_of_tensorrt(caplog: pytest.LogCaptureFixture) -> None:
    found = TensorRT(Trt(), "tensorrt")
    severity = Trt.ILogger.Severity
    caplog.set_level(logging.DEBUG)
    for kind in (severity.INTERNAL_ERROR, severity.ERROR, severity.WARNING, severity.VERBOSE):
        found.logger.log(kind, f"  kind {kind}\n of two lines ")
    assert list(found.errors) == ["kind 0 of two lines", "kind 1 of two lines"]
    levels = [(record.levelname, record.message) for record in caplog.records]
    assert levels == [
        ("ERROR", "kind 0 of two lines"),
        *((level, f"kind {kind} of two lines") for kind, level in ((1, "INFO"), (2, "INFO"), (4, "DEBUG"))),
    ]
    assert found.logger is found.logger


def test_installed_tensorrt_rtx(tmp_path: Path) -> None:
    """Settings for CUDA graphs and exact float32, and the error for a file that is not an engine. More needs a GPU."""
    pytest.importorskip("tensorrt_rtx_bindings")
    found = register_plugins()
    if not found.is_rtx:
        pytest.skip("there is another TensorRT")
    config = found.configure(found.trt.Builder(found.logger), ["80"])
    assert config.get_flag(found.trt.BuilderFlag.REQUIRE_USER_ALLOCATION)
    assert not config.get_flag(found.trt.BuilderFlag.TF32)
    assert found.trt.DynamicShapesKernelSpecializationStrategy.NONE.name == "NONE"
    methods = ("set_input_shape", "set_tensor_address", "infer_shapes", "get_tensor_shape", "is_stream_capturable")
    assert all(hasattr(found.trt.IExecutionContext, name) for name in (*methods, "execute_async_v3"))
    (tmp_path / "a.engine").write_bytes(b"no engine" * 100)
    with pytest.raises(TensorRTError, match=r"tensorrt_rtx .* cannot load .*a\.engine \(.+\)$"):
        LoadedGraph(found, tmp_path / "a.engine")
