"""Outputs of torch for a tiny model: made once, for all processes of a test run and for later runs.

They are beside the traces (``support/bundles/traces.py``), and made anew for another model or other arguments, and when
the sources that a trace depends on, those of ``export/accuracy`` or of this folder, or versions of packages change.
"""

from __future__ import annotations

import functools
import hashlib
import pickle
from collections.abc import Callable
from itertools import chain
from typing import Any, TypeVar

from support.bundles import traces
from tightbeam.export.accuracy.reference import Generation, Reference, Samples, make_reference
from tightbeam.export.checkpoint.load import Checkpoint

__all__ = ["kept", "kept_reference"]

SOURCES = ("export/accuracy", "tests/support/references")

Made = TypeVar("Made")


def kept(make: Callable[[], Made], model: Any, *arguments: Any) -> Made:
    """The result of ``make``, of a process before this one if that had the same model and ``arguments``.

    ``arguments`` are all that ``make`` depends on beside the model and its configs, and what it is. Only for what draws
    no random numbers.
    """
    key = hashlib.sha256(_sources() + pickle.dumps(arguments))
    key.update(f"{type(model)} {model.training} {model.config._attn_implementation}".encode())
    for config in (model.config, model.generation_config):
        key.update(repr({**config.to_dict(), "_name_or_path": ""}).encode())
    for name, tensor in chain(model.named_parameters(), model.named_buffers()):
        key.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        key.update(tensor.detach().contiguous().numpy().tobytes())
    path = traces.cache_folder() / f"{key.hexdigest()[:32]}.made"
    if not path.exists():
        written = path.with_suffix(f".{id(key)}.tmp")
        written.write_bytes(pickle.dumps(make()))
        written.replace(path)
    made: Made = pickle.loads(path.read_bytes())
    return made


def kept_reference(checkpoint: Checkpoint, samples: Samples) -> Reference:
    """The result of ``make_reference``, kept for checkpoints whose tokenizer can be compared and that do not sample."""
    tokenizer = getattr(checkpoint.tokenizer, "backend_tokenizer", None)
    if (checkpoint.tokenizer is not None and tokenizer is None) or checkpoint.generation_config.get("do_sample"):
        return make_reference(checkpoint, samples)
    decodes = ()
    if tokenizer is not None:
        decodes = (type(checkpoint.tokenizer).__name__, tokenizer.to_str(), checkpoint.tokenizer.all_special_tokens)
        decodes += (checkpoint.tokenizer.clean_up_tokenization_spaces,)

    def make() -> tuple[Generation, ...]:
        return make_reference(checkpoint, samples).generations

    defaults = sorted(checkpoint.generation_config.items())
    family = (checkpoint.family.model_type, checkpoint.family.global_tokens, checkpoint.family.short_audio)
    generations = kept(make, checkpoint.model, "reference", family, decodes, defaults, samples)
    return Reference(checkpoint.path, samples, generations)


@functools.cache
def _sources() -> bytes:
    content = hashlib.sha256()
    for path in sorted(chain.from_iterable((traces.ROOT / name).rglob("*.py") for name in SOURCES)):
        content.update(str(path.relative_to(traces.ROOT)).encode() + b"\0" + path.read_bytes())
    return content.digest()
