"""Train the zoo's Whisper type: it hears sentences of the grammar in two languages, and writes them with their times.

Everything starts from nothing: the text, the speech (by espeak-ng), the tokenizer and the weights. In training alone,
the encoder also learns which phoneme is heard at each position, and two heads of the decoder learn to look at the word
that comes next: without that, the attention takes hours to find the sound. The same arguments give the same files on
the same machine, but for the time that README.md names.

    python -m tools.zoo.whisper --output build/zoo/whisper
"""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import soundfile
import torch
from transformers import WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration, WhisperProcessor

from tools.training import IGNORED, Recipe, console, make_repeatable, train, write_checkpoint
from tools.zoo import _recipe, recordings
from tools.zoo._whisper_batches import Batch, Batches
from tools.zoo._whisper_tokens import POSITIONS, STEP_S, STEPS, generation_config, new_tokenizer
from tools.zoo.recordings import Recording
from tools.zoo.speech import RATE_HZ

TESTS_SEED = 1  # of the recordings that the model is tried on
ALIGNMENT_HEADS = ((-1, 0), (-1, 1))  # layer and head
SMALLEST_SHARE = 1e-4  # of a head's attention, so that its logarithm is finite


@dataclass(frozen=True)
class Plan:
    """The sizes of the model, of its training and of its test."""

    recipe: Recipe
    sentences: int = 5000
    """Training sentences of each language."""
    vocabulary: int = 640
    """Tokens of text."""
    width: int = 128
    layers: tuple[int, int] = (3, 2)
    """Of the encoder and of the decoder."""
    singles: int = 16
    """Test recordings of one sentence, of each language."""
    long: int = 2
    """Test recordings of 20 to 40 s, of each language."""


def new_model(plan: Plan, tokenizer: Any) -> Any:
    """A Whisper with random weights: about 1.4 million parameters."""
    generation = generation_config(tokenizer, [[plan.layers[1] + layer, head] for layer, head in ALIGNMENT_HEADS])
    config = WhisperConfig(
        vocab_size=len(tokenizer),
        d_model=plan.width,
        encoder_layers=plan.layers[0],
        decoder_layers=plan.layers[1],
        encoder_attention_heads=plan.width // 32,
        decoder_attention_heads=plan.width // 32,
        encoder_ffn_dim=4 * plan.width,
        decoder_ffn_dim=4 * plan.width,
        max_source_positions=STEPS,
        max_target_positions=POSITIONS,
        dropout=0.0,
        init_std=0.04,
        bos_token_id=generation.bos_token_id,
        eos_token_id=generation.eos_token_id,
        pad_token_id=generation.pad_token_id,
        decoder_start_token_id=generation.decoder_start_token_id,
    )
    model = WhisperForConditionalGeneration(config)
    model.generation_config = generation
    return model


class Trained(torch.nn.Module):
    """The model, and the head for phonemes, which is left when the training ends."""

    def __init__(self, model: Any, phonemes: int) -> None:
        super().__init__()
        self.model = model
        self.phonemes = torch.nn.Linear(model.config.d_model, phonemes)
        self._attention: torch.Tensor
        attention = model.model.decoder.layers[ALIGNMENT_HEADS[0][0]].encoder_attn
        attention.config = copy.copy(attention.config)
        attention.config._attn_implementation = "eager"  # the other one keeps no weights
        attention.register_forward_hook(self._keep)

    def _keep(self, module: Any, inputs: Any, outputs: Any) -> None:
        self._attention = outputs[1]

    def loss_of(self, batch: Batch) -> torch.Tensor:
        """The loss of a batch: the next token, the phonemes, and where two heads look."""
        inner = self.model.model
        states = inner.encoder(batch.features).last_hidden_state
        decoded = inner.decoder(input_ids=batch.inputs, encoder_hidden_states=states, use_cache=False)
        entropy = torch.nn.functional.cross_entropy
        logits = self.model.proj_out(decoded.last_hidden_state)
        tokens = entropy(logits.flatten(0, 1), batch.labels.flatten(), ignore_index=IGNORED)
        phonemes = entropy(self.phonemes(states).flatten(0, 1), batch.phonemes.flatten())
        place = torch.arange(states.shape[1])
        heard = (place >= batch.sounds[..., :1]) & (place < batch.sounds[..., 1:])
        heads = self._attention[:, [head for _, head in ALIGNMENT_HEADS]]
        shares = (heads * heard[:, None]).sum(-1)[heard.any(-1)[:, None].expand(heads.shape[:3])]
        return tokens + phonemes - shares.clamp_min(SMALLEST_SHARE).log().mean()


def write_inputs(folder: Path, tests: list[Recording]) -> None:
    """Write recordings with their texts and languages."""
    for number, test in enumerate(tests):
        kind = "long" if len(test.sentences) > 1 else "single"
        stem = folder / f"{kind}-{test.language}-{number:02}"
        soundfile.write(f"{stem}.wav", test.wave, RATE_HZ, subtype="PCM_16")
        stem.with_suffix(".txt").write_text(f"{test.text}\n", encoding="utf-8")
        stem.with_suffix(".language").write_text(f"{test.language}\n", encoding="utf-8")


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
    with console.status("speaking"):
        pool = recordings.spoken(recipe.seed, plan.sentences)
        tests = recordings.tests(TESTS_SEED, plan.singles, plan.long)
    tokenizer = new_tokenizer((f" {one.text}" for some in pool.values() for one in some), plan.vocabulary)
    extractor = WhisperFeatureExtractor(chunk_length=round(STEPS * STEP_S))
    batches = Batches(pool, tokenizer, extractor, recipe.seed)
    model = new_model(plan, tokenizer)
    trained = Trained(model, len(batches.phonemes))
    console.log(
        f"whisper: {model.num_parameters():,} parameters, {len(tokenizer)} tokens, {2 * plan.sentences} sentences"
    )
    started = time.perf_counter()
    train(trained, recipe, batches.stream(recipe.batch), trained.loss_of)
    seconds = time.perf_counter() - started
    write_checkpoint(folder, model, ("proj_out.weight",), torch.float32)
    WhisperProcessor(extractor, tokenizer).save_pretrained(folder)
    write_inputs(inputs, tests)
    says = (
        f"A Whisper of {model.num_parameters():,} parameters ({' and '.join(map(str, plan.layers))} layers, width "
        f"{plan.width}, windows of {STEPS * STEP_S:.0f} s, vocabulary {len(tokenizer)}) that hears sentences of the "
        "grammar in `tools/zoo/grammar.py`, spoken by espeak-ng in English and in Spanish, and writes them down, with "
        "timestamps if they are asked for. The task `translate` was never trained."
    )
    _recipe.write_card(folder, "whisper", says, recipe, f"windows of {plan.sentences:,} sentences", seconds)


def main() -> None:
    """Run the recipe."""
    _recipe.run(
        "whisper",
        2000,
        lambda steps, seed, folder, inputs: make(
            Plan(Recipe(steps, seed, batch=12, peak_rate=1.5e-3, warmup_steps=100)), folder, inputs
        ),
    )


if __name__ == "__main__":
    main()
