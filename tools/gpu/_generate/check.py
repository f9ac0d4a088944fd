"""Comparison of float32 tokens: our bundles and transformers on this device. A process of `generate.py`.

The request: ``work`` (a folder of `bundles.py`), ``variants``, ``device``, ``families`` (checked at tiny
sizes), ``source`` and ``new_tokens`` of the model that is timed. Reports ``checks``: one for each model and variant,
with the text of ``verdict``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tightbeam.deploy import Runner
from tightbeam.deploy.arrays import Array
from tightbeam.deploy.search import SearchResult
from tightbeam.export.accuracy.parity import TIE_TOLERANCE
from tightbeam.export.checkpoint.load import Checkpoint, load_checkpoint
from tightbeam.export.checkpoint.quiet import quiet_transformers
from tightbeam.graph_passes import presets_of
from tools.gpu._generate.layout import CHECKED_IN, EQUAL, TIMED, bundle_folder, checkpoint_folder
from tools.gpu._generate.process import serve_case

__all__ = ["verdict"]
NO_BUNDLE = "no bundle"
SAMPLES = 2
TINY_SOURCE, TINY_NEW_TOKENS = 12, 14


@dataclass(frozen=True)
class Run:
    """``source``: ids [B, N] with ``mask``, or features [B, mels, frames] without one."""

    source: Array
    mask: Array | None
    settings: Mapping[str, Any]

    def by_transformers(self, model: Any, device: str) -> SearchResult:
        source = torch.from_numpy(self.source).to(device)
        mask = {} if self.mask is None else {"attention_mask": torch.from_numpy(self.mask).to(device)}
        with torch.no_grad(), quiet_transformers():
            found = model.generate(source, **mask, **self.settings, return_dict_in_generate=True, output_scores=True)
        return SearchResult(found.sequences.cpu().numpy(), found.sequences_scores.float().cpu().numpy())

    def by_us(self, runner: Runner) -> SearchResult:
        if self.mask is None:
            return runner.generate_from_features(self.source, **self.settings)
        return runner.generate(self.source, self.mask, **self.settings)


def run_of(checkpoint: Checkpoint, source: int, new_tokens: int) -> Run:
    """Random input of two lengths for any of the models."""
    generator = np.random.default_rng(1)
    settings = {
        **{"num_beams": 4, "no_repeat_ngram_size": 3, "min_new_tokens": new_tokens, "max_new_tokens": new_tokens},
        "length_penalty": 0.0,  # scores are sums, in which the least difference shows
    }
    config = checkpoint.model.config
    if hasattr(config, "num_mel_bins"):
        shape = (SAMPLES, config.num_mel_bins, 2 * config.max_source_positions)
        return Run(generator.standard_normal(shape, dtype=np.float32), None, settings)
    ids = generator.integers(5, checkpoint.sizes.source_vocabulary, (SAMPLES, source))
    mask = np.ones_like(ids)
    half = slice(source // 2) if checkpoint.sizes.decoder_only else slice(source // 2, None)
    mask[1, half] = 0
    return Run(ids, mask, settings)


def verdict(found: SearchResult, expected: SearchResult) -> str:
    """``EQUAL``; or the number of sequences that are ties, with equal scores in float32; or the first difference."""
    if found.sequences.shape != expected.sequences.shape:
        return f"shape {list(found.sequences.shape)}, expected {list(expected.sequences.shape)}"
    assert found.scores is not None and expected.scores is not None
    different = np.flatnonzero((found.sequences != expected.sequences).any(axis=1))
    for sample in different:
        ours, theirs = float(found.scores[sample]), float(expected.scores[sample])
        if not abs(ours - theirs) <= TIE_TOLERANCE * max(1.0, abs(theirs)):
            at = int(np.flatnonzero(found.sequences[sample] != expected.sequences[sample])[0])
            tokens = found.sequences[sample, at], expected.sequences[sample, at]
            return (
                f"differs: sample {sample}, token {at} is {tokens[0]}, expected {tokens[1]}; "
                f"scores {ours:.6g}, expected {theirs:.6g}"
            )
    return EQUAL if not len(different) else f"{EQUAL} but for {len(different)} ties"


def check(request: Mapping[str, Any], report: Callable[[Mapping[str, Any]], None]) -> None:
    torch.backends.cuda.matmul.allow_tf32 = False  # nor does our engine use it
    torch.backends.cudnn.allow_tf32 = False
    work, device = Path(request["work"]), request["device"]
    checks: list[dict[str, Any]] = []
    for model in (TIMED, *request["families"]):
        checkpoint = load_checkpoint(checkpoint_folder(work, model))
        lengths = (request["source"], request["new_tokens"]) if model == TIMED else (TINY_SOURCE, TINY_NEW_TOKENS)
        run = run_of(checkpoint, *lengths)
        expected = run.by_transformers(checkpoint.model.to(device), device)
        for variant in [name for name in request["variants"] if name in presets_of(checkpoint.sizes)]:
            said = _verdict_on(bundle_folder(work, model, variant, CHECKED_IN), run, expected, device)
            checks.append({"model": model, "variant": variant, "tokens": int(expected.sequences.size), "said": said})
            report({"checks": checks})
        del checkpoint


def _verdict_on(bundle: Path, run: Run, expected: SearchResult, device: str) -> str:
    """Verdict on one bundle; an error is its own verdict, and the other bundles are checked all the same."""
    if not bundle.exists():
        return NO_BUNDLE
    try:
        return verdict(run.by_us(Runner.load(bundle, device=device, verify=False)), expected)
    except Exception as error:  # a runtime's own classes among them
        return f"{type(error).__name__}: {(str(error).strip() or 'no reason given').splitlines()[0]}"


if __name__ == "__main__":
    serve_case(check)
