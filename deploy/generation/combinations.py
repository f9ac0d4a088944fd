"""Settings beside each other: combinations that no search can run, beyond the pairs in the table of `fields`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tightbeam.deploy.errors import Fix, GenerationError, Setting
from tightbeam.deploy.generation.options import GenerationOptions
from tightbeam.deploy.generation.settings import Settings
from tightbeam.deploy.tries.trie import ROOT

__all__ = ["check_beginning", "check_combinations"]

MOST_FORCED_ROWS = 1 << 14
"""Bound on the words of ``force_words_ids`` and their alternatives, by the beams: each may come next in each."""
MOST_DIVERSITY_PENALTY = 1e30
"""Largest penalty of which the sum over many beams is a float32 still."""


def check_combinations(settings: Settings, options: GenerationOptions) -> None:
    """Check settings that depend on one another.

    Parameters
    ----------
    settings : Settings
    options : GenerationOptions
        The search that they make; its lengths and prompt do not matter.

    Raises
    ------
    GenerationError
        Settings contradict each other.
    """
    _check_beam_groups(settings)
    if settings["force_words_ids"] and settings["num_beams"] < 2:
        raise settings.error("force_words_ids", "needs beams", fix=Fix("pass {} or more", Setting("num_beams", 2)))
    alternatives, most = sum(map(len, settings["force_words_ids"])), MOST_FORCED_ROWS // settings["num_beams"]
    if alternatives > most:
        problem = f"has {alternatives:,} words and alternatives for {settings['num_beams']:,} beams"
        raise settings.error("force_words_ids", problem, fix=f"pass {most:,} or fewer, or fewer beams")
    if options.renormalize and options.samples_beams:
        fix = Fix("pass {}, or leave it out", Setting("renormalize_logits", False))
        raise settings.error("renormalize_logits", "does not go with do_sample and beams", fix=fix)
    beams = options.num_beams
    if options.num_return_sequences > beams:
        problem = f"is more than num_beams={beams} can give"
        fix = Fix(f"pass {beams} or less, or {{}}", Setting("num_beams", options.num_return_sequences))
        raise settings.error("num_return_sequences", problem, fix=fix)
    if options.candidates > options.vocab_size and options.sampling is None:
        raise _too_many_candidates(settings, options)
    for name in ("forced_bos_token_id", "forced_eos_token_id"):
        tokens = (settings[name],) if isinstance(settings[name], int) else settings[name]
        if tokens and set(tokens) <= set(options.suppress_tokens):
            problem = "is also in suppress_tokens, so nothing could follow"
            raise settings.error(name, problem, fix="drop one of the two")


def check_beginning(settings: Settings, tokens: Sequence[int]) -> None:
    """Check that something may follow the tokens of ``decoder_input_ids`` in the trie of the settings, if there is one.

    Parameters
    ----------
    settings : Settings
    tokens : sequence of int
        The last tokens of ``decoder_input_ids``, which follow the trie from its root.

    Raises
    ------
    GenerationError
        The tokens leave the trie, or are a whole entry of it.
    """
    trie, node = settings["trie"], ROOT
    if trie is None:
        return
    for token in tokens:
        if token not in trie.children(node):
            problem = f"leaves {trie!r} with {token}"
            raise settings.error("decoder_input_ids", problem, fix="pass the beginning of an entry")
        node = int(trie.follow(np.array(node, np.int32), np.array(token)))
    if not len(trie.children(node)):
        problem = f"is an entry of {trie!r}, which nothing follows"
        raise settings.error("decoder_input_ids", problem, fix="pass fewer tokens")


def _check_beam_groups(settings: Settings) -> None:
    """Check the settings of diverse beam search.

    Source: transformers 4.56.2, the last release that has it; what it refuses is refused here.
    """
    beams, groups, penalty = (settings[name] for name in ("num_beams", "num_beam_groups", "diversity_penalty"))
    one_group, no_penalty = Setting("num_beam_groups", 1), Setting("diversity_penalty", 0.0)
    if groups == 1:
        if penalty:
            fix = Fix("pass {} or more, or {}", Setting("num_beam_groups", 2), no_penalty)
            raise settings.error("diversity_penalty", "is for groups of beams, and there is one group", fix=fix)
    elif beams % groups:
        fix = Fix(f"pass a multiple of {groups} as num_beams, or {{}} and {{}}", one_group, no_penalty)
        raise settings.error("num_beam_groups", f"does not divide num_beams={beams}", fix=fix)
    elif not 0 < penalty <= MOST_DIVERSITY_PENALTY:
        problem = "is not above 0, so all groups would be the same" if penalty <= 0 else "is too large"
        fix = Fix("pass a number such as 1.0, or {}", one_group)
        raise settings.error("diversity_penalty", problem, fix=fix)


def _too_many_candidates(settings: Settings, options: GenerationOptions) -> GenerationError:
    """Make the error about beams that need more distinct tokens than the vocabulary has."""
    beams, groups, vocabulary = options.num_beams, options.num_beam_groups, options.vocab_size
    most = vocabulary * beams // options.candidates
    fix: Fix | str = Fix("pass {} or less", Setting("num_beams", most)) if most else "pass fewer eos_token_id"
    if groups > 1:
        fix = "pass fewer beams, or more groups"
    in_groups = f"in {groups} groups " if groups > 1 else ""
    problem = f"{in_groups}needs {options.candidates} distinct tokens, the vocabulary has {vocabulary}"
    return settings.error("num_beams", problem, fix=fix)
