"""Comparison of float32 tokens: our bundles and transformers on this device. A process of `generate.py`.

The request: ``work`` (a folder of `bundles.py`), ``variants``, ``device``, ``source`` and ``new_tokens``. Reports
``checks``: one for each variant, with the text of ``verdict``. Other families are compared by `pytest -m gpu`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tightbeam.deploy import Runner, SearchResult
from tightbeam.deploy.arrays import Array
from tightbeam.export.accuracy.parity import TIE_TOLERANCE
from tightbeam.export.checkpoint.load import load_checkpoint
from tightbeam.export.checkpoint.quiet import quiet_transformers
from tools.gpu._generate.layout import CHECKED_IN, EQUAL, bundle_folder, checkpoint_folder
from tools.gpu._generate.process import serve_case

__all__ = ["verdict"]
NO_BUNDLE = "no bundle"
SAMPLES = 2


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
    """Compare each variant with transformers on random sources of two lengths."""
    torch.backends.cuda.matmul.allow_tf32 = False  # our runtime does not use it either
    torch.backends.cudnn.allow_tf32 = False
    work, device, new_tokens = Path(request["work"]), request["device"], request["new_tokens"]
    checkpoint = load_checkpoint(checkpoint_folder(work))
    ids = np.random.default_rng(1).integers(5, checkpoint.sizes.source_vocabulary, (SAMPLES, request["source"]))
    mask = np.ones_like(ids)
    mask[1, request["source"] // 2 :] = 0
    settings = {
        **{"num_beams": 4, "no_repeat_ngram_size": 3, "min_new_tokens": new_tokens, "max_new_tokens": new_tokens},
        "length_penalty": 0.0,  # scores are sums, in which the least difference shows
    }
    with torch.no_grad(), quiet_transformers():
        made = checkpoint.model.to(device).generate(
            torch.from_numpy(ids).to(device),
            attention_mask=torch.from_numpy(mask).to(device),
            **settings,
            return_dict_in_generate=True,
            output_scores=True,
        )
    expected = SearchResult(made.sequences.cpu().numpy(), made.sequences_scores.float().cpu().numpy())
    checks: list[dict[str, Any]] = []
    for variant in request["variants"]:
        said = _verdict_on(bundle_folder(work, variant, CHECKED_IN), (ids, mask), settings, expected, device)
        checks.append({"variant": variant, "tokens": int(expected.sequences.size), "said": said})
        report({"checks": checks})


def _verdict_on(
    bundle: Path, source: tuple[Array, Array], settings: Mapping[str, Any], expected: SearchResult, device: str
) -> str:
    """Verdict on one bundle; an error is its own verdict, and the other bundles are checked all the same."""
    if not bundle.exists():
        return NO_BUNDLE
    try:
        return verdict(Runner.load(bundle, device=device, verify=False).generate(*source, **settings), expected)
    except Exception as error:  # a runtime's own classes among them
        return f"{type(error).__name__}: {(str(error).strip() or 'no reason given').splitlines()[0]}"


if __name__ == "__main__":
    serve_case(check)
