"""The cross-attentions that say which part of the source a token comes from: a translator's are chosen here.

A new token comes from the source token without which it would be least likely: the text is translated once, and the
model then reads it again with one token after the other masked. The layer is chosen whose attention, averaged over its
heads, names the same tokens most often.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tightbeam.deploy.bundle.manifest import AlignmentEntry, is_translator
from tightbeam.export.accuracy.activations import AttentionActivations, decoder_activations
from tightbeam.export.accuracy.reference import TextSamples, greedy, samples_of
from tightbeam.export.checkpoint.alignment import alignment_of
from tightbeam.export.checkpoint.load import Checkpoint
from tightbeam.export.checkpoint.quiet import quiet_transformers
from tightbeam.export.errors import ExportError

__all__ = ["choose_alignment"]

TEXTS = (
    "The red car stopped in front of the old school.",
    "Anna bought three apples at the market on Monday.",
    "My brother lives in Paris and works in London.",
    "Will the children visit their grandmother tomorrow?",
)
"""Short, since the model reads a text once for each of its tokens."""
LEAST_DROP = 0.5
"""Nats that a new token loses without the source token that it comes from; others come from what was written before."""


def choose_alignment(checkpoint: Checkpoint, texts: tuple[str, ...] | None = None) -> AlignmentEntry | None:
    """Choose the heads that align a checkpoint's output with its source.

    Parameters
    ----------
    checkpoint
        A checkpoint of any family.
    texts
        Texts in the language that it reads, of which the first four are taken; by default English ones.

    Returns
    -------
    AlignmentEntry or None
        A Whisper's own heads. Of a translator all heads of one layer, and the share of new tokens for which they agree
        with the tokens that were left out; if no token depends on one source token, or torch cannot generate, the last
        layer but one, as Garg et al. (2019) found, and no share. None for other models.

    Raises
    ------
    ExportError
        The own heads are wrong.
    """
    sizes = checkpoint.sizes
    if not _translates(checkpoint):
        return alignment_of(checkpoint)
    try:
        agreed, counted = _agreement(checkpoint, (texts or TEXTS)[: len(TEXTS)])
    except ExportError:  # an export without the comparison does without torch's tokens
        agreed, counted = torch.zeros(sizes.L), 0
    best = int(agreed.argmax()) if agreed.any() else max(0, sizes.L - 2)
    heads = tuple((best, head) for head in range(sizes.H))
    return AlignmentEntry(heads=heads, agreement=round(float(agreed[best]) / counted, 4) if agreed.any() else None)


def _agreement(checkpoint: Checkpoint, texts: tuple[str, ...]) -> tuple[Tensor, int]:
    """Count new tokens: those for which each layer agrees [L], and all that depend on a source token."""
    sizes = checkpoint.sizes
    samples = samples_of(checkpoint, texts)
    assert isinstance(samples, TextSamples)
    special = torch.tensor(getattr(checkpoint.tokenizer, "all_special_ids", []), dtype=torch.long)
    agreed, counted = torch.zeros(sizes.L), 0
    for index, target in enumerate(greedy(checkpoint, samples)):
        sample = samples.alone(index)
        arguments = sample.arguments(checkpoint.model.dtype)
        hidden = torch.isin(arguments["inputs"][0], special)  # [N]
        drops = _drops(checkpoint, sample, target).masked_fill(hidden, -torch.inf)
        counts = drops.amax(dim=1) > LEAST_DROP
        wanted = drops.argmax(dim=1)
        for layer, seen in enumerate(decoder_activations(checkpoint, arguments, [target])[0]):
            found = _attention(seen)[:-1].masked_fill(hidden, -torch.inf).argmax(dim=1)
            agreed[layer] += ((found == wanted) & counts).sum()
        counted += int(counts.sum())
    return agreed, counted


def _translates(checkpoint: Checkpoint) -> bool:
    """True for a translator whose decoder attends to its source by itself."""
    family, sizes = checkpoint.family, checkpoint.sizes
    if family.is_speech or family.reads_images or sizes.one_softmax or sizes.G != sizes.H:
        return False
    return is_translator(family.model_type, checkpoint.generation_config)


def _drops(checkpoint: Checkpoint, sample: TextSamples, target: list[int]) -> Tensor:
    """The log-probability that each new token loses without each source token [T - 1, N]."""
    (row,) = sample.rows
    N = len(row)
    mask = torch.ones(N + 1, N, dtype=torch.long)
    mask[range(1, N + 1), range(N)] = 0
    model, given = checkpoint.model, torch.tensor([target]).expand(N + 1, -1)
    with torch.no_grad(), quiet_transformers(), checkpoint.family.attention_interface(model):
        logits = model(
            input_ids=torch.tensor([row]).expand(N + 1, -1),
            attention_mask=mask,
            decoder_input_ids=given,
            use_cache=False,
        ).logits
    likely = logits[:, :-1].log_softmax(dim=-1).gather(-1, given[:, 1:, None])[..., 0]  # [N + 1, T - 1]
    drops: Tensor = (likely[:1] - likely[1:]).T
    return drops


def _attention(seen: AttentionActivations) -> Tensor:
    """The attention [T, N] of one sample, averaged over the heads."""
    scores = seen.scale * seen.query[0] @ seen.key[0].transpose(1, 2) + seen.mask[0]
    weights: Tensor = scores.softmax(dim=-1).mean(dim=0)
    return weights
