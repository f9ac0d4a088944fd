"""The search in ONNX's operators: what comes before the loop, before and behind a step, and behind the loop.

This is `deploy/search` again (``beam.py``, ``greedy.py``, ``sampling.py``, ``beam_sampling.py``), with the same rules,
order of operations and ties. A test runs both over made-up decoders and compares them.

Samples and rows. A search over beams has Bs = B samples of Ms = M beams. Sampling without beams draws the M returned
sequences of a sample side by side; each is a search of its own, so Bs = R = B M and Ms = 1. Greedy search has M = 1. In
all of them a step takes the K best or drawn candidates [Bs, K], offers the first Ms to the pool of finished sequences
if they end, and continues the Ms best of the others. A search of one beam ends with its first finished sequence, and
has no scores.

In what the loop carries, a row has t tokens, T of which were fed: ``history`` int64 [R, t], ``beam_scores`` float32
[Bs, Ms], ``ancestry`` int32 [B, M, T], ``beam_index`` int64 [R], ``pool`` int64 [Bs, Ms, t], ``pool_scores`` float32
and ``pool_lengths`` int64 [Bs, Ms], ``final`` bool [Bs].
"""

from __future__ import annotations

__all__ = [
    "BEGINS_WITH_PROMPT",
    "BEGINS_WITH_SOURCE",
    "CARRIED",
    "CONSTANTS",
    "DRAW",
    "ENDS_WITH_PROMPT",
    "NO_TRIE",
    "PADDED_NGRAMS",
    "PROMPT",
    "PROMPT_STATE",
    "RESULT",
    "START",
    "STEP_BEGINS",
    "STEP_ENDS",
]

CARRIED = ("history", "beam_scores", "ancestry", "beam_index", "pool", "pool_scores", "pool_lengths", "final")
"""The tensors that the loop carries besides the caches."""

CONSTANTS = """
    zero = Constant <value = int64 {0}> ()
    one = Constant <value = int64 {1}> ()
    two = Constant <value = int64 {2}> ()
    axis0 = Constant <value = int64[1] {0}> ()
    axis1 = Constant <value = int64[1] {1}> ()
    axis2 = Constant <value = int64[1] {2}> ()
    minus_one = Constant <value = int64[1] {-1}> ()
    zero32 = Constant <value = int32 {0}> ()
    zero_float = Constant <value = float {0}> ()
    out = Constant <value = float {-1000000000}> ()
    minus_inf = Constant <value = float {-inf}> ()
    no = Constant <value = bool {0}> ()
    yes = Constant <value = bool {1}> ()
    no_token = Constant <value = int64[1] {-1}> ()
"""

