"""BeamAttention: self-attention over a cache that never moves, read through the beams' ancestry.

========================  =====================  ==========================================================
input                     type, shape            meaning
========================  =====================  ==========================================================
``query``                 float [R, H, 1, K]     the new token's queries, R = B x M rows
``key``                   float [R, G, 1, K]     the new token's key
``value``                 float [R, G, 1, V]     the new token's value
``key_cache``             float [R, G, T_max, K] room for T_max positions of each beam slot
``value_cache``           float [R, G, T_max, V] as the keys
``ancestry``              int32 [B, M, T]        which beam slot wrote position t of a beam's own history
``lengths``               int32 [B]              tokens of the sample so far, the new one included, 1..T
attribute ``scale``       float                  factor on the scores
output ``output``         float [R, H, 1, V]     attention over positions 0..lengths-1
``key_cache_out``         float [R, G, T_max, K] the cache with the new row at position lengths-1
``value_cache_out``       float [R, G, T_max, V] as the keys
========================  =====================  ==========================================================

Bind each cache's input and output to one buffer: the new row is then the only thing written. A beam update moves
nothing but ``ancestry``. What a cache holds beyond ``lengths`` must be finite; it never reaches the output.
"""

BEAM_ATTENTION = """
BeamAttention <scale> (query, key, value, key_cache, value_cache, ancestry, lengths)
    => (output, key_cache_out, value_cache_out) {
    zero = Constant <value = int64 {0}> ()
    one = Constant <value = int64 {1}> ()
    axis0 = Constant <value = int64[1] {0}> ()
    axis1 = Constant <value = int64[1] {1}> ()
    axis2 = Constant <value = int64[1] {2}> ()
    minus_one = Constant <value = int64[1] {-1}> ()

    ancestry64 = Cast <to = 7> (ancestry)
    lengths64 = Cast <to = 7> (lengths)
    B = Shape <start = 0, end = 1> (ancestry)
    M = Shape <start = 1, end = 2> (ancestry)
    T = Shape <start = 2, end = 3> (ancestry)
    beams = Shape <start = 0, end = 2> (ancestry)
    lengths_column = Unsqueeze (lengths64, axis1)
    lengths_beams = Expand (lengths_column, beams)
    lengths_rows = Reshape (lengths_beams, minus_one)
    write_at = Sub (lengths_rows, one)
    key_cache_out = TensorScatter <axis = -2> (key_cache, key, write_at)
    value_cache_out = TensorScatter <axis = -2> (value_cache, value, write_at)

    B_scalar = Squeeze (B)
    M_scalar = Squeeze (M)
    T_scalar = Squeeze (T)
    samples = Range (zero, B_scalar, one)
    first_row = Mul (samples, M_scalar)
    first_row_column = Unsqueeze (first_row, axis1)
    first_row_cube = Unsqueeze (first_row_column, axis2)
    source_row = Add (ancestry64, first_row_cube)
    rows_by_T = Concat <axis = 0> (minus_one, T)
    source_row_flat = Reshape (source_row, rows_by_T)
    source_row_heads = Unsqueeze (source_row_flat, axis1)

    G = Shape <start = 1, end = 2> (key_cache)
    C = Shape <start = 2, end = 3> (key_cache)
    G_scalar = Squeeze (G)
    heads = Range (zero, G_scalar, one)
    heads_column = Unsqueeze (heads, axis1)
    head_offset = Mul (source_row_heads, G)
    head_index = Add (head_offset, heads_column)
    positions = Range (zero, T_scalar, one)
    position_offset = Mul (head_index, C)
    index = Add (position_offset, positions)

    K_size = Shape <start = 3, end = 4> (key_cache)
    V_size = Shape <start = 3, end = 4> (value_cache)
    flat_keys = Concat <axis = 0> (minus_one, K_size)
    flat_values = Concat <axis = 0> (minus_one, V_size)
    key_rows = Reshape (key_cache_out, flat_keys)
    value_rows = Reshape (value_cache_out, flat_values)
    own_keys = Gather <axis = 0> (key_rows, index)
    own_values = Gather <axis = 0> (value_rows, index)

    positions_row = Unsqueeze (positions, axis0)
    lengths_rows_column = Unsqueeze (lengths_rows, axis1)
    seen = Less (positions_row, lengths_rows_column)
    axes12 = Constant <value = int64[2] {1, 2}> ()
    mask = Unsqueeze (seen, axes12)
    output = Attention <scale: float = @scale> (query, own_keys, own_values, mask)
}
"""
