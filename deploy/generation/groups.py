"""The settings of diverse beam search: ``num_beam_groups`` and ``diversity_penalty``.

Source: transformers 4.56.2, the last release that has them; what it refuses is refused here.
"""

from __future__ import annotations

from tightbeam.deploy.generation.fields import Fields

__all__ = ["read_groups"]

MOST = 1e30
"""The largest penalty: that of many beams together is a float32 still."""


def read_groups(fields: Fields, num_beams: int) -> tuple[int, float]:
    """Read the number of groups and the penalty.

    Parameters
    ----------
    fields : Fields
        Merged settings.
    num_beams : int

    Returns
    -------
    num_beam_groups : int
    diversity_penalty : float
        0 where there is one group.

    Raises
    ------
    GenerationError
        The groups do not divide the beams, the penalty is none, or another setting excludes groups.
    """
    groups = fields.integer("num_beam_groups", 1, minimum=1)
    penalty = fields.real("diversity_penalty", 0.0)
    if groups == 1:
        if penalty:
            fix = "pass num_beam_groups=2 or more, or diversity_penalty=0.0"
            raise fields.error("diversity_penalty", "is for groups of beams, and there is one group", fix)
        return 1, 0.0
    for name in ("do_sample", "return_token_scores", "return_alternatives"):
        if fields.get(name, False):
            raise fields.error("num_beam_groups", f"does not go with {name}", "leave one out")
    if num_beams % groups:
        raise fields.error(
            "num_beam_groups",
            f"does not divide num_beams={num_beams}",
            f"pass a multiple of {groups} as num_beams, or num_beam_groups=1 and diversity_penalty=0.0",
        )
    if not 0 < penalty <= MOST:
        problem = "is not above 0, so all groups would be the same" if penalty <= 0 else "is too large"
        raise fields.error("diversity_penalty", problem, "pass a number such as 1.0, or num_beam_groups=1")
    return groups, penalty
