"""Train the demo model that comes with the repository: a small BART that writes headlines for made-up reports.

Everything starts from nothing: the text (`reports.py`), the tokenizer and the weights. The same arguments give
the same files on the same machine.

    python -m tools.demo.train --output export/demo --steps 3000 --seed 0
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from tokenizers import Tokenizer, decoders, processors
from transformers import AutoTokenizer, BartConfig, BartForConditionalGeneration, GenerationConfig
from transformers.utils import logging as transformers_logging

from tools.demo.reports import Report, facts_right, generate, stream
from tools.training import (
    IGNORED,
    Recipe,
    byte_pairs,
    console,
    make_repeatable,
    padded,
    train,
    write_checkpoint,
    write_json,
)

THREADS = 2  # part of the recipe: another number sums in another order and gives other weights
SPECIAL_TOKENS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]  # ids 0 to 4, as in every BART
BOS, PAD, EOS = 0, 1, 2
VOCABULARY = 1400
POSITIONS = 256
BUCKET_BATCHES = 32  # batches that are sorted by length together
SIZE_LIMIT_BYTES = 4 * 2**20
HELD_OUT_SEED = 1  # the reports that the score is measured on
EXAMPLES_SEED = 2  # the reports in examples.txt
COPIES = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight")
"""Tied weights, which are stored once, under the name that transformers reads."""


@dataclass(frozen=True)
class Score:
    """Shares of held-out reports, 0 to 1."""

    exact: dict[str, float]
    """The headline is one of the admissible ones, letter for letter; by search."""
    facts: dict[str, float]
    """Every fact that the headline mentions is right, and where, how many and what are mentioned; by search."""
    differ: float
    """Greedy search and beam search write different headlines."""
    reports: int


def train_tokenizer(seed: int) -> Tokenizer:
    """Byte-level BPE over the training text. All 256 bytes are in the vocabulary, so no input is unknown."""
    reports = generate(seed, 20_000)
    texts = (line for report in reports for line in (report.text, *report.headlines))
    # With a space before the first word, a name is the same token at every position, and is easier to copy.
    tokenizer = byte_pairs(texts, VOCABULARY, SPECIAL_TOKENS, prefix_space=True)
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", BOS), ("</s>", EOS)]
    )
    return tokenizer


def new_model(vocabulary: int) -> BartForConditionalGeneration:
    """A BART of about 1.4 million parameters with random weights."""
    config = BartConfig(
        vocab_size=vocabulary,
        max_position_embeddings=POSITIONS,
        d_model=128,
        encoder_layers=3,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=512,
        decoder_ffn_dim=512,
        activation_function="gelu",
        scale_embedding=True,
        dropout=0.0,  # every training report is new, so there is nothing to overfit
        init_std=0.04,
        bos_token_id=BOS,
        pad_token_id=PAD,
        eos_token_id=EOS,
        decoder_start_token_id=EOS,
    )
    return BartForConditionalGeneration(config)


def search_defaults() -> GenerationConfig:
    """Generation defaults of a typical BART summariser, long enough for one headline."""
    return GenerationConfig(
        bos_token_id=BOS,
        pad_token_id=PAD,
        eos_token_id=EOS,
        decoder_start_token_id=EOS,
        forced_bos_token_id=BOS,
        forced_eos_token_id=EOS,
        num_beams=4,
        no_repeat_ngram_size=3,
        early_stopping=True,
        length_penalty=1.0,
        max_length=48,
    )


def training_batches(tokenizer: Tokenizer, recipe: Recipe) -> Iterator[dict[str, torch.Tensor]]:
    """Endless batches of new reports; reports of similar length share a batch."""
    rng = random.Random(recipe.seed)
    reports = stream(recipe.seed)
    while True:
        bucket = list(islice(reports, recipe.batch * BUCKET_BATCHES))
        targets = [rng.choices(report.headlines, report.weights)[0] for report in bucket]
        sources = [encoding.ids for encoding in tokenizer.encode_batch([report.text for report in bucket])]
        labels = [encoding.ids for encoding in tokenizer.encode_batch(targets)]
        order = sorted(range(len(bucket)), key=lambda index: len(sources[index]))
        starts = list(range(0, len(bucket), recipe.batch))
        rng.shuffle(starts)
        for start in starts:
            picked = order[start : start + recipe.batch]
            input_ids = padded([sources[index] for index in picked], PAD)
            yield {
                "input_ids": input_ids,
                "attention_mask": (input_ids != PAD).long(),
                "labels": padded([labels[index] for index in picked], IGNORED),
            }


def save(model: BartForConditionalGeneration, tokenizer: Tokenizer, folder: Path) -> None:
    """Write the checkpoint with float16 weights; float32 in `config.json` makes loading widen them."""
    folder.mkdir(parents=True, exist_ok=True)
    model.generation_config = search_defaults()
    write_checkpoint(folder, model, COPIES, torch.float16)
    tokenizer.save(str(folder / "tokenizer.json"))
    names = dict(zip(("bos_token", "pad_token", "eos_token", "unk_token", "mask_token"), SPECIAL_TOKENS, strict=True))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": POSITIONS,
        "model_input_names": ["input_ids", "attention_mask"],
        "clean_up_tokenization_spaces": False,
        "cls_token": SPECIAL_TOKENS[BOS],
        "sep_token": SPECIAL_TOKENS[EOS],
    }
    write_json(folder / "tokenizer_config.json", names | settings)


def write_headlines(folder: Path, reports: list[Report], **search: int) -> list[str]:
    """Headlines for the reports, from the checkpoint in `folder`, loaded as a user loads it."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model: Any = BartForConditionalGeneration.from_pretrained(folder)
    headlines: list[str] = []
    for start in range(0, len(reports), 50):
        texts = [report.text for report in reports[start : start + 50]]
        batch = tokenizer(texts, return_tensors="pt", padding=True, truncation=True)
        tokens = model.generate(**batch, **search)
        headlines += tokenizer.batch_decode(tokens, skip_special_tokens=True)
    return headlines


