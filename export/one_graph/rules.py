"""The checkpoint's own rules as text of ONNX's operators: end tokens, banned tokens and words, forced tokens.

This is `deploy/search/processors` again. What a graph cannot have is refused by name.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from tightbeam.deploy.generation.options import GenerationOptions
from tightbeam.deploy.generation.resolve import Sizes, resolve_settings
from tightbeam.export.errors import ExportError

__all__ = [
    "banned_of_source",
    "bans",
    "forced",
    "is_end",
    "options_in_graph",
    "prompt_choice",
    "reads_logits",
    "source_ngrams",
]

NEUTRAL = {
    "num_beam_groups": 1,
    "force_words_ids": (),
    "stop_strings": None,
    "trie": None,
}
"""Rules that a graph does not have, with the values that ask for nothing."""


def options_in_graph(
    generation: Mapping[str, Any], settings: Mapping[str, Any], sizes: Sizes, *, has_windows: bool
) -> GenerationOptions:
    """Resolve a checkpoint's settings and ``settings`` in their place, as a runner does.

    Raises ExportError if they ask for a rule that a graph does not have.
    """
    options = resolve_settings(generation, settings, sizes, speech=has_windows).for_prompt(1)
    _check_rules(options)
    if generation.get("renormalize_logits"):  # without effect on greedy search, but the graph is for beams too
        _refuse("renormalize_logits", True)
    return options


def _check_rules(options: GenerationOptions) -> None:
    for name, nothing in NEUTRAL.items():
        if getattr(options, name) != nothing:
            _refuse(name, getattr(options, name))
    if options.timestamps is not None:
        _refuse("return_timestamps", True)
    if options.sampling is not None and options.sampling.typical_p < 1:
        raise ExportError(
            "one graph draws by temperature, top_k, top_p and min_p alone; remove typical_p from "
            "generation_config.json, or leave --one-graph out"
        )


def _refuse(name: str, value: object) -> NoReturn:
    raise ExportError(
        f"one graph cannot have the checkpoint's {name}={value!r}; remove it from generation_config.json, or leave "
        "--one-graph out"
    )


def _ids(name: str, tokens: Sequence[int]) -> str:
    return f"    {name} = Constant <value = int64[{len(tokens)}] {{{', '.join(map(str, tokens))}}}> ()\n"


def is_end(options: GenerationOptions) -> str:
    """Text of ``is_end`` bool [Bs, K] from ``step_tokens``."""
    if not options.eos_token_ids:
        return "    never_an_end = Shape (step_tokens)\n    is_end = Expand (no, never_an_end)\n"
    return (
        _ids("end_tokens", options.eos_token_ids)
        + """
    end_column = Unsqueeze (step_tokens, axis2)
    equals_end = Equal (end_column, end_tokens)
    equals_end_int = Cast <to = 6> (equals_end)
    is_end_int = ReduceMax <keepdims = 0> (equals_end_int, axis2)
    is_end = Cast <to = 9> (is_end_int)
