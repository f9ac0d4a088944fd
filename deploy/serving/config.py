"""``config.pbtxt`` of a served bundle, written by Triton's own protobuf, so that Triton can read it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from tightbeam.deploy.bundle.manifest import Manifest
from tightbeam.deploy.serving.backend import ENGINE, MAX_ROWS, URL
from tightbeam.deploy.serving.requests import AUDIO, INPUT_IDS, LENGTHS, TEXT
from tightbeam.deploy.serving.responses import FINISHED, INDEX, OUTPUT_IDS, OUTPUT_LENGTHS, SCORES

__all__ = [
    "MADE_BY",
    "WARM_UP",
    "WARM_UP_IDS",
    "RepositoryError",
    "ServingSettings",
    "model_config",
    "model_name_of",
    "settings_of",
]

MADE_BY = "made_by"
"""The parameter that says that a model is ours."""
WARM_UP = "warm_up"
"""The file, in the model's folder ``warmup``, whose content is the first source that is run."""
WARM_UP_IDS = (0, 1, 2, 0)
INSTALL = "pip install 'tightbeam[triton]'"
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")


class RepositoryError(ValueError):
    """A model repository cannot be written; one line, with the fix."""


@dataclass(frozen=True)
class ServingSettings:
    """How a bundle is served.

    Attributes:
        name: of the model, as clients call it.
        max_batch_size: requests (their rows) that Triton puts together.
        max_rows: samples x beams that are run together; more beams are refused. 0: ``max_batch_size`` times the
            checkpoint's own beams, of which at least 4 are counted.
        instances: processes that hold the model, on each GPU or together on the CPU.
        device: "cpu" or "gpu".
        engine: as ``Runner.load`` takes it.
        batching_delay_us: microseconds that a request waits for others while the model is idle.
        max_queue_size: requests that wait; more are refused. 0: any number. With a limit Triton 24.10's batcher sleeps
            up to half a second when a request comes while the model runs, since nobody wakes it when that is through.
        stream: a response for each row, and for each token of greedy search, rather than one for a request.
        url: where the server will take HTTP, seen from itself.
    """

    name: str
    max_batch_size: int = 16
    max_rows: int = 0
    instances: int = 1
    device: Literal["cpu", "gpu"] = "cpu"
    engine: str = "onnxruntime"
    batching_delay_us: int = 2000
    max_queue_size: int = 0
    stream: bool = False
    url: str = "http://127.0.0.1:8000"

    def rows(self, manifest: Manifest) -> int:
        """The limit of rows, as a number. Raises RepositoryError for one that refuses the checkpoint's own beams."""
        beams = int(manifest.generation.get("num_beams") or 1)
        if 0 < self.max_rows < beams:
            raise RepositoryError(
                f"--max-rows {self.max_rows} leaves no room for the {beams} beams that the checkpoint searches with; "
                f"pass {beams} or more"
            )
        return self.max_rows or self.max_batch_size * max(4, beams)

    def check(self) -> None:
        """Raise RepositoryError for settings that no server could run."""
        if not NAME.fullmatch(self.name):
            raise RepositoryError(
                f"{self.name!r} is no name for a model; pass --name letters, digits, _, - and ., at most 128 of them"
            )
        least = {"max_batch_size": 1, "max_rows": 0, "instances": 1, "batching_delay_us": 0, "max_queue_size": 0}
        for field, minimum in least.items():
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value < 2**31:
                option = "--" + field.replace("_", "-")
                raise RepositoryError(
                    f"{option} {value!r} is not a number of at least {minimum}; pass {minimum} or more"
                )
        tensorrt = re.fullmatch("tensorrt(:.+)?", self.engine) is not None
        if not tensorrt and self.engine != "onnxruntime":
            raise RepositoryError(f"--engine {self.engine} is not known; pass onnxruntime, tensorrt, or tensorrt:NAME")
        if tensorrt != (self.device == "gpu"):
            raise RepositoryError(
                f"--engine {self.engine} does not run with --device {self.device}; on a GPU TensorRT runs a bundle "
                "(--device gpu --engine tensorrt), on a CPU ONNX Runtime does (--device cpu --engine onnxruntime)"
            )
        if not re.fullmatch(r"https?://[^\s/]+", self.url):
            raise RepositoryError(f"--url {self.url} is no address; pass one such as http://127.0.0.1:8000")


