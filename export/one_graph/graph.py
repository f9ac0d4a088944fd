"""One graph out of a bundle's encoder and decoder: the encoder, and a Loop of the decoder with the search.

    source ─▶ encoder ─▶ Loop: bans ─▶ decoder ─▶ draws ─▶ forced tokens ─▶ pools, beams ─▶ sequences, lengths, scores
                          └────────── history, ancestry, pools, caches ◀──────────┘

The nodes of both graphs are the bundle's own, and so are their weights, which stay in the bundle's file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import onnx
import onnx.compose
import onnx.helper
import onnx.parser
from onnx import TensorProto
from onnx.external_data_helper import uses_external_data

from tightbeam.deploy.bundle.manifest import Manifest
from tightbeam.deploy.generation.options import TIES, GenerationOptions
from tightbeam.deploy.runtimes.base import TRIE_ARRAYS
from tightbeam.export.one_graph import search
from tightbeam.export.one_graph.noise import NOISE, digest_of_features, digest_of_tokens
from tightbeam.export.one_graph.rules import (
    banned_of_source,
    bans,
    forced,
    is_end,
    options_in_graph,
    prompt_choice,
    reads_logits,
    source_ngrams,
)
from tightbeam.plugins.ops import DOMAIN, IR_VERSION, OPERATORS, VERSION, functions

__all__ = ["PROMPT_INPUT", "SCALARS", "nodes_of", "one_graph", "options_of", "renamed", "scalars_of"]

SCALARS: dict[str, int] = {
    "num_beams": TensorProto.INT64,
    "max_new_tokens": TensorProto.INT64,
    "min_new_tokens": TensorProto.INT64,
    "length_penalty": TensorProto.FLOAT,
    "no_repeat_ngram_size": TensorProto.INT64,
    "repetition_penalty": TensorProto.FLOAT,
    "early_stopping": TensorProto.INT64,
    "num_return_sequences": TensorProto.INT64,
    "temperature": TensorProto.FLOAT,
    "top_k": TensorProto.INT64,
    "top_p": TensorProto.FLOAT,
    "min_p": TensorProto.FLOAT,
    "seed": TensorProto.INT64,
}
"""The settings of a run, each an input of shape [], with its type."""
OUTPUTS = {"sequences": (TensorProto.INT64, 2), "lengths": (TensorProto.INT64, 1), "scores": (TensorProto.FLOAT, 1)}
PROMPT_INPUT = "decoder_input_ids"
TRIE = (*TRIE_ARRAYS, "trie_nodes")
"""Inputs of the search for which this graph has no input of its own."""
LOOP_DOMAIN = "tightbeam.loop"
CACHE_FUNCTIONS = (
    "InPlaceCache (store, carried) => (cache) { cache = Identity (carried) }",
    "KeptCache (store, cache) => (carried) { carried = Identity (cache) }",
)
"""The treatment of a cache in a loop: without our library it is carried from step to step. Our library has kernels that
keep it in ``store``, outside the loop, and carry nothing (``plugins/onnxruntime/loop_cache.h``)."""
OLDER_OPSET = 23
"""The opset of the graph: the first with Attention. The bundle's functions have one operator of a later one."""
STEP, ENCODER, DECODER = "step.", "encoder.", "decoder."
"""Prefixes of the names of tensors."""
TYPES = {
    "history": TensorProto.INT64,
    "beam_scores": TensorProto.FLOAT,
    "ancestry": TensorProto.INT32,
    "beam_index": TensorProto.INT64,
    "pool": TensorProto.INT64,
    "pool_scores": TensorProto.FLOAT,
    "pool_lengths": TensorProto.INT64,
    "final": TensorProto.BOOL,
    "head_history": TensorProto.INT64,
}
RANKS = {"history": 2, "ancestry": 3, "beam_index": 1, "pool": 3, "final": 1}
GIVEN = "    given = Constant <value = int64 {1}> ()\n"
NEVER, FULL, HOPELESS = 2, 1, 0
"""Values of the input ``early_stopping``: "never", True and False."""


def options_of(manifest: Manifest, settings: Mapping[str, Any] | None = None) -> GenerationOptions:
    """The settings of a bundle, or ``settings`` in their place, resolved. Raises ExportError for a rule that a graph
    does not have."""
    return options_in_graph(manifest.generation, settings or {}, manifest.sizes, has_windows=manifest.has_windows)


