"""``generate_text.onnx``: the graph that generates, with the bundle's tokenizer around it. Texts in, texts out."""

from __future__ import annotations

import importlib.util
import textwrap
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto
from tokenizers import Tokenizer

from tightbeam.deploy.bundle.manifest import Manifest, ModelSizes
from tightbeam.deploy.runtimes._onnxruntime import is_runtime_error
from tightbeam.export.errors import ExportError, first_line
from tightbeam.export.one_graph.graph import OLDER_OPSET, options_of
from tightbeam.export.one_graph.graph_tokenizer import GraphTokenizer, of_class, of_file
from tightbeam.export.one_graph.tokenizer import FIX, TEXT_DOMAIN, composes, decoding_nodes, encoding_nodes
from tightbeam.export.one_graph.tokenizer_texts import texts_of
from tightbeam.graph_passes import Sizes
from tightbeam.plugins.ops import IR_VERSION

__all__ = [
    "BROKEN",
    "check_checkpoint_tokenizer",
    "check_tokenizer",
    "longest_text",
    "session_with_text",
    "text_graph",
]

Sample = TypeVar("Sample")
SOURCE = ("input_ids", "attention_mask")
BROKEN = "\ufffd"
"""The replacement character, U+FFFD: a decoder writes it for bytes that do not form a character."""
COMPOSE = (
    "generate_text.onnx takes texts in Unicode's form NFC, into which the tokenizer brings them; no operator does, so "
    "normalize texts in the application if they may be in another form"
)
TOGETHER = 8
"""Texts of a batch of the comparison, so that most are padded."""


def text_library() -> Path:
    """The library of onnxruntime-extensions, which holds the operators. Raises ExportError if it is not installed.

    It is looked up without an import of the package, which imports converters for many models.
    """
    found = importlib.util.find_spec("onnxruntime_extensions")
    folder = Path("" if found is None or found.origin is None else found.origin).parent
    names = (f"_extensions_pydll{suffix}" for suffix in EXTENSION_SUFFIXES)
    library = next((folder / name for name in names if found is not None and (folder / name).exists()), None)
    if library is None:
        raise ExportError("--with-tokenizer needs onnxruntime-extensions; pip install 'tightbeam[tokenizer]'")
    return library


def session_with_text(model: Path | bytes) -> ort.InferenceSession:
    """A session of a model with operators of onnxruntime-extensions. Raises ExportError if that is not installed."""
    options = ort.SessionOptions()
    options.register_custom_ops_library(str(text_library()))
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def text_graph(
    model: onnx.ModelProto, tokenizer: GraphTokenizer, manifest: Manifest, features: onnx.ModelProto | None = None
) -> onnx.ModelProto:
    """Make the graph that generates text, over the same file of weights.

    Parameters
    ----------
    model
        ``generate.onnx``, without the data of its weights. It is changed.
    tokenizer
        The bundle's tokenizer.
    manifest
        The bundle's description.
    features
        ``features.onnx``, of a model whose sources are windows of audio.

    Returns
    -------
    onnx.ModelProto
        ``model`` with the input ``text`` in place of token ids, or ``audio`` in place of features that have a graph,
        and the output ``texts`` before the others.

    Raises
    ------
    ExportError
        No operators do what the tokenizer does.
    """
    graph = model.graph
    after = decoding_nodes(tokenizer.rules)
    graph.node.extend(after)
    outputs = [_strings("texts", "R"), *graph.output]
    del graph.output[:]
    graph.output.extend(outputs)
    if manifest.reads_text:
        _put_before(graph, _encoding(tokenizer, manifest), [_strings("text", "B")], SOURCE)
    elif features is not None:
        graph.initializer.extend(features.graph.initializer)
        made = [tensor.name for tensor in features.graph.output]
        _put_before(graph, features.graph.node, features.graph.input, made)
    model.opset_import.append(onnx.helper.make_opsetid(TEXT_DOMAIN, 1))
    return model


def _put_before(
    graph: onnx.GraphProto,
    nodes: Iterable[onnx.NodeProto],
    inputs: Iterable[onnx.ValueInfoProto],
    made: Collection[str],
) -> None:
    """Put nodes before a graph, and their inputs in place of those that they make."""
    all_nodes, all_inputs = [*nodes, *graph.node], [*inputs, *(each for each in graph.input if each.name not in made)]
    del graph.node[:]
    del graph.input[:]
    graph.node.extend(all_nodes)
    graph.input.extend(all_inputs)


def _encoding(tokenizer: GraphTokenizer, manifest: Manifest) -> list[onnx.NodeProto]:
    pad = options_of(manifest).pad_token_id or 0
    return encoding_nodes(tokenizer.rules, longest_text(manifest.sizes), pad, tokenizer.pieces)


def longest_text(sizes: ModelSizes | Sizes) -> int | None:
    """The most tokens of a text; None for a prompt, of which nothing is cut."""
    return None if sizes.decoder_only else sizes.max_source


def _strings(name: str, size: str) -> onnx.ValueInfoProto:
    return onnx.helper.make_tensor_value_info(name, TensorProto.STRING, [size])


def _integers(name: str, *sizes: str | int) -> onnx.ValueInfoProto:
    return onnx.helper.make_tensor_value_info(name, TensorProto.INT64, sizes)


