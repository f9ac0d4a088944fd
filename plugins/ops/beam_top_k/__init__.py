"""BeamTopK: the search head, from the logits to the best C candidates of each sample.

Of equal scores, the lower beam comes first, then the lower token. The processors run in the order of transformers. Bans
may run in any order, since each of them sets scores to -inf.

A trie of allowed sequences (``deploy/tries/``) is three inputs; a node has all of them, or none. The trie's nodes are
numbers: 1 is the root, edge e leads to node e + 2, and 0 stands for no node. The edges of node n are
``trie_offsets[n]`` to ``trie_offsets[n + 1]``, in ascending order of their tokens. In a row at a node, every token
without an edge there scores -inf. A row at node 0 may go on with any token.
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

    row_scores, row_tokens = TopK <axis = -1, largest = 1, sorted = 1> (CONSTRAINED, candidates)
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

TRIE = """
    zero32 = Constant <value = int32 {0}> ()
    one32 = Constant <value = int32 {1}> ()
    next_nodes = Add (trie_nodes, one32)
    first_edge = Gather <axis = 0> (trie_offsets, trie_nodes)
    end_edge = Gather <axis = 0> (trie_offsets, next_nodes)
    edges = Sub (end_edge, first_edge)
    most_edges = ReduceMax <keepdims = 0> (edges)
    at_least_one = Max (most_edges, one32)
    edge_index = Range (zero32, at_least_one, one32)
    edge_row = Unsqueeze (edge_index, axis0)
    edges_column = Unsqueeze (edges, axis1)
    first_column = Unsqueeze (first_edge, axis1)
    is_edge = Less (edge_row, edges_column)
    edge_place = Add (first_column, edge_row)
    edge_safe = Where (is_edge, edge_place, zero32)
    no_token = Constant <value = int32[1] {0}> ()
    some_tokens = Concat <axis = 0> (trie_tokens, no_token)
    edge_tokens32 = Gather <axis = 0> (some_tokens, edge_safe)
    edge_tokens = Cast <to = 7> (edge_tokens32)
    edge_update = Where (is_edge, zero_float, minus_inf)
    scores_shape = Shape (allowed)
    all_out = Expand (minus_inf, scores_shape)
    outside = ScatterElements <axis = 1, reduction = "max"> (all_out, edge_tokens, edge_update)
    is_free = Equal (trie_nodes, zero32)
    is_free_column = Unsqueeze (is_free, axis1)
    mask = Where (is_free_column, zero_float, outside)
    constrained = Add (allowed, mask)
"""


def _body(present: frozenset[str]) -> str:
    if "trie_nodes" not in present:
        return BODY.replace("CONSTRAINED", "allowed")
    before, top_k, after = BODY.partition("    row_scores, ")
    return before + TRIE.removeprefix("\n") + (top_k + after).replace("CONSTRAINED", "constrained")


BEAM_TOP_K = Operator(
    "BeamTopK",
    "beam_top_k",
    (
        Input("logits", FLOAT, "B M, vocabulary", "logits of the next token"),
        Input("beam_scores", "float32", "B, M", "score of each beam so far"),
        Input("history", "int64", "B M, T", "tokens of each row, left-aligned"),
        Input("lengths", "int32", "B", "tokens of the sample so far, 1..T"),
        Input("banned", "int64", "B M, P", "tokens that get -inf; -1 fills unused places"),
        Input(
            "normalize",
            "bool",
            "",
            "true: log-softmax first (beam search); false: the logits themselves (greedy search)",
            scalar=True,
        ),
        Input("repetition_penalty", "float32", "", "applied to every token of the row; 1 changes nothing", scalar=True),
        Input("no_repeat_ngram_size", "int64", "", "n of NGramBlock; 0 blocks nothing", scalar=True),
        Input("candidates", "int64", "", "C, at most the vocabulary", scalar=True, gives="C", at_most="vocabulary"),
        Input("trie_offsets", "int32", "Y + 3", "first of each node's edges in a trie of Y edges", optional=True),
        Input("trie_tokens", "int32", "Y", "token of each edge", optional=True),
        Input("trie_nodes", "int32", "B M", "node of each row; 0: any token may follow", optional=True),
    ),
    (
        Output("scores", "float32", "B, C", "beam score + token score, descending"),
        Output("beams", "int64", "B, C", "beam 0..M-1 that the candidate continues"),
        Output("tokens", "int64", "B, C", "its token"),
    ),
    _body,
    may_be_zero=("P", "Y"),
)