def scalars_of(options: GenerationOptions) -> dict[str, float]:
    """The value of each scalar input with which a graph generates as these settings ask."""
    early = {True: FULL, False: HOPELESS, "never": NEVER}[options.early_stopping]
    sampling = options.sampling
    alone = sampling is not None and not options.samples_beams
    return {
        "num_beams": 1 if alone else options.num_beams,
        "max_new_tokens": options.max_length - options.beginning,
        "min_new_tokens": max(0, options.min_length - options.beginning),
        "length_penalty": options.length_penalty,
        "no_repeat_ngram_size": options.no_repeat_ngram_size,
        "repetition_penalty": options.repetition_penalty,
        "early_stopping": early,
        "num_return_sequences": options.num_return_sequences,
        "temperature": 0.0 if sampling is None else sampling.temperature,
        "top_k": 50 if sampling is None else sampling.top_k,
        "top_p": 1.0 if sampling is None else sampling.top_p,
        "min_p": 0.0 if sampling is None else sampling.min_p,
        "seed": 0,
    }


def one_graph(manifest: Manifest, encoder: onnx.ModelProto, decoder: onnx.ModelProto) -> onnx.ModelProto:
    """Make the graph that generates.

    Parameters
    ----------
    manifest
        The bundle's description.
    encoder, decoder
        The bundle's graphs, without the data of their weights.

    Returns
    -------
    onnx.ModelProto
        The graph, over the same file of weights.

    Raises
    ------
    ExportError
        The checkpoint's settings ask for a rule that a graph does not have.
    """
    graph = _OneGraph(manifest, encoder, decoder)
    model = onnx.helper.make_model(
        graph.whole(),
        ir_version=IR_VERSION,
        opset_imports=[
            onnx.helper.make_opsetid(*each) for each in (("", OLDER_OPSET), (DOMAIN, VERSION), (LOOP_DOMAIN, 1))
        ],
        producer_name="tightbeam",
    )
    model.functions.extend(_with_older_operators(function) for function in functions(graph.nodes))
    header = f'<domain: "{LOOP_DOMAIN}", opset_import: ["": {OLDER_OPSET}]>\n'
    model.functions.extend(onnx.parser.parse_function(header + text) for text in CACHE_FUNCTIONS)
    defaults = {name: f"{value:g}" for name, value in scalars_of(graph.options).items()}
    onnx.helper.set_model_props(model, {f"default.{name}": value for name, value in defaults.items()})
    return model


def nodes_of(text: str, values: Mapping[str, Any] | None = None) -> list[onnx.NodeProto]:
    """The nodes of statements in ONNX's text form; names in capitals are replaced by ``values`` first."""
    for name, value in (values or {}).items():
        text = text.replace(name, str(value))
    function = onnx.parser.parse_function(
        f'<domain: "text", opset_import: ["": {OLDER_OPSET}]> text () => () {{\n{text}}}\n'
    )
    return list(function.node)


def _with_older_operators(function: onnx.FunctionProto) -> onnx.FunctionProto:
    """The same function in operators of ``OLDER_OPSET``. A cache that is written at a position grows by it instead: in
    the loop all rows have the same number of positions."""
    older = onnx.FunctionProto()
    older.CopyFrom(function)
    del older.node[:]
    for node in function.node:
        written = node.op_type == "TensorScatter"
        older.node.append(onnx.helper.make_node("Concat", node.input[:2], node.output, axis=-2) if written else node)
    for opset in older.opset_import:
        if opset.domain == "":
            opset.version = OLDER_OPSET
    return older


