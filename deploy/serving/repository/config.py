"""``config.pbtxt`` of a served bundle, written and read with Triton's own protobuf messages."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

from tightbeam.deploy.bundle.manifest import Manifest
from tightbeam.deploy.errors import InputError
from tightbeam.deploy.generation.spoken_language import PROMPTS
from tightbeam.deploy.serving.protocol.parameters import (
    DEADLINE,
    ENGINE,
    MAX_REQUEST_ROWS,
    MAX_ROWS,
    URL,
    most_rows,
)
from tightbeam.deploy.serving.protocol.tensors import (
    ALTERNATIVE_IDS,
    ALTERNATIVE_SCORES,
    ATTENTION,
    AUDIO,
    AUDIO_FILE,
    FINISH_REASON,
    FINISHED,
    IMAGE,
    INDEX,
    INPUT_IDS,
    LANGUAGE,
    LANGUAGE_PROBABILITY,
    LENGTHS,
    MESSAGES,
    NEW_TOKENS,
    OUTPUT_IDS,
    OUTPUT_LENGTHS,
    PAGES,
    REPORTS,
    SCORES,
    SEGMENTS,
    SOURCE_TOKENS,
    TEXT,
    TOKEN_SCORES,
    TRUNCATED_SIDE,
    TRUNCATED_TOKENS,
)

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
"""Parameter that marks a model as made by triton-repo."""
WARM_UP = "warm_up"
"""File in the model's folder ``warmup``: the source of the warm-up request."""
WARM_UP_IDS = (0, 1, 2, 0)
"""Token ids of the warm-up request."""
INSTALL = "pip install 'tightbeam[triton]'"
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")


class RepositoryError(ValueError):
    """A model repository cannot be written or read; the message is one line, with the fix."""


@dataclass(frozen=True)
class ServingSettings:
    """Settings of a served bundle.

    Attributes
    ----------
    name : str
        The model's name for clients.
    max_batch_size : int
        The most rows of a request for Triton, and the most that wait in the worker.
    max_request_rows : int
        The most rows of a request for the worker, which is no more than ``max_batch_size``. 0: ``max_batch_size``.
    max_rows : int
        The most rows (samples x beams) that take steps together; a request with more beams is refused. 0:
        ``max_batch_size`` times the larger of 4 and the checkpoint's beams.
    instances : int
        Processes that hold the model, for each GPU or in total on the CPU.
    device : "cpu" or "cuda"
        The device that runs the model.
    engine : str
        Runtime of the model, an ``engine`` of `Runner.load`.
    batching_delay_us : int
        Microseconds that a request waits for others in Triton, for preset ``baseline``, which runs whole batches.
    max_queue_size : int
        The most requests that wait; more are refused. 0: no limit. With a limit, Triton 24.10's batcher sleeps up to
        half a second when a request comes while the model runs, since the end of the run does not end its sleep.
    deadline_s : int
        Seconds after which a request without its last response fails; its own parameter ``deadline_s`` may say less.
    stream : bool
        Send a response for each row, and for each of its tokens, rather than one for a request.
    url : str
        The server's HTTP address, seen from its own machine.
    """

    name: str
    max_batch_size: int = 16
    max_request_rows: int = 0
    max_rows: int = 0
    instances: int = 1
    device: Literal["cpu", "cuda"] = "cpu"
    engine: str = "onnxruntime"
    batching_delay_us: int = 0
    max_queue_size: int = 0
    deadline_s: int = 3600
    stream: bool = False
    url: str = "http://127.0.0.1:8000"

    def rows(self, manifest: Manifest) -> int:
        """Return the limit of rows for a bundle. Raises RepositoryError if the checkpoint's own beams exceed it."""
        try:
            return most_rows(manifest.generation, self.max_batch_size, self.max_rows)
        except InputError as error:
            raise RepositoryError(str(error)) from None

    def check(self) -> None:
        """Raise RepositoryError for a setting that is wrong, or that no server can run."""
        if not NAME.fullmatch(self.name):
            raise RepositoryError(
                f"{self.name!r} is not a model name; pass --name letters, digits, _, - and ., at most 128 of them"
            )
        least = {
            "max_batch_size": 1,
            "max_request_rows": 0,
            "max_rows": 0,
            "instances": 1,
            "batching_delay_us": 0,
            "max_queue_size": 0,
            "deadline_s": 1,
        }
        for field, minimum in least.items():
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value < 2**31:
                option = "--" + field.replace("_", "-")
                raise RepositoryError(
                    f"{option} {value!r} is not a number of at least {minimum}; pass {minimum} or more"
                )
        if self.max_request_rows > self.max_batch_size:
            raise RepositoryError(
                f"--max-request-rows {self.max_request_rows} is more than --max-batch-size {self.max_batch_size}, the "
                "most that Triton accepts; pass less, or a larger --max-batch-size"
            )
        tensorrt = re.fullmatch("tensorrt(:.+)?", self.engine) is not None
        if not tensorrt and self.engine != "onnxruntime":
            raise RepositoryError(f"--engine {self.engine} is not known; pass onnxruntime, tensorrt, or tensorrt:NAME")
        if tensorrt != (self.device == "cuda"):
            raise RepositoryError(
                f"--engine {self.engine} does not run with --device {self.device}; on a GPU TensorRT runs a bundle "
                "(--device cuda --engine tensorrt), on a CPU ONNX Runtime does (--device cpu --engine onnxruntime)"
            )
        if not _is_http_address(self.url):
            raise RepositoryError(f"--url {self.url} is not an HTTP address; pass one such as http://127.0.0.1:8000")