START = """
    P1 = Shape <start = 1, end = 2> (prompt)
    P = Squeeze (P1)
    draws = Greater (temperature, zero_float)
    has_beams = Greater (num_beams, one)
    has_one_beam = Not (has_beams)
    draws_alone = And (draws, has_one_beam)
    at_least_one_returned = Max (num_return_sequences, one)
    at_least_one_beam = Max (num_beams, one)
    M = Where (draws_alone, at_least_one_returned, at_least_one_beam)
    Ms = Where (draws_alone, one, at_least_one_beam)
    asked = Where (draws_alone, one, at_least_one_returned)
    returned = Min (asked, Ms)
    M1 = Reshape (M, axis1)
    Ms1 = Reshape (Ms, axis1)
    R1 = Mul (B1, M1)
    R = Squeeze (R1)
    Bs1 = Div (R1, Ms1)
    Bs = Squeeze (Bs1)
    B_M = Concat <axis = 0> (B1, M1)
    Bs_Ms = Concat <axis = 0> (Bs1, Ms1)
    R_1 = Concat <axis = 0> (R1, axis1)
    head_shape = Where (draws, R_1, Bs_Ms)
    head_samples = Gather <axis = 0> (head_shape, axis0)

    most_positions = Constant <value_int = MAX_TARGET> ()
    wanted_length = Add (P, max_new_tokens)
    total = Min (wanted_length, most_positions)
    most_new = Sub (total, P)
    least_length = Add (P, min_new_tokens)
    before_last = Sub (total, one)
    T_max = Sub (total, given)
    given1 = Reshape (given, axis1)
    T_max1 = Reshape (T_max, axis1)

    vocabulary = Constant <value_int = VOCABULARY> ()
    ways_on = Constant <value_int = WAYS_ON> ()
    of_beams = Mul (Ms, ways_on)
    continuations = Where (has_beams, of_beams, one)
    ranked = Min (continuations, vocabulary)
    cuts_k = Greater (top_k, zero)
    keep = Where (has_beams, ways_on, one)
    at_least_kept = Max (top_k, keep)
    k_of_row = Where (cuts_k, at_least_kept, vocabulary)
    listed_ties = Constant <value_int = TIES> ()
    k_and_ties = Add (k_of_row, listed_ties)
    listed = Min (k_and_ties, vocabulary)
    listed_of_sample = Mul (Ms, listed)
    drawn = Min (continuations, listed_of_sample)
    C = Where (draws, listed, ranked)
    C1 = Reshape (C, axis1)
    K = Where (draws, drawn, ranked)
    K1 = Reshape (K, axis1)

    prompt_of_sample = Unsqueeze (prompt, axis1)
    B_M_P = Concat <axis = 0> (B_M, P1)
    prompts = Expand (prompt_of_sample, B_M_P)
    R_P = Concat <axis = 0> (R1, P1)
    prompt_rows = Reshape (prompts, R_P)
    samples = Range (zero, Bs, one)
    samples_column = Unsqueeze (samples, axis1)
    first_rows = Mul (samples_column, Ms)
    beams_of_sample = Range (zero, Ms, one)
    beams_of_samples = Expand (beams_of_sample, Bs_Ms)
    slots_of_sample = Range (zero, M, one)
    slots_column = Unsqueeze (slots_of_sample, axis1)
    slots_column32 = Cast <to = 6> (slots_column)
    B_M_1 = Concat <axis = 0> (B_M, axis1)
    slots = Expand (slots_column32, B_M_1)

    is_first_beam = Equal (beams_of_sample, zero)
    first_scores_row = Where (is_first_beam, zero_float, out)
    first_scores = Expand (first_scores_row, Bs_Ms)
    history_0 = Slice (prompt_rows, axis0, given1, axis1)
    ancestry_shape = Concat <axis = 0> (B_M, axis0)
    ancestry_0 = Expand (zero32, ancestry_shape)
    beam_index_0 = Range (zero, R, one)
    pool_shape = Concat <axis = 0> (Bs_Ms, minus_one)
    pool_0 = Reshape (history_0, pool_shape)
    pool_scores_0 = Expand (out, Bs_Ms)
    pool_lengths_0 = Expand (zero, Bs_Ms)
    final_0 = Expand (no, Bs1)
    beam_scores_0 = Identity (first_scores)
"""
"""``prompt`` int64 [B, P] is what rows begin with, ``given`` how many of these tokens a row has before the first step,
``B1`` int64 [1] the number of samples.

WAYS_ON is how many continuations of a beam a step takes, so that one remains if all end tokens are among them; TIES are
listed beyond ``top_k``, as tokens that equal the last one are kept.
"""

NO_TRIE = """
    no_nodes = Expand (zero32, R1)
"""
"""The nodes of rows that are in no trie. Screened logits have this input whether there is a trie or not."""

STEP_BEGINS = """
    t = Add (step, given)
    t1 = Reshape (t, axis1)
    length = Add (t, one)
    length1 = Reshape (length, axis1)
    fed = Add (step, one)
    fed1 = Reshape (fed, axis1)
    new = Sub (length, P)
    is_prompt = Less (t, P)
    is_text = Not (is_prompt)
    is_last = Equal (length, total)
    tokens = Slice (history, minus_one, t1, axis1)
    prompt_end = Sub (P, one)
    prompt_place = Min (t, prompt_end)
    prompt_asked = Gather <axis = 1> (prompt_rows, prompt_place)
    fed32 = Cast <to = 6> (fed)
    lengths = Expand (fed32, B1)
    slots_so_far = Concat <axis = 2> (ancestry, slots)
    sums = Where (has_beams, beam_scores, zero_float)
    ranked_sums = Where (draws, zero_float, sums)
    head_sums = Reshape (ranked_sums, head_shape)
"""

