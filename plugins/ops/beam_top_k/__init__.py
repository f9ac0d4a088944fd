"""BeamTopK: the search head; from the logits to the best C candidates of each sample.

Equal scores: the lower beam, then the lower token comes first. The processors are applied in the order of transformers;
bans commute, since each of them is a minimum with -inf.
"""

from __future__ import annotations

from tightbeam.plugins.schema import FLOAT, Input, Operator, Output

__all__ = ["BEAM_TOP_K"]

BODY = """
    zero = Constant <value = int64 {0}> ()
    one = Constant <value = int64 {1}> ()
    axis0 = Constant <value = int64[1] {0}> ()
    axis1 = Constant <value = int64[1] {1}> ()
    minus_one = Constant <value = int64[1] {-1}> ()
    zero_float = Constant <value = float {0}> ()
    minus_inf = Constant <value = float {-inf}> ()
    plus_inf = Constant <value = float {inf}> ()

    beam_shape = Shape (beam_scores)
    lengths64 = Cast <to = 7> (lengths)
    lengths_column = Unsqueeze (lengths64, axis1)
    lengths_beams = Expand (lengths_column, beam_shape)
    lengths_rows = Reshape (lengths_beams, minus_one)

    logits32 = Cast <to = 1> (logits)
    log_probabilities = LogSoftmax <axis = -1> (logits32)
    chosen = Where (normalize, log_probabilities, logits32)

    width = ReduceMax <keepdims = 1> (lengths64)
    used_history = Slice (history, axis0, width, axis1)
    width_scalar = Squeeze (width)
    positions = Range (zero, width_scalar, one)
    positions_row = Unsqueeze (positions, axis0)
    lengths_rows_column = Unsqueeze (lengths_rows, axis1)
    counts = Less (positions_row, lengths_rows_column)
    first_token = Slice (used_history, axis0, axis1, axis1)
    seen_tokens = Where (counts, used_history, first_token)
    seen_scores = GatherElements <axis = 1> (chosen, seen_tokens)
    is_negative = Less (seen_scores, zero_float)
    multiplied = Mul (seen_scores, repetition_penalty)
    divided = Div (seen_scores, repetition_penalty)
    penalised_scores = Where (is_negative, multiplied, divided)
    penalised = ScatterElements <axis = 1> (chosen, seen_tokens, penalised_scores)

    lengths_rows32 = Cast <to = 6> (lengths_rows)
    blocked = tightbeam.NGramBlock (penalised, seen_tokens, lengths_rows32, no_repeat_ngram_size)

    no_entry = Less (banned, zero)
    banned_token = Where (no_entry, zero, banned)
    banned_update = Where (no_entry, plus_inf, minus_inf)
    allowed = ScatterElements <axis = 1, reduction = "min"> (blocked, banned_token, banned_update)

    row_scores, row_tokens = TopK <axis = -1, largest = 1, sorted = 1> (allowed, candidates)
    beam_column_shape = Constant <value = int64[2] {-1, 1}> ()
    beam_column = Reshape (beam_scores, beam_column_shape)
    total = Add (row_scores, beam_column)
    B = Shape <start = 0, end = 1> (beam_scores)
    sample_shape = Concat <axis = 0> (B, minus_one)
    total_by_sample = Reshape (total, sample_shape)
    tokens_by_sample = Reshape (row_tokens, sample_shape)
    scores, index = TopK <axis = -1, largest = 1, sorted = 1> (total_by_sample, candidates)
    beams = Div (index, candidates)
    tokens = GatherElements <axis = 1> (tokens_by_sample, index)
"""

BEAM_TOP_K = Operator(
    "BeamTopK",
    "beam_top_k",
    (
        Input("logits", FLOAT, "B M, vocabulary", "logits of the next token"),
        Input("beam_scores", "float32", "B, M", "score of each beam so far"),
        Input("history", "int64", "B M, T", "tokens of each row, left-aligned"),
        Input("lengths", "int32", "B", "tokens of the sample so far, 1..T"),
        Input("banned", "int64", "B M, P", "tokens that get -inf; -1 where there is none"),
        Input("normalize", "bool", "", "log-softmax first (beam search), or not (greedy search)", scalar=True),
        Input("repetition_penalty", "float32", "", "on every token of the row; 1 changes nothing", scalar=True),
        Input("no_repeat_ngram_size", "int64", "", "n of NGramBlock; 0 blocks nothing", scalar=True),
        Input("candidates", "int64", "", "C, at most the vocabulary", scalar=True, gives="C", at_most="vocabulary"),
    ),
    (
        Output("scores", "float32", "B, C", "beam score + token score, descending"),
        Output("beams", "int64", "B, C", "beam 0..M-1 that a candidate continues"),
        Output("tokens", "int64", "B, C", "its token"),
    ),
    lambda present: BODY,
    may_be_zero=("P",),
)
