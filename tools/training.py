"""What the training recipes share: settings, repeatability, tokenizers, the loop, and the files of a checkpoint."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

IGNORED = -100  # the label that the loss skips
console = Console()


@dataclass(frozen=True)
class Recipe:
    """The settings that determine the weights, besides the data."""

    steps: int
    seed: int
    batch: int = 48
    peak_rate: float = 1e-3
    warmup_steps: int = 150
    weight_decay: float = 0.01
    clip_norm: float = 1.0


def make_repeatable(seed: int, threads: int) -> None:
    """Make torch give the same numbers again: its seed, its algorithms, and how many threads share a sum."""
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # saves 4 % of the time
    torch.manual_seed(seed)


def byte_pairs(texts: Iterable[str], vocabulary: int, special_tokens: list[str], *, prefix_space: bool) -> Tokenizer:
    """Train byte-level BPE. All 256 bytes are in the vocabulary, so no input is unknown.

    Parameters
    ----------
    texts : iterable of str
    vocabulary : int
        Tokens, the special ones included.
    special_tokens : list of str
        They get the first ids.
    prefix_space : bool
        Put a space before the first word, which is then the same token at every position.
    """
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>" if "<unk>" in special_tokens else None))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=special_tokens,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def padded(rows: list[list[int]], fill: int) -> torch.Tensor:
    """Rows of ids as one int64 tensor [rows, longest]."""
    longest = max(map(len, rows))
    return torch.tensor([row + [fill] * (longest - len(row)) for row in rows])


def rate_factor(step: int, recipe: Recipe) -> float:
    """Learning rate at `step` as a share of its peak: linear warm-up, then half a cosine down to zero."""
    if step < recipe.warmup_steps:
        return (step + 1) / recipe.warmup_steps
    done = (step - recipe.warmup_steps) / max(1, recipe.steps - recipe.warmup_steps)
    return 0.5 * (1 + math.cos(math.pi * done))


def train(
    modules: torch.nn.Module, recipe: Recipe, batches: Iterator[Any], loss_of: Callable[[Any], torch.Tensor]
) -> None:
    """Train in place for a fixed number of steps.

    Parameters
    ----------
    modules : Module
        The model, with whatever else is trained beside it.
    recipe : Recipe
    batches : iterator
    loss_of : callable
        The loss of a batch, a tensor of one number.
    """
    matrices = [weight for weight in modules.parameters() if weight.dim() > 1]
    vectors = [weight for weight in modules.parameters() if weight.dim() == 1]
    groups = [{"params": matrices, "weight_decay": recipe.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=recipe.peak_rate, betas=(0.9, 0.98), fused=True)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate_factor(step, recipe))
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("loss {task.fields[loss]:.3f}"))
    modules.train()
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console) as progress:
        task = progress.add_task("training", total=recipe.steps, loss=math.nan)
        for step, batch in enumerate(islice(batches, recipe.steps)):
            loss = loss_of(batch)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(modules.parameters(), recipe.clip_norm)
            optimizer.step()
            scheduler.step()
            if step % 20 == 0:
                progress.update(task, completed=step + 1, loss=loss.item())
            if step % 250 == 0:
                console.log(f"step {step}: loss {loss.item():.3f}")
        progress.update(task, completed=recipe.steps)
    modules.train(False)


def write_json(path: Path, content: dict[str, object]) -> None:
    """Write JSON the way transformers does: sorted, indented, with a newline at the end."""
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def write_checkpoint(folder: Path, model: Any, copies: tuple[str, ...], dtype: torch.dtype) -> None:
    """Write a model's weights and its configs, which name neither a path nor labels.

    Parameters
    ----------
    folder : Path
        It exists.
    model : PreTrainedModel
    copies : tuple of str
        Weights that are tied to others, and are left out.
    dtype : torch.dtype
        The weights are stored in it. `config.json` says float32, so that loading widens them.
    """
    weights = {name: tensor.to(dtype).contiguous() for name, tensor in model.state_dict().items() if name not in copies}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)  # safetensors makes it readable by its owner only
    unused = ("_name_or_path", "id2label", "label2id")
    config = {key: value for key, value in model.config.to_diff_dict().items() if key not in unused}
    write_json(folder / "config.json", config | {"architectures": [type(model).__name__], "dtype": "float32"})
    model.generation_config.save_pretrained(folder)
