"""The reference of the final comparison: sample inputs, and the tokens that ``model.generate`` returns for them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tightbeam.deploy.generation.resolve import resolve_settings
from tightbeam.export.accuracy.draws import bundle_draws
from tightbeam.export.accuracy.encoded_once import encoded_once
from tightbeam.export.accuracy.float64 import exact_softmax
from tightbeam.export.checkpoint.audio import SpeechSamples, speech_samples
from tightbeam.export.checkpoint.image import ImageSamples, image_samples
from tightbeam.export.checkpoint.load import Checkpoint
from tightbeam.export.checkpoint.quiet import quiet_transformers
from tightbeam.export.checkpoint.sample_texts import SAMPLE_TEXTS
from tightbeam.export.counts import counted
from tightbeam.export.errors import ExportError, first_line

__all__ = [
    "SEED",
    "Generation",
    "Reference",
    "Samples",
    "TextSamples",
    "generate",
    "greedy",
    "make_reference",
    "samples_of",
]

SETTINGS: tuple[dict[str, Any], ...] = (
    {},  # the checkpoint's own
    {"num_beams": 1},
    {"num_beams": 4, "no_repeat_ngram_size": 3, "length_penalty": 2.0},
)
SEED = "seed"
"""Setting of a bundle alone; the reference takes the bundle's draws (`bundle_draws`)."""
WITHOUT_GROUPS = {"num_beam_groups": 1, "diversity_penalty": 0.0}
"""Settings of beam search without groups, which the installed transformers does not have."""
WITHOUT_STOP_STRINGS = {"stop_strings": None}
"""They depend on texts, which a comparison of tokens does not read."""
MAX_NEW_TOKENS = 24
MAX_NEW_TOKENS_OF_LARGE = 10
LARGE = 100_000_000
"""Parameter count from which torch takes seconds a token, so that the comparison is shortened."""
MAX_SAMPLE_TOKENS = 48


@dataclass(frozen=True)
class Generation:
    """The output of ``model.generate`` under one setting.

    Tokens are without padding; scores are of beam search alone; texts need a tokenizer.
    """

    settings: dict[str, Any]
    sequences: list[list[int]]
    scores: list[float] | None
    texts: list[str] | None