def _is_http_address(url: str) -> bool:
    """Return True for a scheme and a host, with or without a port, and without characters special to a shell."""
    host = r"(?:[\w.~%+-]+(?::[\w.~%+-]*)?@)?(?:[\w.-]+|\[[0-9a-fA-F:.]+\])(?::\d+)?"
    try:
        return bool(re.fullmatch(f"https?://{host}", url, re.ASCII)) and urlsplit(url).port != 0
    except ValueError:  # a port beyond 65535, brackets around no address
        return False


def model_name_of(folder: str) -> str:
    """Return the default name of a model: its bundle's folder, without characters that Triton refuses."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", folder).lstrip(".-")


def settings_of(text: str) -> ServingSettings:
    """Read settings from the text of a ``config.pbtxt``, which may have been edited since `model_config` wrote it.

    Raises
    ------
    RepositoryError
        The text is not a model's configuration, or Triton's protobuf is not installed.
    """
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
        max_request_rows=int(parameters.get(MAX_REQUEST_ROWS, 0)),
        max_rows=int(parameters.get(MAX_ROWS, 0)),
        instances=group.count,
        device="cuda" if group.kind == triton.ModelInstanceGroup.KIND_GPU else "cpu",
        engine=parameters.get(ENGINE, ServingSettings.engine),
        batching_delay_us=config.dynamic_batching.max_queue_delay_microseconds,
        max_queue_size=config.dynamic_batching.default_queue_policy.max_queue_size,
        deadline_s=int(parameters.get(DEADLINE, ServingSettings.deadline_s)),
        stream=config.model_transaction_policy.decoupled,
        url=parameters.get(URL, ServingSettings.url),
    )


def _protobuf() -> tuple[Any, Any]:
    """Import protobuf's text format and Triton's messages. Raises RepositoryError if they are not installed."""
    try:
        from google.protobuf import text_format
        from tritonclient.grpc import model_config_pb2
    except (ImportError, RuntimeError) as error:  # RuntimeError: tritonclient without its extra grpc
        raise RepositoryError(
            f"config.pbtxt is written by tritonclient, which is not installed ({error}); {INSTALL}"
        ) from None
    return text_format, model_config_pb2


def model_config(manifest: Manifest, settings: ServingSettings, made_by: str) -> str:
    """Return the text of ``config.pbtxt``.

    Parameters
    ----------
    manifest
        The bundle's manifest.
    settings
        The served model's settings.
    made_by
        Name and version of the package that writes it.

    Raises
    ------
    RepositoryError
        Triton's protobuf is not installed, or the limit of rows refuses the checkpoint's own beams.
    """
    text_format, triton = _protobuf()
    config: Any = triton.ModelConfig(name=settings.name, backend="python", max_batch_size=settings.max_batch_size)

    def put_input(name: str, dtype: str, *dims: int, optional: bool) -> None:
        kind = getattr(triton, dtype)
        config.input.add(name=name, data_type=kind, dims=dims, allow_ragged_batch=True, optional=optional)

    def put_output(name: str, dtype: str, *dims: int) -> None:
        config.output.add(name=name, data_type=getattr(triton, dtype), dims=dims)

    # Triton names a required input that a request lacks; if all are optional, it only says that there are 0 inputs.
    text, speech = manifest.tokenizer is not None, manifest.speech is not None
    if speech:
        put_input(AUDIO, "TYPE_FP32", -1, optional=True)
        put_input(AUDIO_FILE, "TYPE_STRING", 1, optional=True)
    elif manifest.image is not None:
        put_input(IMAGE, "TYPE_STRING", 1, optional=False)
    else:
        if text:
            put_input(TEXT, "TYPE_STRING", 1, optional=True)
            put_input(MESSAGES, "TYPE_STRING", 1, optional=True)
        put_input(INPUT_IDS, "TYPE_INT64", -1, optional=text)
    if manifest.image is None:
        put_input(LENGTHS, "TYPE_INT32", 1, optional=True)
    if text:
        put_output(TEXT, "TYPE_STRING", -1)
    put_output(SCORES, "TYPE_FP32", -1)
    put_output(OUTPUT_IDS, "TYPE_INT64", -1, -1)
    put_output(OUTPUT_LENGTHS, "TYPE_INT32", -1)
    put_output(FINISH_REASON, "TYPE_STRING", -1)
    put_output(SOURCE_TOKENS, "TYPE_INT32", 1)
    put_output(NEW_TOKENS, "TYPE_INT32", 1)
    if text and manifest.reads_text:
        put_output(TRUNCATED_TOKENS, "TYPE_INT32", 1)
        put_output(TRUNCATED_SIDE, "TYPE_STRING", 1)
    if manifest.takes_glossary:
        put_output(REPORTS, "TYPE_STRING", 1)
    put_output(TOKEN_SCORES, "TYPE_FP32", -1, -1)
    put_output(ALTERNATIVE_IDS, "TYPE_INT64", -1, -1, -1)
    put_output(ALTERNATIVE_SCORES, "TYPE_FP32", -1, -1, -1)
    if manifest.translates and manifest.alignment is not None:
        put_output(ATTENTION, "TYPE_FP32", -1, -1, -1)
    if speech:
        put_output(SEGMENTS, "TYPE_STRING", 1)
    if manifest.generation.get("lang_to_id") or manifest.generation.get(PROMPTS):
        put_output(LANGUAGE, "TYPE_STRING", 1)
        put_output(LANGUAGE_PROBABILITY, "TYPE_FP32", 1)
    if manifest.image is not None:
        put_output(PAGES, "TYPE_STRING", 1)
    if settings.stream:
        put_output(INDEX, "TYPE_INT32", 1)
        put_output(FINISHED, "TYPE_BOOL", 1)
        config.model_transaction_policy.decoupled = True

    group = triton.ModelInstanceGroup
    config.instance_group.add(
        count=settings.instances, kind=group.KIND_GPU if settings.device == "cuda" else group.KIND_CPU
    )
    config.dynamic_batching.SetInParent()  # several requests in one call, without a delay
    config.dynamic_batching.max_queue_delay_microseconds = settings.batching_delay_us
    if settings.max_queue_size:  # any queue policy, even a timeout's, costs the batcher's sleep
        config.dynamic_batching.default_queue_policy.max_queue_size = settings.max_queue_size
        config.dynamic_batching.default_queue_policy.allow_timeout_override = True

    if manifest.image is None:  # Triton's stub crashes on a warm-up request of strings
        warm_up = config.model_warmup.add(name=WARM_UP, batch_size=1).inputs[AUDIO if speech else INPUT_IDS]
        if speech:
            warm_up.CopyFrom(triton.ModelWarmup.Input(data_type=triton.TYPE_FP32, dims=[1600], zero_data=True))
        else:
            dims = [len(WARM_UP_IDS)]
            warm_up.CopyFrom(triton.ModelWarmup.Input(data_type=triton.TYPE_INT64, dims=dims, input_data_file=WARM_UP))

    parameters = {
        MADE_BY: made_by,
        ENGINE: settings.engine,
        MAX_ROWS: str(settings.rows(manifest)),
        MAX_REQUEST_ROWS: str(settings.max_request_rows or settings.max_batch_size),
        URL: settings.url,
        DEADLINE: str(settings.deadline_s),
    }
    for name, parameter in parameters.items():
        config.parameters[name].string_value = parameter
    return str(text_format.MessageToString(config))