BEGINS_WITH_SOURCE = """
    first_positions = Expand (zero32, B1)
    positions = Expand (step, R_1)
    head_history = Identity (history)
    t32 = Cast <to = 6> (t)
    history_lengths = Expand (t32, head_samples)
"""
"""The small inputs of a decoder beside an encoder."""

PROMPT = """
    S1 = Shape <start = 1, end = 2> (input_ids)
    given = Squeeze (S1)
    places_of_prompt = Range (zero, given, one)
    is_padding = Less (attention_mask, one)
    behind = Where (is_padding, given, zero)
    before = Where (is_padding, zero, given)
    prompt_keys = Add (places_of_prompt, before)
    prompt_sorted, prompt_places = TopK <axis = -1, largest = 0, sorted = 1> (prompt_keys, S1)
    prompt = GatherElements <axis = 1> (input_ids, prompt_places)
    compact_keys = Add (places_of_prompt, behind)
    compact_sorted, compact_places = TopK <axis = -1, largest = 0, sorted = 1> (compact_keys, S1)
    compact = GatherElements <axis = 1> (input_ids, compact_places)
    counts = ReduceSum <keepdims = 1> (attention_mask, axis1)
    firsts_column = Sub (counts, one)
    N_or_none = Sub (given, one)
    N = Max (N_or_none, one)
    N1 = Reshape (N, axis1)
    source_ids = Slice (compact, axis0, N1, axis1)
    source_places = Range (zero, N, one)
    in_source = Less (source_places, firsts_column)
    source_mask = Cast <to = 7> (in_source)
"""
"""A decoder-only model's ``prompt`` with its padding moved in front, as a runner has it, and the source: the prompt
without its last token and with its padding moved behind it."""

PROMPT_STATE = """
    counts_of_beams = Expand (counts, B_M)
    counts_of_rows = Reshape (counts_of_beams, R_1)
    counts_of_head = Reshape (counts_of_rows, head_shape)
    counts_of_searches = Slice (counts_of_head, axis0, axis1, axis1)
    count_of_search = Squeeze (counts_of_searches, axis1)
    firsts = Squeeze (firsts_column, axis1)
    first_positions = Cast <to = 6> (firsts)
    firsts_of_rows = Sub (counts_of_rows, one)
    compact_cube = Unsqueeze (compact, axis1)
    B_M_S = Concat <axis = 0> (B_M, S1)
    compact_beams = Expand (compact_cube, B_M_S)
    R_S = Concat <axis = 0> (R1, S1)
    compact_rows = Reshape (compact_beams, R_S)
    unwritten_shape = Concat <axis = 0> (R1, T_max1)
    unwritten = Expand (zero, unwritten_shape)
    head_history_0 = Concat <axis = 1> (compact_rows, unwritten)
"""

BEGINS_WITH_PROMPT = """
    positions = Add (firsts_of_rows, step)
    history_lengths64 = Add (count_of_search, step)
    history_lengths = Cast <to = 6> (history_lengths64)
"""
"""The small inputs of a decoder-only model's decoder; ``head_history`` is carried."""