@dataclass(frozen=True)
class TextSamples:
    """Lines of text, or of token ids, with the ids of each.

    ``pad_left_with``: the token that pads prompts on the left; None for a model with an encoder. ``global_tokens``: the
    first so many tokens of each sample have global attention.
    """

    texts: tuple[str, ...]
    rows: tuple[list[int], ...]
    as_ids: bool
    pad_left_with: int | None
    global_tokens: int = 0

    def inputs(self, folder: Path) -> tuple[Any, ...]:
        """Inputs of JSON lines for ``run-model``; files that they name are written into ``folder``."""
        return self.rows if self.as_ids else self.texts

    def arguments(self, dtype: torch.dtype) -> dict[str, Any]:
        """The same input for ``model.generate``, padded as the command pads it."""
        N = max(map(len, self.rows))
        ids = torch.full((len(self.rows), N), self.pad_left_with or 0, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for index, row in enumerate(self.rows):
            place = slice(len(row)) if self.pad_left_with is None else slice(N - len(row), N)
            ids[index, place] = torch.tensor(row)
            mask[index, place] = 1
        # ProphetNet makes float32 scores of an integer mask, and the lowest float64 does not fit into float32.
        given = {"inputs": ids, "attention_mask": mask.double() if dtype == torch.float64 else mask}
        if self.global_tokens:
            first = torch.zeros_like(ids)
            first[:, : self.global_tokens] = 1
            given["global_attention_mask"] = first
        return given

    def shown(self, text: str) -> str:
        """A decoded text as the command shows it."""
        return text

    def alone(self, index: int) -> TextSamples:
        """One of the samples by itself, so that no other pads it."""
        return replace(self, texts=(self.texts[index],), rows=(self.rows[index],))


Samples = TextSamples | SpeechSamples | ImageSamples


@dataclass(frozen=True)
class Reference:
    """Sample inputs, and the generations of ``model.generate`` under each setting."""

    checkpoint: Path
    samples: Samples
    generations: tuple[Generation, ...]

    @property
    def greedy(self) -> list[list[int]]:
        """The sequences of greedy search; a decoder-only model's begin with their prompts."""
        found = next(generation for generation in self.generations if generation.settings.get("num_beams") == 1)
        return _with_prompts(self.samples, found.sequences)


def make_reference(checkpoint: Checkpoint, samples: Samples) -> Reference:
    """Generate with torch under every setting of the comparison.

    Raises
    ------
    ExportError
        Torch cannot generate with the checkpoint.
    """
    with _errors_as_ours(), encoded_once(checkpoint):
        longest = max(map(len, samples.rows))
        wanted = counted(list(_settings(checkpoint, longest)), f"searches of {len(samples.rows)} inputs")
        generations = tuple(generate(checkpoint, samples, settings) for settings in wanted)
    return Reference(checkpoint.path, samples, generations)


def greedy(checkpoint: Checkpoint, samples: Samples) -> list[list[int]]:
    """Generate by greedy search, at the length of the comparison.

    Parameters
    ----------
    checkpoint
        The model, in any floating-point type.
    samples
        Inputs of the batch.

    Returns
    -------
    list of list of int
        A sequence for each sample, from the start token on; a decoder-only model's begin with their prompts.

    Raises
    ------
    ExportError
        Torch cannot generate with the checkpoint.
    """
    longest = max(map(len, samples.rows))
    settings = next(settings for settings in _settings(checkpoint, longest) if settings.get("num_beams") == 1)
    with _errors_as_ours():
        return _with_prompts(samples, generate(checkpoint, samples, settings).sequences)


def generate(checkpoint: Checkpoint, samples: Samples, settings: dict[str, Any]) -> Generation:
    """Run ``model.generate`` under one setting; the best sequence of each sample, as the command prints it."""
    arguments = samples.arguments(checkpoint.model.dtype)
    asked = {name: value for name, value in settings.items() if name != SEED}
    draws, softmax = _draws(checkpoint, samples, settings), exact_softmax(checkpoint.model)
    with torch.no_grad(), quiet_transformers(), draws, softmax:
        out = checkpoint.model.generate(**arguments, return_dict_in_generate=True, output_scores=True, **asked)
    scores = getattr(out, "sequences_scores", None)
    returned = out.sequences.shape[0] // len(samples.rows)
    ends = settings.get("eos_token_id", checkpoint.model.generation_config.eos_token_id)
    prompt = arguments["inputs"].shape[1] if checkpoint.sizes.decoder_only else 0
    given = 0 if checkpoint.sizes.decoder_only else 1
    sequences = [_without_padding(row, ends, given) for row in out.sequences[::returned, prompt:].tolist()]
    texts = None
    if not samples.as_ids and checkpoint.tokenizer is not None:
        texts = [samples.shown(checkpoint.tokenizer.decode(row, skip_special_tokens=True)) for row in sequences]
    return Generation(settings, sequences, None if scores is None else scores[::returned].tolist(), texts)


def _draws(checkpoint: Checkpoint, samples: Samples, settings: dict[str, Any]) -> AbstractContextManager[None]:
    """The bundle's draws, if a setting has a seed."""
    if SEED not in settings:
        return nullcontext()
    options = resolve_settings(checkpoint.generation_config, settings, checkpoint.sizes, speech=False).for_prompt(1)
    streams, drawn = (1, options.drawn) if options.samples_beams else (options.num_beams, 1)
    return bundle_draws(samples.rows, settings[SEED], streams, settings["max_new_tokens"] * drawn)


def samples_of(
    checkpoint: Checkpoint,
    texts: Sequence[str] = SAMPLE_TEXTS,
    recordings: Sequence[str] = (),
    longest: int = MAX_SAMPLE_TOKENS,
) -> Samples:
    """Inputs that suit a model.

    Parameters
    ----------
    checkpoint
        The checkpoint, for its sizes, tokenizer and feature extractor.
    texts
        Texts, of which the longest beginnings that fit are taken.
    recordings
        Names of audio files for a speech model.
    longest
        Most tokens of a text.

    Returns
    -------
    Samples
        Beginnings of ``recordings`` for a speech model, or synthetic audio without any; drawn pages for one that reads
        images; else beginnings of ``texts``; random token ids if there is no tokenizer or no beginning fits.
    """
    if checkpoint.family.reads_images:
        return image_samples(checkpoint)
    return (
        speech_samples(checkpoint, recordings)
        if checkpoint.family.is_speech
        else _text_samples(checkpoint, texts, longest)
    )


def _settings(checkpoint: Checkpoint, longest_input: int) -> Iterator[dict[str, Any]]:
    """The settings to compare, with a length that keeps the comparison short."""
    beginning = longest_input if checkpoint.sizes.decoder_only else checkpoint.family.beginning
    longest = checkpoint.sizes.max_target - beginning
    own = checkpoint.generation_config
    least = max((own.get("min_length") or 0) + 1 - beginning, (own.get("min_new_tokens") or 0) + 1)
    large = sum(parameter.numel() for parameter in checkpoint.model.parameters()) >= LARGE
    wanted = MAX_NEW_TOKENS_OF_LARGE if large else MAX_NEW_TOKENS
    length = min(longest, wanted, own.get("max_new_tokens") or longest)
    sampled = own.get("do_sample") is True
    # A draw depends on all numbers of its source, and not all features are transformers' bit for bit.
    has_tokens = not (checkpoint.family.is_speech or checkpoint.family.reads_images)
    for settings in SETTINGS:
        limits: dict[str, Any] = {"max_new_tokens": length}
        if (own.get("num_beam_groups") or 1) != 1:
            limits |= WITHOUT_GROUPS
        if own.get("stop_strings"):
            limits |= WITHOUT_STOP_STRINGS
        if sampled:
            limits |= {"do_sample": False} if settings or not has_tokens else {SEED: 0}
        if least > length:
            limits["min_new_tokens"] = length // 2
        beams = settings.get("num_beams") or own.get("num_beams") or 1
        alone = {"num_return_sequences": 1} if beams == 1 and SEED not in limits else {}
        yield {**settings, **limits, **alone}


def _without_padding(row: list[int], ends: int | list[int] | None, given: int) -> list[int]:
    """A sequence up to its first end token after the ``given`` ones."""
    ids = [] if ends is None else [ends] if isinstance(ends, int) else ends
    end = next((index for index, token in enumerate(row) if index >= given and token in ids), len(row) - 1)
    return row[: end + 1]


def _with_prompts(samples: Samples, sequences: list[list[int]]) -> list[list[int]]:
    if not isinstance(samples, TextSamples) or samples.pad_left_with is None:
        return sequences
    return [[*prompt, *row] for prompt, row in zip(samples.rows, sequences, strict=True)]


def _text_samples(checkpoint: Checkpoint, texts: Sequence[str], longest: int) -> TextSamples:
    limit = min(checkpoint.sizes.max_source, longest)
    if checkpoint.sizes.decoder_only:  # new tokens need positions too
        limit = min(limit, max(1, checkpoint.sizes.max_source // 2))
    if checkpoint.tokenizer is not None:
        with quiet_transformers():
            found = [_longest_beginning(checkpoint.tokenizer, text, limit) for text in texts]
        fitting = [(text, ids) for text, ids in found if ids is not None]
        if fitting:
            beginnings, rows = zip(*fitting, strict=True)
            return TextSamples(beginnings, rows, False, _prompt_padding(checkpoint), checkpoint.family.global_tokens)
    vocabulary = checkpoint.sizes.source_vocabulary
    generator = np.random.default_rng(0)
    random = [generator.integers(0, vocabulary, size=max(1, limit // (index + 1))).tolist() for index in range(4)]
    lines, padding = tuple(json.dumps(row) for row in random), _prompt_padding(checkpoint)
    return TextSamples(lines, tuple(random), True, padding, checkpoint.family.global_tokens)


def _prompt_padding(checkpoint: Checkpoint) -> int | None:
    """The token that pads the prompts of a decoder-only model; None for a model with an encoder."""
    if not checkpoint.sizes.decoder_only:
        return None
    config = checkpoint.model.generation_config
    ends = config.eos_token_id
    pad = (ends[0] if isinstance(ends, list) else ends) if config.pad_token_id is None else config.pad_token_id
    return pad or 0


def _longest_beginning(tokenizer: Any, text: str, limit: int) -> tuple[str, list[int] | None]:
    """The longest beginning of a text, in words, of at most ``limit`` tokens; None if the first word has more."""
    whole = list(tokenizer(text, verbose=False).input_ids)
    if len(whole) <= limit:
        return text, whole
    words = text.split()[:limit]  # no word has less than a token
    fits, beyond = 0, len(words) + 1
    ids: list[int] | None = None
    while beyond - fits > 1:
        count = (fits + beyond) // 2
        found = list(tokenizer(" ".join(words[:count]), verbose=False).input_ids)
        if len(found) <= limit:
            fits, ids = count, found
        else:
            beyond = count
    return " ".join(words[:fits]), ids


@contextmanager
def _errors_as_ours() -> Iterator[None]:
    try:
        yield
    except (ValueError, IndexError, RuntimeError) as error:
        raise ExportError(
            f"torch cannot generate with this checkpoint: {first_line(error)}; fix its generation_config.json, "
            "or export with --variant dedup and --no-check, without --cache-precision"
        ) from error