def check_checkpoint_tokenizer(tokenizer: Any | None, sizes: ModelSizes | Sizes, *, encodes: bool) -> str:
    """Check a checkpoint's tokenizer, before minutes of work for a bundle that could not have it in a graph.

    Parameters
    ----------
    tokenizer
        transformers' tokenizer; None if the checkpoint has none.
    sizes
        The model's sizes.
    encodes
        False for speech and images.

    Returns
    -------
    str
        A note of what the application must do to texts; "" if nothing.

    Raises
    ------
    ExportError
        The checkpoint has no tokenizer, or `check_tokenizer` refuses it.
    """
    if tokenizer is None:
        raise ExportError("--with-tokenizer needs a tokenizer, which the checkpoint lacks; leave it out")
    backend = getattr(tokenizer, "backend_tokenizer", None)
    found = of_class(tokenizer) if backend is None else of_file(Tokenizer.from_str(backend.to_str()))
    check_tokenizer(found, longest_text(sizes), encodes=encodes)
    return COMPOSE if encodes and composes(found.rules) else ""


def check_tokenizer(tokenizer: GraphTokenizer, most: int | None, *, encodes: bool) -> None:
    """Compare the tokenizer as nodes with the tokenizer itself, on about a thousand texts.

    Texts are in form NFC if the tokenizer brings them into it, since the nodes do not.

    Parameters
    ----------
    tokenizer
        The bundle's tokenizer.
    most
        The most tokens of a text, if longer ones are cut.
    encodes
        False for speech and images, whose outputs alone are text.

    Raises
    ------
    ExportError
        No operators do what the tokenizer does, a text differs, or onnxruntime-extensions is not installed.
    """
    try:
        _compare(tokenizer, most, encodes=encodes)
    except Exception as error:
        if not is_runtime_error(error) and not isinstance(error, UnicodeDecodeError):
            raise
        raise ExportError(f"the tokenizer does not run in a graph: {first_line(error)}; {FIX}") from error


def _compare(tokenizer: GraphTokenizer, most: int | None, *, encodes: bool) -> None:
    codes = () if tokenizer.pieces is None else tokenizer.pieces.codes
    texts = texts_of([*(token.content for token in tokenizer.rules.get_added_tokens_decoder().values()), *codes])
    if composes(tokenizer.rules):
        texts = [unicodedata.normalize("NFC", text) for text in texts]
    expected = [tokenizer.encode(text, most) for text in texts]
    if encodes:
        for text, ids, found in zip(texts, expected, _encoded(tokenizer, most, texts), strict=True):
            if found != ids:
                raise _differs(f"encodes {_short(text)} as {_short(found)}", _short(ids))
    for ids, text in zip(expected, _decoded(tokenizer.rules, expected), strict=True):
        right = tokenizer.decode(ids)
        if text != right and BROKEN not in right:  # of a cut character, each byte is marked
            raise _differs(f"decodes {_short(ids)} as {_short(text)}", _short(right))


def _short(value: Any) -> str:
    return textwrap.shorten(repr(value), 200, placeholder=" ...")


def _differs(what: str, expected: str) -> ExportError:
    return ExportError(f"the tokenizer in a graph {what}, expected {expected}; {FIX}")


def _encoded(tokenizer: GraphTokenizer, most: int | None, texts: Sequence[str]) -> Iterator[list[int]]:
    inputs = [_strings("text", "B")]
    nodes = encoding_nodes(tokenizer.rules, most, 0, tokenizer.pieces)
    session = _session(nodes, inputs, [_integers(name, "B", "N") for name in SOURCE])
    for some in _batches(texts):
        for ids, mask in zip(*_run(session, {"text": np.array(some, object)}), strict=True):
            yield ids[: mask.sum()].tolist()


def _decoded(tokenizer: Tokenizer, tokens: Sequence[Sequence[int]]) -> Iterator[str]:
    inputs = [_integers("sequences", "R", "T"), _integers("lengths", "R"), _integers("P1", 1)]
    session = _session(decoding_nodes(tokenizer), inputs, [_strings("texts", "R")])
    for some in _batches(tokens):
        lengths = np.array([len(row) for row in some])
        sequences = np.zeros((len(some), lengths.max()), np.int64)
        for row, ids in zip(sequences, some, strict=True):
            row[: len(ids)] = ids
        feeds = {"sequences": sequences, "lengths": lengths, "P1": np.array([0])}
        yield from _run(session, feeds)[0].tolist()


def _batches(samples: Sequence[Sample]) -> Iterator[Sequence[Sample]]:
    return (samples[begin : begin + TOGETHER] for begin in range(0, len(samples), TOGETHER))


def _session(
    nodes: Sequence[onnx.NodeProto], inputs: Sequence[onnx.ValueInfoProto], outputs: Sequence[onnx.ValueInfoProto]
) -> ort.InferenceSession:
    opsets = [onnx.helper.make_opsetid("", OLDER_OPSET), onnx.helper.make_opsetid(TEXT_DOMAIN, 1)]
    graph = onnx.helper.make_graph(nodes, "tokenizer", inputs, outputs)
    model = onnx.helper.make_model(graph, ir_version=IR_VERSION, opset_imports=opsets)
    return session_with_text(model.SerializeToString())


def _run(session: ort.InferenceSession, feeds: Mapping[str, Any]) -> list[Any]:
    return list(session.run(None, feeds))