PADDED_NGRAMS = """
    counted_padding = Sub (given, counts)
    most_padding_kept = ReduceMax <keepdims = 0> (counted_padding)
    ngram_possible = Sub (length, no_repeat_ngram_size)
    ngram_begins_all = Min (most_padding_kept, ngram_possible)
    ngram_begins_some = Max (ngram_begins_all, zero)
    blocks_ngrams = Greater (no_repeat_ngram_size, zero)
    ngram_begins = Where (blocks_ngrams, ngram_begins_some, zero)
    ngram_starts = Range (zero, ngram_begins, one)
    ngram_starts_count = Shape (ngram_starts)
    ngram_starts_column = Unsqueeze (ngram_starts, axis1)
    ngram_offsets = Range (zero, no_repeat_ngram_size, one)
    ngram_index = Add (ngram_starts_column, ngram_offsets)
    ngrams = Gather <axis = 1> (history, ngram_index)
    ngram_rest = Sub (no_repeat_ngram_size, one)
    ngram_rest_positive = Max (ngram_rest, zero)
    ngram_rest1 = Reshape (ngram_rest_positive, axis1)
    ngram_size1 = Reshape (no_repeat_ngram_size, axis1)
    ngram_beginnings = Slice (ngrams, axis0, ngram_rest1, axis2)
    ngram_ends = Slice (ngrams, ngram_rest1, ngram_size1, axis2)
    ngram_tail_offsets = Range (zero, ngram_rest_positive, one)
    ngram_tail_places_any = Add (ngram_tail_offsets, ngram_possible)
    ngram_tail_places = Max (ngram_tail_places_any, zero)
    ngram_tail = Gather <axis = 1> (history, ngram_tail_places)
    ngram_tail_row = Unsqueeze (ngram_tail, axis1)
    ngram_same = Equal (ngram_beginnings, ngram_tail_row)
    ngram_differs = Not (ngram_same)
    ngram_differs_int = Cast <to = 7> (ngram_differs)
    ngram_differences = ReduceSum <keepdims = 0> (ngram_differs_int, axis2)
    ngram_again = Equal (ngram_differences, zero)
    ngram_ends_shape = Concat <axis = 0> (R1, ngram_starts_count)
    ngram_last = Reshape (ngram_ends, ngram_ends_shape)
    banned_ngrams = Where (ngram_again, ngram_last, no_token)
"""
"""``banned_ngrams`` int64 [R, X]: what would repeat an n-gram that begins in a prompt's padding, which transformers
takes for text (``_padded_history.py``)."""

ENDS_WITH_PROMPT = """
    parent_heads = Gather <axis = 0> (head_history, beam_index_next)
    new_places = Add (counts_of_rows, step)
    head_history_next = ScatterElements <axis = 1> (parent_heads, new_places, tokens_column)
"""