"""
    )


def bans(options: GenerationOptions, more: Sequence[str] = ()) -> str:
    """Text of ``banned`` int64 [R, X], -1 in unused places, from ``t`` and ``history``; ``more`` are tensors of other
    banned tokens [R, X]."""
    text = ""
    lists, by_row = [], list(more)
    always = (*options.suppress_tokens, *(word[0] for word in options.bad_words_ids if len(word) == 1))
    if always:
        text += _ids("banned_always", always)
        lists.append("banned_always")
    if options.eos_token_ids:
        text += _ids("end_ids", options.eos_token_ids)
        text += "    is_short = Less (t, least_length)\n    banned_ends = Where (is_short, end_ids, no_token)\n"
        lists.append("banned_ends")
    if options.begin_suppress_tokens:
        text += _ids("begin_ids", options.begin_suppress_tokens)
        second = options.forced_bos_token_id is not None
        begins = "begin_after_forced" if second else "begin_of_text"
        text += "    begin_of_text = Equal (t, P)\n"
        if second:
            text += "    has_start_alone = Equal (P, one)\n    forced_begin = Add (P, one)\n"
            text += "    begin_length = Where (has_start_alone, forced_begin, P)\n"
            text += "    begin_after_forced = Equal (t, begin_length)\n"
        text += f"    banned_begin = Where ({begins}, begin_ids, no_token)\n"
        lists.append("banned_begin")
    words: dict[int, list[tuple[int, ...]]] = defaultdict(list)
    for word in options.bad_words_ids:
        if len(word) > 1:
            words[len(word)].append(word)
    for length, same in words.items():
        text += _words(length, same)
        by_row.append(f"banned_words_{length}")
    if not lists:
        lists.append("no_token")
    text += f"    banned_list = Concat <axis = 0> ({', '.join(lists)})\n"
    text += "    banned_row = Unsqueeze (banned_list, axis0)\n    banned_count = Shape (banned_list)\n"
    text += "    banned_shape = Concat <axis = 0> (R1, banned_count)\n"
    text += "    banned_alike = Expand (banned_row, banned_shape)\n"
    return text + f"    banned = Concat <axis = 1> ({', '.join(['banned_alike', *by_row])})\n"


def source_ngrams(options: GenerationOptions) -> str:
    """Text of the n-grams of each row's source before the loop, from ``input_ids`` and ``attention_mask``: the tokens
    int64 [R, X, n - 1] with which each begins, and int64 [R, X] with which it ends, -1 if a part of it is padding."""
    size = options.encoder_no_repeat_ngram_size
    if not size:
        return ""
    return f"""
    source_size = Constant <value = int64 {{{size}}}> ()
    source_rest1 = Constant <value = int64[1] {{{size - 1}}}> ()
    source_size1 = Constant <value = int64[1] {{{size}}}> ()
    source_tokens1 = Shape <start = 1, end = 2> (input_ids)
    source_tokens = Squeeze (source_tokens1)
    source_behind = Add (source_tokens, one)
    source_count_any = Sub (source_behind, source_size)
    source_count = Max (source_count_any, zero)
    source_first = Range (zero, source_count, one)
    source_first_column = Unsqueeze (source_first, axis1)
    source_offsets = Range (zero, source_size, one)
    source_index = Add (source_first_column, source_offsets)
    source_ngrams = Gather <axis = 1> (input_ids, source_index)
    source_counted = Gather <axis = 1> (attention_mask, source_index)
    source_sum = ReduceSum <keepdims = 0> (source_counted, axis2)
    source_is_whole = Equal (source_sum, source_size)
    source_last_cube = Slice (source_ngrams, source_rest1, source_size1, axis2)
    source_last_any = Squeeze (source_last_cube, axis2)
    source_last = Where (source_is_whole, source_last_any, no_token)
    source_begin = Slice (source_ngrams, axis0, source_rest1, axis2)
    source_count1 = Reshape (source_count, axis1)
    source_last_row = Unsqueeze (source_last, axis1)
    source_last_shape = Concat <axis = 0> (B_M, source_count1)
    source_last_beams = Expand (source_last_row, source_last_shape)
    source_last_flat = Concat <axis = 0> (R1, source_count1)
    source_lasts = Reshape <allowzero = 1> (source_last_beams, source_last_flat)
    source_begin_row = Unsqueeze (source_begin, axis1)
    source_begin_shape = Concat <axis = 0> (B_M, source_count1, source_rest1)
    source_begin_beams = Expand (source_begin_row, source_begin_shape)
    source_begin_flat = Concat <axis = 0> (R1, source_count1, source_rest1)
    source_begins = Reshape <allowzero = 1> (source_begin_beams, source_begin_flat)
    source_padding = Concat <axis = 0> (axis0, source_rest1, axis0, axis0)
"""


def banned_of_source(options: GenerationOptions) -> str:
    """Text of ``banned_of_source`` int64 [R, X] from `source_ngrams` and ``history``."""
    size = options.encoder_no_repeat_ngram_size
    if not size:
        return ""
    return f"""
    source_no_id = Constant <value = int64 {{-1}}> ()
    source_padded = Pad (history, source_padding, source_no_id)
    source_tail_begin = Constant <value = int64[1] {{{1 - size if size > 1 else 2**31}}}> ()
    source_tail_end = Constant <value = int64[1] {{{2**31}}}> ()
    source_tail = Slice (source_padded, source_tail_begin, source_tail_end, axis1)
    source_tail_row = Unsqueeze (source_tail, axis1)
    source_same = Equal (source_begins, source_tail_row)
    source_differs = Not (source_same)
    source_differs_int = Cast <to = 7> (source_differs)
    source_differences = ReduceSum <keepdims = 0> (source_differs_int, axis2)
    source_again = Equal (source_differences, zero)
    banned_of_source = Where (source_again, source_lasts, no_token)
"""


def _words(length: int, words: Sequence[tuple[int, ...]]) -> str:
    """Text of ``banned_words_<length>`` int64 [R, words]: the last tokens of words whose other tokens came last."""
    before, count = length - 1, len(words)
    beginnings = ", ".join(str(token) for word in words for token in word[:-1])
    return (
        f"    words_{length} = Constant <value = int64[1, {count}, {before}] {{{beginnings}}}> ()\n"
        + _ids(f"last_{length}", [word[-1] for word in words])
        + f"""
    missing_{length} = Constant <value = int64[2] {{0, {before}}}> ()
    padding_{length} = Concat <axis = 0> (missing_{length}, axis0, axis0)
    no_id_{length} = Constant <value = int64 {{-1}}> ()
    padded_{length} = Pad (history, padding_{length}, no_id_{length})
    tail_begin_{length} = Constant <value = int64[1] {{-{before}}}> ()
    tail_end_{length} = Constant <value = int64[1] {{{2**31}}}> ()
    tail_{length} = Slice (padded_{length}, tail_begin_{length}, tail_end_{length}, axis1)
    tail_row_{length} = Unsqueeze (tail_{length}, axis1)
    same_{length} = Equal (tail_row_{length}, words_{length})
    same_int_{length} = Cast <to = 6> (same_{length})
    begun_int_{length} = ReduceMin <keepdims = 0> (same_int_{length}, axis2)
    begun_{length} = Cast <to = 9> (begun_int_{length})
    banned_words_{length} = Where (begun_{length}, last_{length}, no_token)
