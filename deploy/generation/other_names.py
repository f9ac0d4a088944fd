"""Names that other programs, and ``model.generate`` itself, have for settings of ours: advice for error messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["advice_on"]

RENAMED = {
    "beam_size": "num_beams",
    "beams": "num_beams",
    "num_hypotheses": "num_return_sequences",
    "n": "num_return_sequences",
    "max_tokens": "max_new_tokens",
    "min_tokens": "min_new_tokens",
    "max_decoding_length": "max_new_tokens",
    "min_decoding_length": "min_new_tokens",
    "sampling_temperature": "temperature",
    "sampling_topk": "top_k",
    "sampling_topp": "top_p",
    "random_seed": "seed",
    "logprobs": "return_alternatives",
    "return_log_probs": "return_token_scores",
    "word_timestamps": "return_token_timestamps",
}
"""Settings of CTranslate2, faster-whisper, vLLM and TensorRT-LLM, and ours."""

REPLACED = {
    "prefix_allowed_tokens_fn": "it is a function; pass the sequences that it allows as trie",
    "logits_processor": "no Python function runs in a step; use the settings that change scores, or a trie",
    "stopping_criteria": "no function runs in a step; leave it out, or cancel what runs (Runner.generate, callback)",
    "streamer": "leave it out, or take tokens as they come (Runner.generate, callback)",
    "stream": "triton-repo --stream serves a model that streams",
    "assistant_model": "drafts of another model are not supported; leave it out",
    "inputs": "pass the token ids as input_ids",
}
"""Arguments of ``model.generate`` that something else stands for, and the fix."""

CLOSE_ENOUGH = 0.7
"""Least likeness of a name that is proposed in place of an unknown one."""


def advice_on(name: str, known: Iterable[str]) -> str:
    """The fix for a setting that there is not: the name that was meant, what stands for it, or to remove it.

    Parameters
    ----------
    name : str
        The unknown name.
    known : iterable of str
        Settings that are supported.
    """
    if name in REPLACED:
        return REPLACED[name]
    close = [RENAMED[name]] if name in RENAMED else difflib.get_close_matches(name, sorted(known), 1, CLOSE_ENOUGH)
    return f"did you mean {close[0]}?" if close else "remove it"
