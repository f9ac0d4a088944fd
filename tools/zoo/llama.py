"""Train the zoo's Llama type: it answers questions about sentences of the grammar, and writes on in docstrings.

Everything starts from nothing: the text, the tokenizer and the weights. The same arguments give the same files on the
same machine, but for the time that README.md names.

    python -m tools.zoo.llama --output build/zoo/llama
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
from tokenizers import decoders
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from tools.training import IGNORED, Recipe, byte_pairs, console, make_repeatable, train, write_checkpoint
from tools.zoo import _recipe, conversations, docstrings
from tools.zoo.conversations import Conversation

SPECIAL_TOKENS = ["<|endoftext|>", "<|end|>", "<|user|>", "<|assistant|>"]
END_OF_TEXT, END = 0, 1
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
"""It has no newline, so that a prompt is one line."""
LENGTH = 192  # tokens of a training sequence
POSITIONS = 1024
TESTS_SEED = 1  # of the conversations that the model is tried on


@dataclass(frozen=True)
class Plan:
    """The sizes of the model, of its training and of its test."""

    recipe: Recipe
    vocabulary: int = 3072
    width: int = 192
    layers: int = 4
    modules: int | None = None
    """Modules of the standard library to read; None reads all of them."""
    tests: int = 48


def new_tokenizer(texts: list[str], vocabulary: int) -> PreTrainedTokenizerFast:
    """Byte-level BPE with a chat template."""
    tokenizer = byte_pairs(texts, vocabulary, SPECIAL_TOKENS, prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<|endoftext|>",
        pad_token="<|endoftext|>",
        eos_token="<|end|>",
        additional_special_tokens=["<|user|>", "<|assistant|>"],
        chat_template=CHAT_TEMPLATE,
        model_max_length=POSITIONS,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


def new_model(plan: Plan, vocabulary: int) -> Any:
    """A Llama with random weights, grouped keys and a tied embedding: about 2.2 million parameters."""
    heads = plan.width // 32
    ends: dict[str, Any] = {"bos_token_id": END_OF_TEXT, "pad_token_id": END_OF_TEXT}
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=plan.width,
        intermediate_size=plan.width * 8 // 3,
        num_hidden_layers=plan.layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 3,
        max_position_embeddings=POSITIONS,
        tie_word_embeddings=True,
        initializer_range=0.05,  # less, and it takes hours until the attention looks anything up
        eos_token_id=END,
        **ends,
    )
    model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(eos_token_id=[END, END_OF_TEXT], **ends)
    return model


def chat(tokenizer: Any, conversation: Conversation) -> str:
    """A conversation in the model's format."""
    return str(tokenizer.apply_chat_template(conversation.messages(), tokenize=False))


def training_batches(tokenizer: Any, texts: list[str], recipe: Recipe) -> Iterator[dict[str, torch.Tensor]]:
    """Endless batches of rows of LENGTH tokens: two in five are parts of the docstrings, the others new conversations.

    Of a conversation only the answers are learned: the rest is drawn at random, and nothing can be known about it.
    """
    rng = random.Random(recipe.seed)
    running = torch.tensor([token for ids in tokenizer(texts)["input_ids"] for token in (*ids, END_OF_TEXT)])
    talks = conversations.stream(recipe.seed)
    while True:
        rows, labels = [], []
        for _ in range(recipe.batch * 2 // 5):
            start = rng.randrange(len(running) - LENGTH)
            rows.append(running[start : start + LENGTH])
            labels.append(rows[-1])
        while len(rows) < recipe.batch:
            ids: list[int] = []
            learned: list[int] = []
            while len(ids) < LENGTH:
                for question, answer in next(talks).turns:
                    asked, answered = tokenizer([f"<|user|>{question}<|end|><|assistant|>", f"{answer}<|end|>"])[
                        "input_ids"
                    ]
                    ids += asked + answered
                    learned += [IGNORED] * len(asked) + answered
                ids.append(END_OF_TEXT)
                learned.append(END_OF_TEXT)
            rows.append(torch.tensor(ids[:LENGTH]))
            labels.append(torch.tensor(learned[:LENGTH]))
        yield {"input_ids": torch.stack(rows), "labels": torch.stack(labels)}


def write_inputs(folder: Path, tokenizer: Any, plan: Plan) -> None:
    """Write held-out prompts with their answers, and held-out docstrings."""
    talks = list(islice(conversations.stream(TESTS_SEED, held_out=True), plan.tests))
    begin, answers = "<|assistant|>", [talk.turns[-1][1] for talk in talks]
    prompts = [chat(tokenizer, talk).rpartition(begin)[0] + begin for talk in talks]
    _recipe.write_lines(folder / "lines.txt", prompts)
    _recipe.write_lines(folder / "references.txt", answers)
    _recipe.write_lines(folder / "text.txt", docstrings.read(plan.modules, held_out=True)[:60])


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
    texts = docstrings.read(plan.modules)
    talks = [text for talk in islice(conversations.stream(recipe.seed), 2000) for turn in talk.turns for text in turn]
    tokenizer = new_tokenizer(texts + talks, plan.vocabulary)
    model = new_model(plan, len(tokenizer))
    console.log(f"llama: {model.num_parameters():,} parameters, {sum(map(len, texts)):,} characters of docstrings")
    started = time.perf_counter()
    train(
        model,
        recipe,
        training_batches(tokenizer, texts, recipe),
        lambda batch: model(**batch).loss,
    )
    seconds = time.perf_counter() - started
    write_checkpoint(folder, model, ("lm_head.weight",), torch.float32)
    tokenizer.save_pretrained(folder)
    write_inputs(inputs, tokenizer, plan)
    says = (
        f"A Llama of {model.num_parameters():,} parameters ({plan.layers} layers, width {plan.width}, vocabulary "
        f"{len(tokenizer)}, tied embedding) that answers questions about sentences of the grammar in "
        "`tools/zoo/grammar.py`, and continues docstrings."
    )
    _recipe.write_card(folder, "llama", says, recipe, f"sequences of {LENGTH} tokens", seconds)


def main() -> None:
    """Run the recipe."""
    _recipe.run(
        "llama",
        1200,
        lambda steps, seed, folder, inputs: make(
            Plan(Recipe(steps, seed, batch=10, peak_rate=1.5e-3, warmup_steps=100, weight_decay=0.1)), folder, inputs
        ),
    )


if __name__ == "__main__":
    main()
