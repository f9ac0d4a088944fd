"""A bundle's one graph, run in ONNX Runtime without our library, or with it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from tightbeam.deploy import Bundle
from tightbeam.deploy.runtimes._onnxruntime import register_library
from tightbeam.export.one_graph.check import scalar_inputs
from tightbeam.export.one_graph.graph import PROMPT_INPUT, one_graph, options_of, scalars_of
from tightbeam.plugins.library import cpu_library

Array = Any


@dataclass(frozen=True)
class Generated:
    """The outputs of the graph: [B x returned, T], [B x returned], [B x returned]."""

    sequences: Array
    lengths: Array
    scores: Array


class OneGraph:
    """The graph of a bundle. A setting that is not an input of the graph is taken for the checkpoint's own."""

    def __init__(self, bundle: Path, *, library: bool = False) -> None:
        self.bundle = Bundle.load(bundle)
        self._library = library
        self._sessions: dict[str, ort.InferenceSession] = {}
        manifest = self.bundle.manifest
        self._graphs = [
            onnx.load(self.bundle.file(entry), load_external_data=False)
            for entry in (manifest.encoder, manifest.decoder)
        ]

    def session(self, own: dict[str, Any]) -> ort.InferenceSession:
        """The session of the graph whose checkpoint has settings of its own."""
        key = json.dumps(own, sort_keys=True)
        if key not in self._sessions:
            manifest = self.bundle.manifest
            manifest = manifest.model_copy(update={"generation": {**manifest.generation, **own}})
            path = self.bundle.path / f"one-graph-{len(self._sessions)}.onnx"
            onnx.save_model(one_graph(manifest, *self._graphs), path)
            options = ort.SessionOptions()
            options.intra_op_num_threads = 1
            if self._library:
                register_library(options, cpu_library())
            self._sessions[key] = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
            path.unlink()
        return self._sessions[key]

    def generate(self, source: dict[str, Array], **settings: Any) -> Generated:
        """Generate for the arrays ``source`` by names of inputs."""
        own = {name: value for name, value in settings.items() if name not in DIRECT}
        manifest = self.bundle.manifest
        generation = {**manifest.generation, **own}
        options = options_of(manifest.model_copy(update={"generation": {**generation, **settings_as_own(settings)}}))
        session = self.session(own)
        inputs = {**source, **scalar_inputs({**scalars_of(options), **drawing(settings)})}
        if PROMPT_INPUT in {each.name for each in session.get_inputs()} and PROMPT_INPUT not in inputs:
            rows = len(next(iter(source.values())))
            inputs[PROMPT_INPUT] = np.tile(np.array(options.prompt, np.int64), (rows, 1))
        return Generated(*session.run(None, inputs))


DIRECT = {
    *("num_beams", "max_new_tokens", "min_new_tokens", "length_penalty", "no_repeat_ngram_size"),
    *("repetition_penalty", "early_stopping", "num_return_sequences", "temperature", "top_k", "top_p", "min_p", "seed"),
}
DRAWING = ("temperature", "top_k", "top_p", "min_p", "seed", "num_return_sequences")


def settings_as_own(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings that are resolved as a checkpoint's are."""
    return {name: value for name, value in settings.items() if not ("temperature" in settings and name in DRAWING)}


def drawing(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of draws, which are inputs as they are."""
    return {name: settings[name] for name in DRAWING if name in settings and "temperature" in settings}
