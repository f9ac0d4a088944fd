"""Train the zoo's Marian type: it translates sentences of the grammar from English into Spanish.

Everything starts from nothing: the text, the tokenizer and the weights. The same arguments give the same files on the
same machine, but for the time that README.md names.

    python -m tools.zoo.marian --output build/zoo/marian
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from tokenizers import decoders, processors
from transformers import GenerationConfig, MarianConfig, MarianMTModel, PreTrainedTokenizerFast

from tools.training import IGNORED, Recipe, byte_pairs, console, make_repeatable, padded, train, write_checkpoint
from tools.zoo import _recipe, grammar

SPECIAL_TOKENS = ["</s>", "<unk>"]
EOS = 0
POSITIONS = 256
TESTS_SEED = 1  # of the sentences that the model is tried on
COPIES = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight")
"""Tied weights, which are stored once."""
COMPUTED = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")
"""Weights that no checkpoint of Marian stores."""


@dataclass(frozen=True)
class Plan:
    """The sizes of the model, of its training and of its test."""

    recipe: Recipe
    vocabulary: int = 800
    width: int = 128
    layers: tuple[int, int] = (3, 2)
    """Of the encoder and of the decoder."""
    tests: int = 48


def new_tokenizer(pairs: list[tuple[str, str]], vocabulary: int) -> PreTrainedTokenizerFast:
    """Byte-level BPE over both languages; the last token is for padding, and starts each translation."""
    tokenizer = byte_pairs((text for pair in pairs for text in pair), vocabulary, SPECIAL_TOKENS, prefix_space=True)
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A $B </s>", special_tokens=[("</s>", EOS)]
    )
    tokenizer.add_special_tokens(["<pad>"])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="</s>",
        unk_token="<unk>",
        pad_token="<pad>",
        model_max_length=POSITIONS,
        clean_up_tokenization_spaces=False,
    )


def new_model(plan: Plan, vocabulary: int) -> Any:
    """A Marian with random weights: about 1.3 million parameters."""
    pad, heads = vocabulary - 1, plan.width // 32
    ends: dict[str, Any] = {
        "pad_token_id": pad,
        "decoder_start_token_id": pad,
        "eos_token_id": EOS,
        "forced_eos_token_id": EOS,
    }
    config = MarianConfig(
        vocab_size=vocabulary,
        max_position_embeddings=POSITIONS,
        d_model=plan.width,
        encoder_layers=plan.layers[0],
        decoder_layers=plan.layers[1],
        encoder_attention_heads=heads,
        decoder_attention_heads=heads,
        encoder_ffn_dim=4 * plan.width,
        decoder_ffn_dim=4 * plan.width,
        activation_function="swish",
        scale_embedding=True,
        dropout=0.0,  # every training line is new
        init_std=0.04,
        bos_token_id=EOS,
        **ends,
    )
    model = MarianMTModel(config)
    model.generation_config = GenerationConfig(
        bos_token_id=EOS, bad_words_ids=[[pad]], num_beams=4, max_length=96, **ends
    )
    return model


def pairs(seed: int, *, held_out: bool = False) -> Iterator[tuple[str, str]]:
    """Lines of one to three sentences in English, each with its Spanish, without end."""
    rng = random.Random(f"pairs {seed}")
    sentences = grammar.stream(seed, held_out=held_out)
    while True:
        line = list(islice(sentences, rng.choice((1, 1, 2, 3))))
        yield " ".join(sentence.en for sentence in line), " ".join(sentence.es for sentence in line)


def training_batches(tokenizer: Any, recipe: Recipe) -> Iterator[dict[str, torch.Tensor]]:
    """Endless batches of new lines."""
    pad, lines = tokenizer.pad_token_id, pairs(recipe.seed)
    while True:
        sources, targets = zip(*islice(lines, recipe.batch), strict=True)
        ids = padded(tokenizer(list(sources))["input_ids"], pad)
        labels = padded(tokenizer(list(targets))["input_ids"], IGNORED)
        yield {"input_ids": ids, "attention_mask": (ids != pad).long(), "labels": labels}


def _keep_zeros(embedding: torch.Tensor, token: int) -> None:
    """Leave the embedding of a token as zeros, in the logits too: published Marians' starts are so, and CTranslate2
    knows no other."""
    assert not embedding[token].any()
    embedding.register_hook(lambda gradient: gradient.index_fill(0, torch.tensor([token]), 0))


def make(plan: Plan, folder: Path, inputs: Path) -> None:
    """Train, save, and write the card.

    Parameters
    ----------
    plan : Plan
    folder, inputs : Path
        Empty folders, for the checkpoint and for what it is tried on.
    """
    recipe = plan.recipe
    make_repeatable(recipe.seed, _recipe.THREADS)
    tokenizer = new_tokenizer(list(islice(pairs(recipe.seed), 5000)), plan.vocabulary)
    model = new_model(plan, len(tokenizer))
    _keep_zeros(model.get_input_embeddings().weight, tokenizer.pad_token_id)
    console.log(f"marian: {model.num_parameters():,} parameters, {len(tokenizer)} tokens")
    started = time.perf_counter()
    train(model, recipe, training_batches(tokenizer, recipe), lambda batch: model(**batch).loss)
    seconds = time.perf_counter() - started
    write_checkpoint(folder, model, COPIES + COMPUTED, torch.float32)
    tokenizer.save_pretrained(folder)
    sources, right = map(list, zip(*islice(pairs(TESTS_SEED, held_out=True), plan.tests), strict=True))
    _recipe.write_lines(inputs / "lines.txt", sources)
    _recipe.write_lines(inputs / "references.txt", right)
    says = (
        f"A Marian of {model.num_parameters():,} parameters ({' and '.join(map(str, plan.layers))} layers, width "
        f"{plan.width}, vocabulary {len(tokenizer)}) that translates sentences of the grammar in "
        "`tools/zoo/grammar.py` from English into Spanish."
    )
    _recipe.write_card(folder, "marian", says, recipe, "lines, none seen twice but by chance", seconds)


def main() -> None:
    """Run the recipe."""
    _recipe.run("marian", 800, lambda steps, seed, folder, inputs: make(Plan(Recipe(steps, seed)), folder, inputs))


if __name__ == "__main__":
    main()