"""
    )


def reads_logits(options: GenerationOptions) -> str:
    """Text of ``reads_logits`` bool [], whether the step reads whole rows of logits: to draw tokens, and to choose one
    of the prompt (``prompt_choice``)."""
    if not options.choices:
        return "    reads_logits = Identity (draws)\n"
    return """
    asks_choice = Less (prompt_asked, zero)
    asks_choice_int = Cast <to = 6> (asks_choice)
    asks_some_int = ReduceMax <keepdims = 0> (asks_choice_int)
    asks_some = Cast <to = 9> (asks_some_int)
    reads_logits = Or (draws, asks_some)
"""


def prompt_choice(options: GenerationOptions) -> str:
    """Text of ``prompt_token`` int64 [R] from ``prompt_asked``, the next token of each row's prompt. A token below 0
    stands for one that the model chooses (Whisper's language): the best one of its choices."""
    if not options.choices:
        return "    prompt_token = Identity (prompt_asked)\n"
    return (
        _ids("choices", options.choices)
        + """
    choice_logits = Gather <axis = 1> (step_logits, choices)
    choice_places = ArgMax <axis = 1, keepdims = 0> (choice_logits)
    chosen_of_choices = Gather <axis = 0> (choices, choice_places)
    is_choice = Less (prompt_asked, zero)
    prompt_token = Where (is_choice, chosen_of_choices, prompt_asked)
"""
    )


def forced(options: GenerationOptions) -> str:
    """Text of ``step_scores``, ``step_beams`` and ``step_tokens`` [Bs, K] from ``free_*``: a forced token is the only
    continuation, with the score 0."""
    steps: list[tuple[str, str, tuple[int, ...]]] = []
    if options.forced_bos_token_id is not None:
        steps.append(("bos", "one", (options.forced_bos_token_id,)))
    if options.forced_eos_token_ids:
        steps.append(("eos", "before_last", options.forced_eos_token_ids))
    text, names = "", ["free_scores", "free_beams", "free_tokens"]
    for name, length, tokens in steps:
        found = [f"{each}_{name}" for each in ("scores", "beams", "tokens")]
        text += _forced(name, length, tokens)
        for before, only, after in zip(names, (f"only_{each}" for each in found), found, strict=True):
            text += f"    {after} = Where (forces_{name}, {only}, {before})\n"
        names = found
    for before, after in zip(names, ("step_scores", "step_beams", "step_tokens"), strict=True):
        text += f"    {after} = Identity ({before})\n"
    return text


def _forced(name: str, length: str, tokens: Sequence[int]) -> str:
    """Text of the candidates ``only_*_<name>`` of rows that go on by one of ``tokens``, and of ``forces_<name>``."""
    ascending = sorted(tokens)
    return (
        _ids(f"ids_{name}", ascending)
        + f"""
    is_length_{name} = Equal (t, {length})
    forces_{name} = And (is_length_{name}, is_text)
    count_{name} = Constant <value = int64[1] {{{len(ascending)}}}> ()
    shape_{name} = Concat <axis = 0> (Bs_Ms, count_{name})
    flat_{name} = Concat <axis = 0> (Bs1, minus_one)
    sums_column_{name} = Unsqueeze (sums, axis2)
    sums_cube_{name} = Expand (sums_column_{name}, shape_{name})
    sums_flat_{name} = Reshape (sums_cube_{name}, flat_{name})
    beams_column_{name} = Unsqueeze (beams_of_samples, axis2)
    beams_cube_{name} = Expand (beams_column_{name}, shape_{name})
    beams_flat_{name} = Reshape (beams_cube_{name}, flat_{name})
    ids_cube_{name} = Expand (ids_{name}, shape_{name})
    ids_flat_{name} = Reshape (ids_cube_{name}, flat_{name})
    others_{name} = Concat <axis = 0> (Bs1, K1)
    others_sums_{name} = Expand (minus_inf, others_{name})
    others_ids_{name} = Expand (zero, others_{name})
    all_sums_{name} = Concat <axis = 1> (sums_flat_{name}, others_sums_{name})
    all_beams_{name} = Concat <axis = 1> (beams_flat_{name}, others_ids_{name})
    all_ids_{name} = Concat <axis = 1> (ids_flat_{name}, others_ids_{name})
    only_scores_{name}, places_{name} = TopK <axis = -1, largest = 1, sorted = 1> (all_sums_{name}, K1)
    only_beams_{name} = GatherElements <axis = 1> (all_beams_{name}, places_{name})
    only_tokens_{name} = GatherElements <axis = 1> (all_ids_{name}, places_{name})
"""
    )
