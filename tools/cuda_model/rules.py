"""Facts of a call that the sources do not say: loops whose bounds lie in data, lines that a call does not execute."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

__all__ = ["COLD", "LOOPS", "names_of"]

LOOPS = {
    r"for \(int i = 0; i < parts; \+\+i": "joined_parts",
    # Keys that reach the bound are about as many as are wanted; every thread's own key is compared for the bound.
    r"rank \+= precedes.*rank_among\(mine, best, threads\)": "threads",
    r"rank \+= precedes": "C",
    r"for \(int i = thread; i < count": "1",
    # Without a repetition penalty the second list is empty; few of a warp's threads have a token that is wanted.
    r"for \(int list = 0; list < w\.lists": "lists_made",
    r"unsigned threads = __ballot_sync": "2",
    # Rows that the beams of a history name, each once, in tiles of 16 and one of the newest position.
    r"tile < rows\.tiles": "row_tiles",
    r"slots != 0; slots &= slots - 1": "rows_of_position",
    r"beam = first_beam; beam < end_beam": "M",
    r"for \(int begin = span\.begin; begin <= span\.newest; begin \+= plan\.stretch": "stretches",
    r"for \(int i = 1; i < parts_": "parts - 1",
    # The last tokens are compared from the newest back; it mostly ends after one.
    r"for \(int back = 1; back < n": "1",
}
"""Pattern of a loop's source line -> its trips."""

COLD: dict[str, Callable[[Mapping[str, float]], bool]] = {
    r"lse = \*prefix_lse|prefix_weight = quick_exp|sum = weight \* own|share\.y": lambda names: (
        not names.get("prefix_lse_given")
    ),
    r"dot \* key_scale\(": lambda names: not names.get("key_scales_given"),
    r"a_\.distance_bias\[bias_": lambda names: not names.get("distance_bias_given"),
    r"tiles\.join\(\)": lambda names: names.get("parts") == 1,
    # A row at a node of a trie; many equal logits; forbidden or penalised tokens; what one warp of a block does.
    r"forbid_all_but_children\(a, node|slice\.begin < a\.C|lowest": lambda names: True,
    r"find_bound\(C, memory\.capacity|keep_from\(bound, ~Key": lambda names: True,
    r"taken & ~forbids\) >> i": lambda names: True,
    r"fmaxf\(row_max, maxima\[i\]\)|row_sum \+= sums\[i\] \* quick_exp": lambda names: True,
    r"not_a_number\(\)": lambda names: True,
}
"""Pattern of a source line, or of one that it is inlined at -> True for a call that does not execute it."""


def names_of(kernel: str, given: Mapping[str, float]) -> dict[str, float]:
    """Numbers that kernels derive from their parameters and the place of a block, for an ordinary block of a call of
    full length. ``kernel``: its bare name; ``given``: parameters, template values, sizes and the launch."""
    names = dict(given)
    H, M, G, K = (names.get(name, 1) for name in ("H", "M", "G", "K"))
    T = names.get("T", 0)
    end = names.get("positions", T)
    names.setdefault("begin", 0)
    names.setdefault("end", end)
    names |= {"newest": T - 1, "length": T, "threads": names["block"], "ngram_size": 0, "NUMBERS": 8}
    names |= {"SIZE": 8, "has_rotation": names.get("ROTATED", 0), "first_column": 0, "first_task": 0}
    names.setdefault("D", G * K)
    names.setdefault("Q", H // G)
    columns = names.get("COLUMNS", 64)
    group_columns = names["D"] if G == 1 else K * max(1, 16 // max(1, H // G * (M if "TILES" in names else 1)))
    # Shares of a score: from the warps whose columns the query has.
    names |= {"first_warp": 0, "end_warp": max(1, -(-group_columns // columns))}
    if "tiles" in names:
        names.setdefault("TILES", names["tiles"])
    if "TILES" in names:
        groups = G if kernel.startswith("source_attention") else 1  # a block of it has the queries of one key head
        names["queries"] = min(16 * names["TILES"], M * H // groups)
    if "QUERIES" in names:
        names.setdefault("queries", names["QUERIES"])
    if "parts" in names and "block" in names:
        tasks = M * -(-(H // G) // names.get("QUERIES", 1))
        names.setdefault("tasks", tasks)
    names["joined_parts"] = names.get("prefix_lse_given", 0) + names.get("parts", 1)
    # The list of penalised tokens is left out where the penalty is 1; not yet where slices had no own number of tokens.
    names["lists_made"] = 1 if "tokens" in names else names.get("lists", 1)
    if "named_rows" in names and "stretch" in names:
        stretches = math.ceil(T / names["stretch"])
        tiles = math.ceil(names["named_rows"] / stretches / 16) + math.ceil(M / 16) / stretches
        names |= {"stretches": stretches, "row_tiles": math.ceil(tiles / names["parts"])}
        names |= {"rows_of_position": math.ceil(names["named_rows"] / T), "newest": T - 1}
    if kernel.startswith("combine_splits"):
        names["joined_parts"] = names["splits"]
    if kernel == "ngram_block":  # one block's slice of a row, which mostly begins beside an aligned address
        names |= {"count": names["vocabulary"] // names["grid_y"], "head": 1}
    return names
