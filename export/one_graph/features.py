"""``features.onnx``: Whisper's log-mel spectrogram in standard operators. Samples in, ``input_features`` out.

    audio [B, T] ─▶ a whole window ─▶ Conv: Hann's window and Fourier transform ─▶ powers ─▶ mel filters ─▶ log10

This is `deploy/audio/features.py` again, whose mel filters it has.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnx.numpy_helper
from onnx import TensorProto

from tightbeam.deploy.audio.features import DECADES, SMALLEST_POWER, LogMel
from tightbeam.export.one_graph.graph import OLDER_OPSET, nodes_of, renamed
from tightbeam.graph_passes.model import Array
from tightbeam.plugins.ops import IR_VERSION

__all__ = ["AUDIO", "features_graph"]

AUDIO = "audio"
"""The input: float32 [B, T]."""
TEXT = f"""
    sample_begin = Constant <value = int64[1] {{0}}> ()
    sample_end = Constant <value = int64[1] {{SAMPLES}}> ()
    sample_axis = Constant <value = int64[1] {{1}}> ()
    heard = Slice ({AUDIO}, sample_begin, sample_end, sample_axis)
    heard_length = Shape <start = 1, end = 2> (heard)
    silent_length = Sub (sample_end, heard_length)
    silence = Concat <axis = 0> (sample_begin, sample_begin, sample_begin, silent_length)
    silence_value = Constant <value = float {{PADDING}}> ()
    whole = Pad (heard, silence, silence_value)
    edges = Constant <value = int64[4] {{0, HALF, 0, HALF}}> ()
    mirrored = Pad <mode = "reflect"> (whole, edges)
    channel = Unsqueeze (mirrored, sample_axis)
    spectrum_one_more = Conv <strides = [HOP]> (channel, mel_transform)
    frame_end = Constant <value = int64[1] {{FRAMES}}> ()
    frame_axis = Constant <value = int64[1] {{2}}> ()
    spectrum = Slice (spectrum_one_more, sample_begin, frame_end, frame_axis)
    squares = Mul (spectrum, spectrum)
    real, imaginary = Split <axis = 1, num_outputs = 2> (squares)
    powers = Add (real, imaginary)
    mel_powers = MatMul (mel_filters, powers)
    smallest = Constant <value = float {{SMALLEST}}> ()
    heard_powers = Max (mel_powers, smallest)
    natural_logs = Log (heard_powers)
    per_decade = Constant <value = float {{PER_DECADE}}> ()
    logs = Mul (natural_logs, per_decade)
    feature_axes = Constant <value = int64[2] {{1, 2}}> ()
    highest = ReduceMax <keepdims = 1> (logs, feature_axes)
    decades = Constant <value = float {{DECADES}}> ()
    lowest = Sub (highest, decades)
    kept = Max (logs, lowest)
    four = Constant <value = float {{4}}> ()
    raised = Add (kept, four)
    input_features = Div (raised, four)
"""


def features_graph(extractor: LogMel) -> onnx.ModelProto:
    """Make the graph of a Whisper checkpoint's features.

    Parameters
    ----------
    extractor
        The checkpoint's feature extractor.

    Returns
    -------
    onnx.ModelProto
        From ``audio`` float32 [B, T], samples in -1..1, to ``input_features`` float32 [B, mels, frames]. What is beyond
        a window is not read, and a shorter recording is padded.
    """
    values = {
        "SAMPLES": extractor.samples,
        "PADDING": extractor.padding,
        "HALF": extractor.window // 2,
        "HOP": extractor.hop,
        "FRAMES": extractor.frames,
        "SMALLEST": SMALLEST_POWER,
        "PER_DECADE": 1 / np.log(10),
        "DECADES": DECADES,
    }
    nodes = nodes_of(TEXT, values)
    own = {name for node in nodes for name in node.output} - {"input_features"}
    shape: list[str | int | None] = ["B", extractor.mels, extractor.frames]
    graph = onnx.helper.make_graph(
        renamed(nodes, {name: f"mel.{name}" for name in own}),
        "features",
        [onnx.helper.make_tensor_value_info(AUDIO, TensorProto.FLOAT, ["B", "T"])],
        [onnx.helper.make_tensor_value_info("input_features", TensorProto.FLOAT, shape)],
        [
            onnx.numpy_helper.from_array(_transform(extractor.window), "mel_transform"),
            onnx.numpy_helper.from_array(np.ascontiguousarray(extractor.filters.T), "mel_filters"),
        ],
    )
    opsets = [onnx.helper.make_opsetid("", OLDER_OPSET)]
    return onnx.helper.make_model(graph, ir_version=IR_VERSION, opset_imports=opsets, producer_name="tightbeam")


def _transform(window: int) -> Array:
    """Hann's window times the Fourier transform float32 [2 (window / 2 + 1), 1, window]: cosines, then sines."""
    n, k = np.arange(window), np.arange(window // 2 + 1)[:, None]
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * n / window)
    angles = (k * n % window) * (2 * np.pi / window)
    return np.concatenate([hann * np.cos(angles), hann * np.sin(angles)]).astype(np.float32)[:, None]