DRAW = """
    row_scores = Cast <to = 11> (candidate_scores)
    best_score = Slice (row_scores, axis0, axis1, axis1)
    below_best = Sub (row_scores, best_score)
    temperature64 = Cast <to = 11> (temperature)
    warped = Div (below_best, temperature64)
    all_weights = Exp (warped)
    zero64 = Constant <value = double {0}> ()
    listed_now = Shape <start = 1, end = 2> (row_scores)
    k_now = Min (k_of_row, listed_now)
    k_end = Reshape (k_now, axis1)
    k_begin = Sub (k_end, axis1)
    last_kept = Slice (row_scores, k_begin, k_end, axis1)
    beyond_k = Less (row_scores, last_kept)
    weights_k = Where (beyond_k, zero64, all_weights)
    mass = CumSum (weights_k, one)
    mass_of_row = ReduceSum <keepdims = 1> (weights_k, axis1)
    mass_before = Sub (mass, weights_k)
    top_p64 = Cast <to = 11> (top_p)
    mass_kept = Mul (mass_of_row, top_p64)
    reaches_p = GreaterOrEqual (mass_before, mass_kept)
    one_float = Constant <value = float {1}> ()
    cuts_p = Less (top_p, one_float)
    listed_scalar = Squeeze (listed_now)
    ranks = Range (zero, listed_scalar, one)
    beyond_kept = GreaterOrEqual (ranks, keep)
    beyond_p_alone = And (reaches_p, cuts_p)
    min_p64 = Cast <to = 11> (min_p)
    below_min_p = Less (all_weights, min_p64)
    cut = Or (beyond_p_alone, below_min_p)
    cut_beyond_kept = And (cut, beyond_kept)
    weights = Where (cut_beyond_kept, zero64, weights_k)
    may_come = Greater (weights, zero64)
    scaled_scores = Div (candidate_scores, temperature)
    kept_scores = Where (may_come, scaled_scores, minus_inf)
    sums_of_rows = Reshape (sums, R_1)
    summed_rows = Add (kept_scores, sums_of_rows)
    by_sample = Concat <axis = 0> (Bs1, minus_one)
    summed = Reshape (summed_rows, by_sample)
    tokens_by_sample = Reshape (candidate_tokens, by_sample)
    summed64 = Cast <to = 11> (summed)
    keys = Add (summed64, noise)
    least = Constant <value = double {-1e300}> ()
    cannot_come = IsInf (summed)
    drawable = Where (cannot_come, least, keys)
    drawn_keys, places_as_drawn = TopK <axis = -1, largest = 1, sorted = 1> (drawable, K1)
    drawn_places, by_place = TopK <axis = -1, largest = 0, sorted = 1> (places_as_drawn, K1)
    scores_by_place = GatherElements <axis = 1> (summed, drawn_places)
    drawn_scores, by_score = TopK <axis = -1, largest = 1, sorted = 1> (scores_by_place, K1)
    places = GatherElements <axis = 1> (drawn_places, by_score)
    drawn_beams = Div (places, listed_scalar)
    drawn_tokens = GatherElements <axis = 1> (tokens_by_sample, places)
"""
"""Draws K of a sample's continuations one after another, each by its share of what is left: the K largest of
log-probability plus Gumbel noise (Gumbel 1954; without replacement: Yellott 1977, Kool et al. 2019, 1903.06059). They
go on in the order of their scores."""