def model_name_of(folder: str) -> str:
    """The name that a bundle's folder suggests."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", folder).lstrip(".-")


def settings_of(text: str) -> ServingSettings:
    """Of a ``config.pbtxt`` that `model_config` wrote, or somebody edited. Raises RepositoryError for what is none."""
    text_format, triton = _protobuf()
    config: Any = triton.ModelConfig()
    try:
        text_format.Parse(text, config)
    except text_format.ParseError as error:
        raise RepositoryError(
            f"the model's config.pbtxt cannot be read: {error}; replace the model with --force"
        ) from None
    group = config.instance_group[0] if config.instance_group else triton.ModelInstanceGroup(count=1)
    parameters = {name: parameter.string_value for name, parameter in config.parameters.items()}
    return ServingSettings(
        name=config.name,
        max_batch_size=config.max_batch_size,
        max_rows=int(parameters.get(MAX_ROWS, 0)),
        instances=group.count,
        device="gpu" if group.kind == triton.ModelInstanceGroup.KIND_GPU else "cpu",
        engine=parameters.get(ENGINE, ServingSettings.engine),
        batching_delay_us=config.dynamic_batching.max_queue_delay_microseconds,
        max_queue_size=config.dynamic_batching.default_queue_policy.max_queue_size,
        stream=config.model_transaction_policy.decoupled,
        url=parameters.get(URL, ServingSettings.url),
    )


def _protobuf() -> tuple[Any, Any]:
    """Protobuf's text format, and Triton's messages. Raises RepositoryError where they are not installed."""
    try:
        from google.protobuf import text_format
        from tritonclient.grpc import model_config_pb2
    except (ImportError, RuntimeError) as error:  # RuntimeError: tritonclient without its extra grpc
        raise RepositoryError(
            f"config.pbtxt is written by tritonclient, which is not there ({error}); {INSTALL}"
        ) from None
    return text_format, model_config_pb2


def model_config(manifest: Manifest, settings: ServingSettings, made_by: str) -> str:
    """The text of ``config.pbtxt``. Raises RepositoryError where Triton's protobuf is not installed."""
    text_format, triton = _protobuf()
    config: Any = triton.ModelConfig(name=settings.name, backend="python", max_batch_size=settings.max_batch_size)

    def put(kind: str, name: str, dtype: str, *dims: int) -> None:
        tensor = getattr(config, kind).add(name=name, data_type=getattr(triton, dtype), dims=dims)
        if kind == "input":
            tensor.optional = True
            tensor.allow_ragged_batch = True

    text, speech = manifest.tokenizer is not None, manifest.speech is not None
    if text and not speech:
        put("input", TEXT, "TYPE_STRING", 1)
    if speech:
        put("input", AUDIO, "TYPE_FP32", -1)
    else:
        put("input", INPUT_IDS, "TYPE_INT64", -1)
    put("input", LENGTHS, "TYPE_INT32", 1)
    if text:
        put("output", TEXT, "TYPE_STRING", -1)
    put("output", SCORES, "TYPE_FP32", -1)
    put("output", OUTPUT_IDS, "TYPE_INT64", -1, -1)
    put("output", OUTPUT_LENGTHS, "TYPE_INT32", -1)
    if settings.stream:
        put("output", INDEX, "TYPE_INT32", 1)
        put("output", FINISHED, "TYPE_BOOL", 1)
        config.model_transaction_policy.decoupled = True

    group = triton.ModelInstanceGroup
    config.instance_group.add(
        count=settings.instances, kind=group.KIND_GPU if settings.device == "gpu" else group.KIND_CPU
    )
    config.dynamic_batching.max_queue_delay_microseconds = settings.batching_delay_us
    if settings.max_queue_size:  # any policy, even to heed a request's timeout, has that price
        config.dynamic_batching.default_queue_policy.max_queue_size = settings.max_queue_size
        config.dynamic_batching.default_queue_policy.allow_timeout_override = True

    warm_up = config.model_warmup.add(name=WARM_UP, batch_size=1).inputs[AUDIO if speech else INPUT_IDS]
    if speech:
        warm_up.CopyFrom(triton.ModelWarmup.Input(data_type=triton.TYPE_FP32, dims=[1600], zero_data=True))
    else:
        dims = [len(WARM_UP_IDS)]
        warm_up.CopyFrom(triton.ModelWarmup.Input(data_type=triton.TYPE_INT64, dims=dims, input_data_file=WARM_UP))

    parameters = {MADE_BY: made_by, ENGINE: settings.engine, MAX_ROWS: str(settings.rows(manifest)), URL: settings.url}
    for name, parameter in parameters.items():
        config.parameters[name].string_value = parameter
    return str(text_format.MessageToString(config))
