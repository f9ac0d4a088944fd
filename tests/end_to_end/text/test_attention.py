"""``return_attention``: the attention of a translator's tokens to its source is that of transformers' model."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForSeq2SeqLM

from support.bundles.cache import BundleCache
from support.commands import SHORT, caller
from tightbeam.deploy import GenerationError, Runner
from tightbeam.export.accuracy.alignment_layer import choose_alignment

ROWS = [[5, 9, 17, 30, 2], [7, 8, 2], [40, 3, 12, 12, 33, 6, 2]]
ASKED: dict[str, Any] = {"max_new_tokens": 8, "return_attention": True}


def expected(bundles: BundleCache, family: str, runner: Runner, source: list[int], sequence: list[int]) -> Any:
    """The attention [T, N] by transformers, averaged over the heads of the bundle's layer."""
    folder = bundles.trace(family)[0].path
    model = AutoModelForSeq2SeqLM.from_pretrained(folder, attn_implementation="eager").eval()
    about = runner.manifest.alignment
    assert about is not None
    ids = torch.tensor([source]), torch.tensor([sequence])
    with torch.no_grad():
        out = model(input_ids=ids[0], decoder_input_ids=ids[1], output_attentions=True, use_cache=False)
    return out.cross_attentions[about.heads[0][0]][0].mean(dim=0).numpy()


@pytest.mark.parametrize(
    ("family", "variant", "beams"),
    [("marian", "dedup", 1), ("marian", "kcache", 3), ("m2m_100", "el", 40), ("mbart", "baseline", 2)],
)
def test_attention_equals_the_models(bundles: BundleCache, family: str, variant: str, beams: int) -> None:
    runner = Runner.load(bundles(variant, family), threads=1)
    found = runner.generate(ROWS, num_beams=beams, **ASKED)
    plain = runner.generate(ROWS, num_beams=beams, max_new_tokens=8)
    assert found.sequences.tolist() == plain.sequences.tolist() and plain.attentions is None
    assert found.attentions is not None
    for source, sequence, new, weights in zip(ROWS, found.sequences, found.new_tokens, found.attentions, strict=True):
        assert weights.shape == (new, len(source))
        wanted = expected(bundles, family, runner, source, sequence[: 1 + new].tolist())
        np.testing.assert_allclose(weights, wanted[:-1], atol=2e-6)


def test_padding_gets_no_attention(bundles: BundleCache) -> None:
    runner = Runner.load(bundles("dedup", "marian"), threads=1)
    ids = np.array([[1, 1, *ROWS[1], 1], [*ROWS[0], 1]])
    mask = np.array([[0, 0, 1, 1, 1, 0], [1, 1, 1, 1, 1, 0]])
    (padded, right), alone = runner.generate(ids, mask, **ASKED).attentions or (), runner.generate([ROWS[0]], **ASKED)
    assert not padded[:, mask[0] == 0].any() and not right[:, 5:].any()
    np.testing.assert_allclose(padded.sum(axis=1), 1, rtol=1e-6)
    assert alone.attentions is not None
    np.testing.assert_allclose(right[:, :5], alone.attentions[0], atol=2e-6)


def test_sequences_and_scores_together(bundles: BundleCache) -> None:
    runner = Runner.load(bundles("dedup", "marian"), threads=1)
    both = runner.generate(ROWS, num_beams=3, num_return_sequences=2, return_token_scores=True, **ASKED)
    assert both.attentions is not None and both.token_scores is not None and len(both.attentions) == 6
    scores = runner.generate(ROWS, num_beams=3, num_return_sequences=2, return_token_scores=True, max_new_tokens=8)
    np.testing.assert_array_equal(both.token_scores, scores.token_scores)
    drawn = runner.generate(ROWS, do_sample=True, seed=3, num_return_sequences=3, **ASKED)
    assert [len(weights) for weights in drawn.attentions or ()] == list(drawn.new_tokens)


def test_the_command_writes_it(
    bundles: BundleCache, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    call = caller(monkeypatch, capsys)
    bundle, line = bundles("dedup", "marian"), json.dumps(ROWS[0]).encode()
    (record,) = call(bundle, "--ids", "--json", "--return-attention", *SHORT, stdin=line).succeeded().records
    assert np.array(record["attention"]).shape == (len(record["tokens"]), len(ROWS[0]))
    assert record["attention"][0] == [0] * len(ROWS[0])  # of the start token
    call(bundle, "--ids", "--return-attention", stdin=line).failed("return_attention=True is more than a line of text")


@pytest.mark.parametrize("family", ["bart", "gpt2"])
def test_models_that_do_not_translate_have_none(bundles: BundleCache, family: str) -> None:
    runner = Runner.load(bundles("dedup", family), threads=1)
    assert runner.manifest.alignment is None
    with pytest.raises(GenerationError, match="has no alignment heads, which exports of translators have; leave it"):
        runner.generate([[5, 6]], **ASKED)


def test_it_is_more_than_texts(bundles: BundleCache) -> None:
    runner = Runner.load(bundles("dedup", "marian", tokenizer=True), threads=1)
    with pytest.raises(
        GenerationError, match=r"return_attention=True is more than texts; call Runner\.generate_outputs"
    ):
        runner.generate_text(["a town"], return_attention=True)
    (output,) = runner.generate_outputs(["a small town"], **ASKED)
    assert output.attentions is not None and output.attentions[0].shape[1] == output.source_tokens


@pytest.mark.parametrize(
    "other", [{"num_beams": 2, "num_beam_groups": 2, "diversity_penalty": 1.0}, {"force_words_ids": [[7]]}]
)
def test_searches_without_it(bundles: BundleCache, other: dict[str, Any]) -> None:
    """Groups of beams and forced words gave nothing, in silence. Documents do without it."""
    runner = Runner.load(bundles("dedup", "marian", tokenizer=True), threads=1)
    with pytest.raises(GenerationError, match="does not go with return_attention; leave one out"):
        runner.generate([[5, 6]], **ASKED, **other)
    made = runner.translate_document(
        b"<p>The <i>old</i> town.</p>", document_format="html", max_new_tokens=8, **{"num_beams": 2, **other}
    )
    assert b"<i>" in made.data and made.reports == []


def test_the_layer_is_chosen_by_the_tokens_that_are_left_out(bundles: BundleCache) -> None:
    """A model whose layer 0 alone reads the source: its attention is all that a source token can act by."""
    checkpoint, _ = bundles.trace("marian")
    about = choose_alignment(checkpoint)
    assert about is not None and len({layer for layer, _ in about.heads}) == 1
    assert [head for _, head in about.heads] == list(range(checkpoint.sizes.H))
    assert choose_alignment(bundles.trace("bart")[0]) is None
