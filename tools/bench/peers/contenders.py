"""The engines that are compared, and where the model of each lies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.bench.peers import peer
from tools.bench.peers.environments import OWN, PeerError, python_of
from tools.bench.peers.jobs import DEMO, DEMO_CHECKPOINT, RECORDING, SPEECH, TEXT
from tools.make_checkpoint import main as make_checkpoint

__all__ = ["CONTENDERS", "EXACT", "FLOOR", "MAPPED", "REFERENCE", "WHISPERER", "Contender", "Place"]


@dataclass(frozen=True)
class Contender:
    """An engine in a precision.

    Attributes
    ----------
    name : str
        How tables call it.
    engine, precision : str
        A file of ``engines/``, and what is passed to it.
    environment : str
        A name of `ENVIRONMENTS`, or `OWN`.
    made_of : str
        Contender whose model this one's is made of, in place of the checkpoint.
    runs : str
        Contender whose model this one runs, in place of one of its own.
    tasks : tuple of str
        What it can do: `TEXT`, `SPEECH`, `RECORDING`.
    """

    name: str
    engine: str
    precision: str
    environment: str
    made_of: str = ""
    runs: str = ""
    tasks: tuple[str, ...] = (TEXT, SPEECH)


REFERENCE = "transformers"
"""The contender whose tokens are right."""
EXACT = "Tightbeam fp32"
"""The contender that must have the same."""
FLOOR = "floor"
MAPPED = "CTranslate2 int8, vocabulary map"
"""The contender that chooses among random candidates alone, so that its tokens and ends mean nothing."""
WHISPERER = "faster_whisper"
ALL = (TEXT, SPEECH, RECORDING)
CONTENDERS = {
    each.name: each
    for each in (
        Contender(REFERENCE, "transformers", "fp32", "transformers", runs="checkpoint", tasks=ALL),
        Contender(EXACT, "tightbeam", "fp32", OWN, tasks=ALL),
        Contender(f"{EXACT}, cache int8", "tightbeam", "fp32-cache-int8", OWN, tasks=ALL),
        Contender("Tightbeam int8", "tightbeam", "int8", OWN, tasks=ALL),
        Contender("Tightbeam int8, cache int8", "tightbeam", "int8-cache-int8", OWN, tasks=ALL),
        Contender("CTranslate2 fp32", "ctranslate2", "fp32", "ctranslate2"),
        Contender("CTranslate2 int8", "ctranslate2", "int8", "ctranslate2"),
        Contender(MAPPED, "ctranslate2", "int8-map", "ctranslate2", tasks=(TEXT,)),
        Contender("faster-whisper fp32", WHISPERER, "fp32", "ctranslate2", runs="CTranslate2 fp32", tasks=(RECORDING,)),
        Contender("faster-whisper int8", WHISPERER, "int8", "ctranslate2", runs="CTranslate2 int8", tasks=(RECORDING,)),
        Contender("OpenVINO fp32", "openvino", "fp32", "openvino"),
        Contender("OpenVINO int8", "openvino", "int8", "openvino"),
        Contender("optimum-onnx fp32", "optimum", "fp32", "optimum"),
        Contender("optimum-onnx int8", "optimum", "int8", "optimum", made_of="optimum-onnx fp32"),
        Contender(f"{FLOOR} fp32", FLOOR, "fp32", OWN, runs=EXACT, tasks=ALL),
        Contender(f"{FLOOR} int8", FLOOR, "int8", OWN, runs=EXACT, tasks=ALL),
        Contender(f"{FLOOR} int8, ONNX Runtime", FLOOR, "int8-onnxruntime", OWN, runs=EXACT, tasks=ALL),
    )
}


@dataclass(frozen=True)
class Place:
    """The folders of a shape: its checkpoint, and the model of each contender.

    Attributes
    ----------
    task : str
        What its contenders are to do.
    environments, work : Path
        Folders of the environments, and of checkpoints, models and logs.
    say : callable
        Receives a line about each thing that is made.
    """

    shape: str
    task: str
    environments: Path
    work: Path
    say: Callable[[str], None]

    def check(self, names: Sequence[str]) -> None:
        """Raise PeerError if a contender's environment is missing, before minutes go into models."""
        for name in names:
            python_of(self.environments, CONTENDERS[name].environment)

    def checkpoint(self) -> Path:
        """Return the shape's checkpoint, which is made if it is missing."""
        folder = DEMO_CHECKPOINT if self.shape == DEMO else self.work / f"{self.shape}-random"
        if not folder.exists():
            self.say(f"making {folder}")
            make_checkpoint(folder, self.shape)
        return folder

    def model(self, name: str) -> Path:
        """Return the model of a contender, which is made if it is missing. Raises PeerError."""
        contender = CONTENDERS[name]
        if contender.runs == "checkpoint":
            return self.checkpoint()
        if contender.runs:
            return self.model(contender.runs)
        folder = self.work / f"{self.shape}-{contender.engine}-{contender.precision}"
        if not folder.exists():
            source = self.model(contender.made_of) if contender.made_of else self.checkpoint()
            python = python_of(self.environments, contender.environment)
            self.say(f"making {folder}")
            peer.convert(python, contender.engine, source, folder, contender.precision, self.task)
        return folder

    def start(self, name: str, threads: int) -> peer.Peer:
        """Start a contender's process. Raises PeerError."""
        contender, folder = CONTENDERS[name], self.model(name)
        python = python_of(self.environments, contender.environment)
        if not any(folder.glob("*")):
            raise PeerError(f"{folder} is empty; delete it, and it is made again")
        self.say(f"loading {name}")
        log = self.work / f"{self.shape}-{name.lower().replace(', ', '-').replace(' ', '-')}.log"
        return peer.Peer(name, python, contender.engine, folder, contender.precision, self.task, threads, log)
