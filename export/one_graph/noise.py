"""Gumbel noise for the draws of a step: random numbers of Philox4x32-10 by seed, sample, row, step and continuation.

A number depends on what it is for, not on the batch: its key is the seed and a digest of the sample's input, its
counter the continuation, the sample's row and the step. Source: Salmon et al. 2011, "Parallel random numbers: as easy
as 1, 2, 3". All numbers are int64, because not every runtime has the operators of uint32.
"""

from __future__ import annotations

__all__ = ["NOISE", "digest_of_features", "digest_of_tokens"]

ROUNDS = 10
FACTORS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
WORD = 1 << 32


def _product(name: str, factor: str, word: str) -> str:
    """Text of ``<name>_high`` and ``<name>_low``: the two words of a product of two words, without an overflow."""
    return f"""
    {name}_upper = Div ({word}, half)
    {name}_lower = Mod ({word}, half)
    {name}_small = Mul ({name}_lower, {factor})
    {name}_large = Mul ({name}_upper, {factor})
    {name}_carried = Div ({name}_small, half)
    {name}_middle = Add ({name}_large, {name}_carried)
    {name}_high = Div ({name}_middle, half)
    {name}_middle_low = Mod ({name}_middle, half)
    {name}_shifted = Mul ({name}_middle_low, half)
    {name}_small_low = Mod ({name}_small, half)
    {name}_low = Add ({name}_shifted, {name}_small_low)
"""


def _round(number: int, words: tuple[str, str, str, str]) -> tuple[str, tuple[str, str, str, str]]:
    """Text of a round, and the names of the words behind it."""
    first, second = f"even_{number}", f"odd_{number}"
    keys = [f"key_{half}_{number}" for half in range(2)]
    text = _product(first, "factor_0", words[0]) + _product(second, "factor_1", words[2])
    if number:
        for half, key in enumerate(keys):
            text += f"    {key}_sum = Add (key_{half}_{number - 1}, key_step_{half})\n"
            text += f"    {key} = Mod ({key}_sum, word)\n"
    text += f"""
    mixed_0_{number} = BitwiseXor ({second}_high, {words[1]})
    next_0_{number} = BitwiseXor (mixed_0_{number}, {keys[0]})
    mixed_2_{number} = BitwiseXor ({first}_high, {words[3]})
    next_2_{number} = BitwiseXor (mixed_2_{number}, {keys[1]})
"""
    return text, (f"next_0_{number}", f"{second}_low", f"next_2_{number}", f"{first}_low")


def _noise() -> str:
    text = f"""
    half = Constant <value = int64 {{{1 << 16}}}> ()
    word = Constant <value = int64 {{{WORD}}}> ()
    factor_0 = Constant <value = int64 {{{FACTORS[0]}}}> ()
    factor_1 = Constant <value = int64 {{{FACTORS[1]}}}> ()
    key_step_0 = Constant <value = int64 {{{KEY_STEPS[0]}}}> ()
    key_step_1 = Constant <value = int64 {{{KEY_STEPS[1]}}}> ()
    searches_of_sample = Div (Bs1, B1)
    search_of_sample = Mod (samples_column, searches_of_sample)
    sample_of_search = Div (samples, searches_of_sample)
    key_0_0 = Mod (seed, word)
    digest_of_search = Gather <axis = 0> (digest, sample_of_search)
    key_1_0 = Unsqueeze (digest_of_search, axis1)
    count_of_continuations = Mul (Ms, listed)
    continuation_row = Range (zero, count_of_continuations, one)
    counter_ends = Reshape (count_of_continuations, axis1)
    shape_of_noise = Concat <axis = 0> (Bs1, counter_ends)
    counter_0 = Expand (continuation_row, shape_of_noise)
    counter_1 = Expand (search_of_sample, shape_of_noise)
    counter_2 = Expand (step, shape_of_noise)
    counter_3 = Expand (zero, shape_of_noise)
"""
    words = ("counter_0", "counter_1", "counter_2", "counter_3")
    for number in range(ROUNDS):
        part, words = _round(number, words)
        text += part
    return (
        text
        + f"""
    upper_bits = Cast <to = 11> ({words[0]})
    lower_bits = Cast <to = 11> ({words[1]})
    of_word = Constant <value = double {{{1 / WORD!r}}}> ()
    of_two_words = Constant <value = double {{{1 / WORD**2!r}}}> ()
    upper_part = Mul (upper_bits, of_word)
    lower_part = Mul (lower_bits, of_two_words)
    both_parts = Add (upper_part, lower_part)
    above_zero = Constant <value = double {{{0.5 / WORD**2!r}}}> ()
    below_one = Constant <value = double {{{1 - 2.0**-53!r}}}> ()
    raised = Add (both_parts, above_zero)
    uniforms = Min (raised, below_one)
    logarithms = Log (uniforms)
    exponentials = Neg (logarithms)
    log_exponentials = Log (exponentials)
    noise = Neg (log_exponentials)
"""
    )


NOISE = _noise()
"""``noise`` float64 [Bs, Ms x listed]."""

digest_of_tokens = """
    counted_positions = CumSum (attention_mask, one)
    digest_factor = Constant <value = int64 {40503}> ()
    digest_size = Constant <value = int64 {2147483647}> ()
    digest_positions = Mul (counted_positions, counted_positions)
    digest_weights_large = Mul (digest_positions, digest_factor)
    digest_weights = Mod (digest_weights_large, digest_size)
    digest_ids = Add (input_ids, one)
    digest_counted = Mul (digest_ids, attention_mask)
    digest_terms_large = Mul (digest_counted, digest_weights)
    digest_terms = Mod (digest_terms_large, digest_size)
    digest_sum = ReduceSum <keepdims = 0> (digest_terms, axis1)
    digest = Mod (digest_sum, digest_size)
"""
"""``digest`` int64 [B] of each sample's tokens; padding does not count."""

digest_of_features = """
    digest_size = Constant <value = int64 {2147483647}> ()
    digest_shape = Concat <axis = 0> (B1, minus_one)
    digest_flat = Reshape (SOURCE, digest_shape)
    digest_scale = Constant <value = float {65536}> ()
    digest_scaled = Mul (digest_flat, digest_scale)
    digest_integers = Cast <to = 7> (digest_scaled)
    digest_sum = ReduceSum <keepdims = 0> (digest_integers, axis1)
    digest = Mod (digest_sum, digest_size)
"""
"""``digest`` int64 [B] of each sample's features."""