class _OneGraph:
    """The parts of the graph. ``nodes`` has all nodes, those inside the loop among them, once ``whole`` was called."""

    def __init__(self, manifest: Manifest, encoder: onnx.ModelProto, decoder: onnx.ModelProto) -> None:
        self.options = options_of(manifest)
        if not manifest.reads_text:
            self.options.without_source_tokens("a source of features")
        self._manifest = manifest
        self._prompted = manifest.sizes.decoder_only
        self._encoder = onnx.compose.add_prefix_graph(encoder.graph, ENCODER)
        self._decoder = onnx.compose.add_prefix_graph(decoder.graph, DECODER)
        self._takes = [tensor.name for tensor in encoder.graph.input]
        self._steps = [tensor.name for tensor in decoder.graph.input]
        self._source_outputs = {tensor.name: tensor for tensor in encoder.graph.output}
        self._inputs = {tensor.name: tensor for tensor in encoder.graph.input}
        self._states = manifest.cache_states
        self._state_types = {tensor.name: tensor.type.tensor_type.elem_type for tensor in decoder.graph.input}
        self._asks_prompt = not self._prompted and (manifest.has_windows or len(self.options.prompt) > 1)
        self.nodes: list[onnx.NodeProto] = []

    def whole(self) -> onnx.GraphProto:
        """Make the graph."""
        nodes = [*nodes_of(search.CONSTANTS), *self._before()]
        body = self._body()
        nodes += [self._loop(body), *nodes_of(search.RESULT)]
        self.nodes = [*nodes, *_inner(body)]
        outputs = [_info(name, kind, [None] * rank) for name, (kind, rank) in OUTPUTS.items()]
        return onnx.helper.make_graph(
            nodes,
            "generate",
            self._graph_inputs(),
            outputs,
            [*self._encoder.initializer, *(each for each in self._decoder.initializer if uses_external_data(each))],
            value_info=list(self._encoder.value_info),
        )

    def _graph_inputs(self) -> list[onnx.ValueInfoProto]:
        given = [tensor for name, tensor in self._inputs.items() if name != "num_beams"]
        if self._prompted:
            given = [_info("input_ids", TensorProto.INT64, ["B", "S"])]
            given += [_info("attention_mask", TensorProto.INT64, ["B", "S"])]
        if self._asks_prompt:
            given += [_info(PROMPT_INPUT, TensorProto.INT64, ["B", "P"])]
        return [*given, *(_info(name, kind, []) for name, kind in SCALARS.items())]

    # Before the loop.

    def _before(self) -> list[onnx.NodeProto]:
        source = "input_ids" if self._prompted else self._takes[0]
        text = f"    B1 = Shape <start = 0, end = 1> ({source})\n"
        if self._prompted:
            text += search.PROMPT
        elif self._asks_prompt:
            text += f"    prompt = Identity ({PROMPT_INPUT})\n" + GIVEN
        else:
            tokens = ", ".join(map(str, self.options.prompt))
            count = len(self.options.prompt)
            text += f"    start_tokens = Constant <value = int64[1, {count}] {{{tokens}}}> ()\n"
            text += f"    start_count = Constant <value = int64[1] {{{count}}}> ()\n"
            text += "    start_shape = Concat <axis = 0> (B1, start_count)\n"
            text += "    prompt = Expand (start_tokens, start_shape)\n" + GIVEN
        text += search.START + (search.PROMPT_STATE if self._prompted else "") + source_ngrams(self.options)
        text += digest_of_tokens if source == "input_ids" else digest_of_features.replace("SOURCE", source)
        values = {
            "MAX_TARGET": self._manifest.sizes.max_target,
            "VOCABULARY": self._manifest.sizes.vocabulary,
            "WAYS_ON": max(2, 1 + len(self.options.eos_token_ids)),
            "TIES": TIES,
        }
        return [*nodes_of(text, values), *self._encoded(), *self._source_mask(), *nodes_of(self._empty_caches())]

    def _encoded(self) -> list[onnx.NodeProto]:
        """The encoder's nodes, which read the graph's inputs."""
        names = {"num_beams": "M1"}
        if self._prompted:
            names |= {"input_ids": "source_ids", "attention_mask": "source_mask"}
        return renamed(self._encoder.node, {ENCODER + name: names.get(name, name) for name in self._takes})

    def _source_mask(self) -> list[onnx.NodeProto]:
        """The nodes of ``source_mask`` int64 [B, N]; all positions of a source without a mask count."""
        if self._prompted:
            return []
        if "attention_mask" in self._takes:
            return nodes_of("    source_mask = Identity (attention_mask)\n")
        name = next(name for name in self._source_outputs if name != "alignment_keys")
        axis = 2 if len(self._source_outputs[name].type.tensor_type.shape.dim) == 4 else 1  # [B, G, N, K], [B, N, X]
        text = f"""
    source_length = Shape <start = {axis}, end = {axis + 1}> (encoded)
    source_shape = Concat <axis = 0> (B1, source_length)
    source_mask = Expand (one, source_shape)
"""
        return renamed(nodes_of(text), {"encoded": ENCODER + name})

    def _empty_caches(self) -> str:
        """Text of the caches before the first step, which have no positions, and of their memory outside the loop.

        The memory is filled with another number for each, which is never read: a runtime would make one tensor of equal
        ones.
        """
        text = ""
        for number, state in enumerate(self._states):
            name, kind = f"cache_{number}", self._state_types[state.input]
            for axis, size in enumerate(state.shape):
                if isinstance(size, int):
                    text += f"    {name}_{axis} = Constant <value = int64[1] {{{size}}}> ()\n"
            text += f"    {name}_number = Constant <value = float {{{number}}}> ()\n"
            text += f"    {name}_filling = Cast <to = {kind}> ({name}_number)\n"
            made = [(name, "T_max1"), (f"{name}_empty", "axis0")] if state.kind == "in_place" else [(name, "axis0")]
            for tensor, positions in made:
                dynamic = {"R": "R1", "T_max": positions, "T": positions}
                sizes = [
                    f"{name}_{axis}" if isinstance(size, int) else dynamic[size]
                    for axis, size in enumerate(state.shape)
                ]
                text += f"    {tensor}_shape = Concat <axis = 0> ({', '.join(sizes)})\n"
                text += f"    {tensor} = Expand ({name}_filling, {tensor}_shape)\n"
        return text

    # The loop.

    def _carried(self) -> tuple[str, ...]:
        return (*search.CARRIED, *(["head_history"] if self._prompted else []))

    def _loop(self, body: onnx.GraphProto) -> onnx.NodeProto:
        carried = self._carried()
        caches = [f"cache_{number}" for number in range(len(self._states))]
        begin = [
            f"{name}_empty" if state.kind == "in_place" else name
            for name, state in zip(caches, self._states, strict=True)
        ]
        return onnx.helper.make_node(
            "Loop",
            ["T_max", "yes", *(f"{name}_0" for name in carried), *begin],
            [*(f"{name}_end" for name in carried), *(f"{name}_end" for name in caches)],
            "loop",
            body=body,
        )

    def _body(self) -> onnx.GraphProto:
        """The body of the loop: one step."""
        options, carried = self.options, self._carried()
        ends = search.ENDS_WITH_PROMPT if self._prompted else ""
        begins = search.BEGINS_WITH_PROMPT + search.PADDED_NGRAMS if self._prompted else search.BEGINS_WITH_SOURCE
        nodes = [
            *nodes_of(search.STEP_BEGINS + begins + banned_of_source(options) + bans(options, self._banned_by_row())),
            *(nodes_of(reads_logits(options) + search.NO_TRIE) if "all_logits" in self._steps else ()),
            *self._caches_begin(),
            *self._step(),
            *self._caches_end(),
            self._drawn_or_ranked(),
            *nodes_of(
                prompt_choice(options) + forced(options) + is_end(options) + search.STEP_ENDS + ends,
                {"FILL": options.fill_token_id, "PAD": options.pad_token_id or 0},
            ),
        ]
        states = [(state, f"state_{number}") for number, state in enumerate(self._states)]
        produced = {name for node in nodes for name in node.output}
        own = produced | {"step", *carried, *(name for _, name in states)}
        names = {name: STEP + name for name in own if not name.startswith(DECODER)}
        kinds = [self._state_types[state.input] for state, _ in states]
        caches = [[_size(size) for size in state.shape] for state, _ in states]
        inputs = [
            _info(names["step"], TensorProto.INT64, []),
            _info(f"{STEP}condition", TensorProto.BOOL, []),
            *(_carried_info(name, names[name]) for name in carried),
            *(_info(names[name], *rest) for (_, name), *rest in zip(states, kinds, caches, strict=True)),
        ]
        outputs = [
            _info(names["goes_on"], TensorProto.BOOL, []),
            *(_carried_info(name, names[f"{name}_next"]) for name in carried),
            *(
                _info(names.get(output, output), *rest)
                for output, *rest in zip(self._state_outputs(), kinds, caches, strict=True)
            ),
        ]
        # ONNX Runtime in a browser refuses weights of a file inside a loop, so they stand outside it.
        constants = [each for each in self._decoder.initializer if not uses_external_data(each)]
        return onnx.helper.make_graph(renamed(nodes, names), "step", inputs, outputs, constants)

    def _banned_by_row(self) -> list[str]:
        """The names of the tensors [R, X] of banned tokens that differ by row."""
        padded = ["banned_ngrams"] if self._prompted else []
        return [*padded, "banned_of_source"] if self.options.encoder_no_repeat_ngram_size else padded

    def _in_place(self) -> list[tuple[int, str]]:
        """The caches that are written in place: their numbers and decoder outputs."""
        return [(number, state.output) for number, state in enumerate(self._states) if state.kind == "in_place"]

    def _cache_of(self, number: int) -> str:
        """The tensor that the decoder reads as a cache."""
        return f"cache_here_{number}" if self._states[number].kind == "in_place" else f"state_{number}"

    def _state_outputs(self) -> list[str]:
        """The tensors that are carried as caches to the next step."""
        names = [DECODER + state.output for state in self._states]
        for number, _ in self._in_place():
            names[number] = f"state_next_{number}"
        return names

    def _caches_begin(self) -> list[onnx.NodeProto]:
        return [
            onnx.helper.make_node(
                "InPlaceCache", [f"cache_{number}", f"state_{number}"], [f"cache_here_{number}"], domain=LOOP_DOMAIN
            )
            for number, _ in self._in_place()
        ]

    def _caches_end(self) -> list[onnx.NodeProto]:
        return [
            onnx.helper.make_node(
                "KeptCache", [f"cache_{number}", DECODER + output], [f"state_next_{number}"], domain=LOOP_DOMAIN
            )
            for number, output in self._in_place()
        ]

    def _step(self) -> list[onnx.NodeProto]:
        """The decoder's nodes, which read what the step and the loop give."""
        given = {
            "tokens": "tokens",
            "positions": "positions",
            "lengths": "lengths",
            "first_positions": "first_positions",
            "ancestry": "slots_so_far",
            "beam_index": "beam_index",
            "history": "head_history",
            "history_lengths": "history_lengths",
            "beam_scores": "head_sums",
            "banned": "banned",
            "normalize": "has_beams",
            "repetition_penalty": "repetition_penalty",
            "no_repeat_ngram_size": "no_repeat_ngram_size",
            "candidates": "C1",
            "attention_mask": "source_mask",
            "trie_nodes": "no_nodes",
            "all_logits": "reads_logits",
        }
        given |= {state.input: self._cache_of(number) for number, state in enumerate(self._states)}
        given |= {name: ENCODER + name for name in self._source_outputs}
        names = {DECODER + name: given[name] for name in self._steps if name not in TRIE_ARRAYS}
        nodes = renamed(self._decoder.node, {**names, f"{DECODER}logits": "step_logits"})
        for node in nodes:
            if node.op_type in ("BeamTopK", "QuantizedBeamTopK"):
                entries = zip(OPERATORS[node.op_type].input_names, node.input, strict=True)
                kept = ["" if name in TRIE else tensor for name, tensor in entries]
                while not kept[-1]:
                    kept.pop()
                del node.input[:]
                node.input.extend(kept)
                for place, name in enumerate(("candidate_scores", "candidate_beams", "candidate_tokens")):
                    node.output[place] = name
        return nodes

    def _drawn_or_ranked(self) -> onnx.NodeProto:
        """A node that gives the candidates ``free_*`` [Bs, K], drawn or as they are ranked."""
        found, text = ("scores", "beams", "tokens"), NOISE + search.DRAW
        kinds = (TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT64)

        def branch(name: str, nodes: Sequence[onnx.NodeProto], prefix: str) -> onnx.GraphProto:
            outputs = [_info(prefix + part, kind, [None, None]) for part, kind in zip(found, kinds, strict=True)]
            return onnx.helper.make_graph(nodes, name, [], outputs)

        ranked = [onnx.helper.make_node("Identity", [f"candidate_{part}"], [f"ranked_{part}"]) for part in found]
        return onnx.helper.make_node(
            "If",
            ["draws"],
            [f"free_{part}" for part in found],
            "draw",
            then_branch=branch("drawn", nodes_of(text), "drawn_"),
            else_branch=branch("ranked", ranked, "ranked_"),
        )


