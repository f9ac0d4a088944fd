"""Names of settings in other programs, and arguments of ``model.generate`` that something else replaces."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from tightbeam.deploy.errors import Fix, PerFrontEnd

__all__ = ["advice_on"]

RENAMED = {
    "beam_size": "num_beams",
    "beams": "num_beams",
    "num_hypotheses": "num_return_sequences",
    "n": "num_return_sequences",
    "max_tokens": "max_new_tokens",
    "min_tokens": "min_new_tokens",
    "max_decoding_length": "max_new_tokens",
    "n_predict": "max_new_tokens",
    "num_predict": "max_new_tokens",
    "end_token": "eos_token_id",
    "suppress_sequences": "bad_words_ids",
    "target_prefix": "decoder_input_ids",
    "initial_prompt": "prompt",
    "condition_on_previous_text": "condition_on_prev_tokens",
    "log_prob_threshold": "logprob_threshold",
    "min_decoding_length": "min_new_tokens",
    "sampling_temperature": "temperature",
    "sampling_topk": "top_k",
    "sampling_topp": "top_p",
    "random_seed": "seed",
    "stop": "stop_strings",
    "stop_sequence": "stop_strings",
    "stop_sequences": "stop_strings",
    "stop_words": "stop_strings",
    "logprobs": "return_alternatives",
    "return_log_probs": "return_token_scores",
    "word_timestamps": "return_token_timestamps",
}
"""Settings of CTranslate2, faster-whisper, llama.cpp, ollama, vLLM and TensorRT-LLM: their names, and ours."""

CALLBACK = PerFrontEnd(" (Runner.generate, callback)", "", "")
STREAM = PerFrontEnd(" (Runner.stream_text)", " (--stream)", " from a model that streams")
REPLACED: dict[str, Fix | str] = {
    "prefix_allowed_tokens_fn": "it is a function; pass the sequences that it allows as trie",
    "logits_processor": "no Python function runs in a step; use the settings that change scores, or a trie",
    "stopping_criteria": Fix("no function runs in a step; leave it out, or cancel what runs{}", CALLBACK),
    "streamer": Fix("leave it out, or take the text as it comes{}", STREAM),
    "stream": Fix("leave it out, or take the text as it comes{}", STREAM),
    "assistant_model": "drafts of another model are not supported; leave it out",
    "inputs": "pass the token ids as input_ids",
    "tools": "tools are not supported; describe them in a message, or leave it out",
    "documents": "documents for a chat template are not supported; write them into a message",
    "chat_template": "export the checkpoint again with --chat-template FILE",
    **dict.fromkeys(
        ("add_generation_prompt", "continue_final_message"),
        "leave it out: a last message of the assistant is continued, and after any other one an answer begins",
    ),
}
"""Arguments of ``model.generate`` and ``apply_chat_template`` that something else replaces, and the fix."""

CLOSE_ENOUGH = 0.7
"""Least likeness of a name that is proposed in place of an unknown one."""


def advice_on(name: str, known: Iterable[str]) -> Fix | str:
    """Return the fix for an unknown setting: the name that was meant, what replaces it, or to remove it.

    Parameters
    ----------
    name : str
        The unknown name.
    known : iterable of str
        Settings that are supported.

    Returns
    -------
    Fix or str
    """
    if name in REPLACED:
        return REPLACED[name]
    close = [RENAMED[name]] if name in RENAMED else difflib.get_close_matches(name, sorted(known), 1, CLOSE_ENOUGH)
    return f"did you mean {close[0]}?" if close else "remove it"