STEP_ENDS = """
    is_end_or_last = Or (is_end, is_last)
    ends = And (is_end_or_last, is_text)
    runs = Not (final)
    runs_column = Unsqueeze (runs, axis1)
    ends_first = Slice (ends, axis0, Ms1, axis1)
    offered = And (ends_first, runs_column)

    positive_new = Max (new, one)
    new64 = Cast <to = 11> (positive_new)
    length_penalty64 = Cast <to = 11> (length_penalty)
    divisor64 = Pow (new64, length_penalty64)
    divisor = Cast <to = 1> (divisor64)
    first_sums = Slice (step_scores, axis0, Ms1, axis1)
    divided = Div (first_sums, divisor)
    counted = Where (has_beams, divided, zero_float)
    lowered = Where (offered, zero_float, out)
    offers = Add (counted, lowered)
    merged = Concat <axis = 1> (pool_scores, offers)
    pool_scores_next, chosen = TopK <axis = -1, largest = 1, sorted = 1> (merged, Ms1)

    beams_first = Slice (step_beams, axis0, Ms1, axis1)
    tokens_first = Slice (step_tokens, axis0, Ms1, axis1)
    rows_first = Add (beams_first, first_rows)
    histories_first = Gather <axis = 0> (history, rows_first)
    tokens_first_column = Unsqueeze (tokens_first, axis2)
    arrivals = Concat <axis = 2> (histories_first, tokens_first_column)
    pad_of_beams = Constant <value_int = FILL> ()
    pad_alone = Constant <value_int = PAD> ()
    pad = Where (has_beams, pad_of_beams, pad_alone)
    prompt_tokens = Reshape (prompt_token, Bs_Ms)
    filling = Where (is_prompt, prompt_tokens, pad)
    filling_column = Unsqueeze (filling, axis2)
    pool_wider = Concat <axis = 2> (pool, filling_column)
    sequences_in_pool_or_not = Concat <axis = 1> (pool_wider, arrivals)
    sequence_shape = Concat <axis = 0> (minus_one, length1)
    sequences_flat = Reshape (sequences_in_pool_or_not, sequence_shape)
    first_of_pool = Mul (first_rows, two)
    chosen_flat = Add (chosen, first_of_pool)
    pool_next = Gather <axis = 0> (sequences_flat, chosen_flat)
    new_of_samples = Expand (new, Bs_Ms)
    lengths_in_pool_or_not = Concat <axis = 1> (pool_lengths, new_of_samples)
    pool_lengths_next = GatherElements <axis = 1> (lengths_in_pool_or_not, chosen)

    ended_out = Where (ends, out, zero_float)
    open_scores = Add (step_scores, ended_out)
    run_scores, order = TopK <axis = -1, largest = 1, sorted = 1> (open_scores, Ms1)
    run_beams = GatherElements <axis = 1> (step_beams, order)
    run_tokens = GatherElements <axis = 1> (step_tokens, order)
    beam_scores_next = Where (is_prompt, first_scores, run_scores)
    parents = Where (is_prompt, beams_of_samples, run_beams)
    tokens_next = Where (is_prompt, prompt_tokens, run_tokens)

    never = Equal (early_stopping, two)
    penalises = Greater (length_penalty, zero_float)
    bounds_longest = And (never, penalises)
    bounded_new = Where (bounds_longest, most_new, positive_new)
    bounded64 = Cast <to = 11> (bounded_new)
    bound_divisor64 = Pow (bounded64, length_penalty64)
    bound_divisor = Cast <to = 1> (bound_divisor64)
    best_running = Slice (run_scores, axis0, axis1, axis1)
    best_possible = Div (best_running, bound_divisor)
    worst_finished = Slice (pool_scores_next, minus_one, Ms1, axis1)
    is_hopeless = LessOrEqual (best_possible, worst_finished)
    hopeless = And (is_hopeless, has_beams)
    stops_when_full = Equal (early_stopping, one)
    stops_full = Or (stops_when_full, has_one_beam)
    is_full = Greater (worst_finished, out)
    full = And (is_full, stops_full)
    ends_int = Cast <to = 6> (ends)
    all_end_int = ReduceMin <keepdims = 1> (ends_int, axis1)
    all_end = Cast <to = 9> (all_end_int)
    over_or_full = Or (hopeless, full)
    over = Or (over_or_full, all_end)
    over_in_text = And (over, is_text)
    over_now = Squeeze (over_in_text, axis1)
    final_next = Or (final, over_now)
    runs_next = Not (final_next)
    runs_int = Cast <to = 6> (runs_next)
    any_runs_int = ReduceMax <keepdims = 0> (runs_int)
    goes_on = Cast <to = 9> (any_runs_int)

    parent_rows = Add (parents, first_rows)
    beam_index_next = Reshape (parent_rows, minus_one)
    parent_histories = Gather <axis = 0> (history, beam_index_next)
    tokens_flat = Reshape (tokens_next, minus_one)
    tokens_column = Unsqueeze (tokens_flat, axis1)
    history_next = Concat <axis = 1> (parent_histories, tokens_column)
    ancestry_shape_now = Shape (slots_so_far)
    ancestry_rows_shape = Concat <axis = 0> (minus_one, fed1)
    ancestry_rows = Reshape (slots_so_far, ancestry_rows_shape)
    ancestry_reordered = Gather <axis = 0> (ancestry_rows, beam_index_next)
    ancestry_next = Reshape (ancestry_reordered, ancestry_shape_now)
"""

RESULT = """
    returned1 = Reshape (returned, axis1)
    best_lengths = Slice (pool_lengths_end, axis0, returned1, axis1)
    best_scores = Slice (pool_scores_end, axis0, returned1, axis1)
    best_sequences = Slice (pool_end, axis0, returned1, axis1)
    lengths_flat = Reshape (best_lengths, minus_one)
    lengths = Add (lengths_flat, P)
    longest = ReduceMax <keepdims = 1> (lengths)
    used = Slice (best_sequences, axis0, longest, axis2)
    sequences_shape = Concat <axis = 0> (minus_one, longest)
    sequences = Reshape (used, sequences_shape)
    scores = Reshape (best_scores, minus_one)
"""