def measure(folder: Path, reports: list[Report]) -> Score:
    """Score the folder's weights, which are rounded to float16."""
    with console.status(f"writing headlines for {len(reports)} held-out reports"):
        found = {"greedy": write_headlines(folder, reports, num_beams=1), "beam 4": write_headlines(folder, reports)}

    def share(is_good: Callable[[str, Report], bool], headlines: list[str]) -> float:
        return sum(map(is_good, headlines, reports)) / len(reports)

    return Score(
        exact={search: share(lambda line, report: line in report.headlines, lines) for search, lines in found.items()},
        facts={search: share(facts_right, lines) for search, lines in found.items()},
        differ=sum(map(str.__ne__, found["greedy"], found["beam 4"])) / len(reports),
        reports=len(reports),
    )


def check_no_repeats(tokenizer: Tokenizer, reports: list[Report], length: int) -> None:
    """Raise ValueError if an admissible headline repeats `length` tokens, which `no_repeat_ngram_size` would forbid."""
    for headline in (headline for report in reports for headline in report.headlines):
        ids = tokenizer.encode(headline).ids
        runs = [tuple(ids[start : start + length]) for start in range(len(ids) - length + 1)]
        if len(set(runs)) < len(runs):
            raise ValueError(f"no_repeat_ngram_size={length} forbids the headline {headline!r}: change the tokenizer")


def pick_examples() -> list[Report]:
    """Twelve held-out reports for people to try: the six shortest and the six longest of a hundred, mixed."""
    by_length = sorted(generate(EXAMPLES_SEED, 100, held_out=True), key=lambda report: len(report.text))
    return [report for pair in zip(by_length[:6], by_length[-6:], strict=True) for report in pair]