_info = onnx.helper.make_tensor_value_info


def _carried_info(name: str, tensor: str) -> onnx.ValueInfoProto:
    """The type of what the loop carries, as the tensor of another name."""
    return _info(tensor, TYPES[name], [None] * RANKS.get(name, 2))


def _size(size: int | str) -> int | None:
    return size if isinstance(size, int) else None


def _graphs(node: onnx.NodeProto) -> Iterable[onnx.GraphProto]:
    return (attribute.g for attribute in node.attribute if attribute.type == onnx.AttributeProto.GRAPH)


def _inner(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """All nodes of a graph, and of the graphs inside it."""
    return [*graph.node, *chain.from_iterable(_inner(inner) for node in graph.node for inner in _graphs(node))]


def renamed(nodes: Iterable[onnx.NodeProto], names: Mapping[str, str]) -> list[onnx.NodeProto]:
    """Copies of nodes whose tensors have other names, in the graphs inside them too."""
    copies = []
    for node in nodes:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copies.append(copy)
        _rename(copy, names)
    return copies


def _rename(node: onnx.NodeProto, names: Mapping[str, str]) -> None:
    for tensors in (node.input, node.output):
        for place, name in enumerate(tensors):
            tensors[place] = names.get(name, name)
    for graph in _graphs(node):
        for inner in graph.node:
            _rename(inner, names)