CARD = """---
license: apache-2.0
language: en
library_name: transformers
pipeline_tag: summarization
---
# Demo model: headlines for made-up reports

A very small BART ({parameters:,} parameters, vocabulary {vocabulary}, {positions} positions) that reads a report of
three to five sentences and writes a one-line headline. It is here so that Tightbeam can be tried and tested without a
download: its output can be checked by eye, because every name, town, number and date must come from the report.
It knows only the kind of text it was trained on: other text gives a headline of no value, and a name that it never saw
comes out as one that it knows.

## How it was made
From nothing, by one command that gives the same weights again on the same machine:

    {command}

Text, tokenizer and weights are all made by that script. The text comes from the grammar in `tools/demo/reports.py`;
nothing in it is copied, and any likeness to a real person or place is chance. Training took {steps} steps of {batch}
reports, none seen twice, and {minutes:.0f} minutes of wall clock on {threads} threads.
Every event has several admissible headlines, drawn at random, so the wording is ambiguous on purpose and search
strategies differ.

## Score
On {reports} held-out reports, with the float16 weights in this folder, widened to float32. No town, number and person
that meet in a held-out report met in training.

| | greedy | beam 4 |
|---|---|---|
| all facts right | {facts_greedy:.1%} | {facts_beam:.1%} |
| equal to an admissible headline | {exact_greedy:.1%} | {exact_beam:.1%} |

Greedy search and beam 4 write different headlines for {differ:.1%} of these reports.

## Example
{example}

## Files
{files}

`examples.txt` has twelve more held-out reports, one a line. Licence: Apache-2.0, as the rest of the repository.
"""


def write_card(folder: Path, recipe: Recipe, score: Score, seconds: float, example: Report) -> str:
    """Write the model card from the measurements, and return it."""
    model = BartForConditionalGeneration.from_pretrained(folder)
    sizes = {path.name: path.stat().st_size for path in sorted(folder.iterdir()) if path.name != "README.md"}
    rows = "\n".join(f"| `{name}` | {size:,} |" for name, size in sizes.items())
    card = CARD.format(
        parameters=model.num_parameters(),
        vocabulary=model.config.vocab_size,
        positions=POSITIONS,
        command=f"python -m tools.demo.train --output export/demo --steps {recipe.steps} --seed {recipe.seed}",
        steps=recipe.steps,
        batch=recipe.batch,
        minutes=seconds / 60,
        threads=THREADS,
        reports=score.reports,
        facts_greedy=score.facts["greedy"],
        facts_beam=score.facts["beam 4"],
        exact_greedy=score.exact["greedy"],
        exact_beam=score.exact["beam 4"],
        differ=score.differ,
        example=f"> {example.text}\n\n" + "\n".join(f"    {line}" for line in write_headlines(folder, [example])),
        files="| file | bytes |\n|---|---|\n" + rows,
    )
    (folder / "README.md").write_text(card, encoding="utf-8")
    return card


def main(
    output: Annotated[Path, typer.Option(help="Folder to write.")] = Path("export/demo"),
    steps: Annotated[int, typer.Option(min=1, help="Training steps.")] = 3600,
    seed: Annotated[int, typer.Option(help="Seed of text, weights and order.")] = 0,
    held_out: Annotated[int, typer.Option(min=1, help="Reports in the score.")] = 500,
) -> None:
    """Train the demo model from nothing, measure it, and write its card."""
    transformers_logging.disable_progress_bar()
    make_repeatable(seed, THREADS)
    recipe = Recipe(steps=steps, seed=seed)
    reports = generate(HELD_OUT_SEED, held_out, held_out=True)
    tokenizer = train_tokenizer(seed)
    check_no_repeats(tokenizer, generate(seed, 5_000) + reports, search_defaults().no_repeat_ngram_size)
    model = new_model(tokenizer.get_vocab_size())
    console.log(f"{model.num_parameters():,} parameters, {tokenizer.get_vocab_size()} tokens")
    started = time.perf_counter()
    train(model, recipe, training_batches(tokenizer, recipe), lambda batch: model(**batch).loss)
    seconds = time.perf_counter() - started

    save(model, tokenizer, output)
    (output / "examples.txt").write_text("".join(f"{report.text}\n" for report in pick_examples()), encoding="utf-8")
    console.print(write_card(output, recipe, measure(output, reports), seconds, reports[0]), markup=False)
    size = sum(path.stat().st_size for path in output.iterdir())
    if size > SIZE_LIMIT_BYTES:
        raise SystemExit(f"larger than {SIZE_LIMIT_BYTES / 2**20:.0f} MiB: make the model or the vocabulary smaller")


if __name__ == "__main__":
    typer.run(main)
