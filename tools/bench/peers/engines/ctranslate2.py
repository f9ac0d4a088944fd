"""CTranslate2, in float32 and int8. A tokenizer is done without: token 17 is the string "17" there.

``int8-map`` is int8 with a vocabulary map. CTranslate2 then computes logits for the candidates of the map alone: tokens
for any text, and further ones for each source token of the batch. They are random, and take the time of real ones.

CTranslate2's own converter reads ``normalize_before`` of the config, which transformers 5 no longer writes, and wants a
tokenizer, which a checkpoint with random weights lacks.
"""

from __future__ import annotations

import itertools
import random
import sys
from pathlib import Path
from typing import Any

PACKAGES = ("ctranslate2",)
IMPORTS = ()
LOADERS = {
    **{"bart": "BartLoader", "m2m_100": "M2M100Loader", "marian": "MarianMTLoader"},
    **{"llama": "LlamaLoader", "whisper": "WhisperLoader"},
}
WHISPER_TOKENS = {"bos_token_id": "<|endoftext|>", "decoder_start_token_id": "<|startoftranscript|>"}
LAST_WHISPER_TOKENS = ("translate", "transcribe", "startoflm", "startofprev", "nospeech", "notimestamps")
"""The last tokens before the timestamps."""
UNKNOWN = 3
"""BART's token for what its vocabulary lacks; the format wants one."""
MAP = "vmap.txt"
"""CTranslate2's name for the file of a vocabulary map: a source token, a tab, and its candidates, in each line."""
OF_ANY_TEXT, OF_A_TOKEN = 200, 5
"""The number of candidates for any text, and of further ones for each source token."""


def convert(checkpoint: str, folder: str, precision: str, speech: bool) -> None:
    import transformers
    from ctranslate2.converters import transformers as converters

    config = transformers.AutoConfig.from_pretrained(checkpoint)
    auto = transformers.AutoModelForSpeechSeq2Seq if speech else transformers.AutoModelForSeq2SeqLM
    model: Any = (auto if config.is_encoder_decoder else transformers.AutoModelForCausalLM).from_pretrained(checkpoint)
    family = config.model_type
    if family not in LOADERS:
        raise SystemExit(f"this reads {', '.join(LOADERS)} for CTranslate2, and the checkpoint is {family}")
    model.config.normalize_before = False
    spec = getattr(converters, LOADERS[family])().get_model_spec(model)
    tokens = [str(token) for token in range(model.config.vocab_size - (family == "marian"))]  # without its padding
    if speech:
        _set_whisper(spec, model, tokens)
    elif not config.is_encoder_decoder:
        spec.register_vocabulary(tokens)
        spec.config.bos_token = spec.config.eos_token = spec.config.unk_token = str(_first(config.eos_token_id))
        spec.config.layer_norm_epsilon = config.rms_norm_eps
    else:
        spec.register_source_vocabulary(tokens)
        spec.register_target_vocabulary(tokens)
        spec.config.bos_token = str(model.generation_config.bos_token_id)
        spec.config.eos_token = str(model.generation_config.eos_token_id)
        start = model.config.eos_token_id if family == "marian" else model.generation_config.decoder_start_token_id
        spec.config.decoder_start_token = str(start)  # Marian's start has an embedding of zeros, whatever its name
        spec.config.unk_token = str(UNKNOWN)
    spec.validate()
    products, _, mapped = precision.partition("-")
    spec.optimize(quantization=None if products == "fp32" else products)
    Path(folder).mkdir(parents=True)
    spec.save(folder)
    if mapped:
        _write_map(Path(folder, MAP), tokens)
    if speech:
        _write_for_faster_whisper(checkpoint, folder, tokens)


def _write_map(path: Path, tokens: list[str]) -> None:
    """Write a vocabulary map; the line without a source token has the candidates of any text."""
    draw = random.Random(0)
    with path.open("w", encoding="utf-8") as stream:
        for source, count in (("", OF_ANY_TEXT), *((token, OF_A_TOKEN) for token in tokens)):
            print(source, " ".join(draw.sample(tokens, min(count, len(tokens)))), sep="\t", file=stream)


def _first(token: int | list[int]) -> int:
    return token[0] if isinstance(token, list) else token


def _set_whisper(spec: Any, model: Any, tokens: list[str]) -> None:
    generation = model.generation_config
    for field, name in WHISPER_TOKENS.items():
        tokens[getattr(generation, field)] = name
    tokens[generation.bos_token_id - 1] = ""  # by which CTranslate2 knows a multilingual model
    for name, token in generation.lang_to_id.items():
        tokens[token] = name
    first = generation.no_timestamps_token_id + 1 - len(LAST_WHISPER_TOKENS)
    for token, name in enumerate(LAST_WHISPER_TOKENS, first):
        tokens[token] = f"<|{name}|>"
    spec.register_vocabulary(tokens)
    spec.config.suppress_ids, spec.config.suppress_ids_begin = [], generation.begin_suppress_tokens or []
    spec.config.lang_ids = sorted(generation.lang_to_id.values())
    layers, heads = model.config.decoder_layers, model.config.decoder_attention_heads
    spec.config.alignment_heads = list(itertools.product(range(layers // 2, layers), range(heads)))


def _write_for_faster_whisper(checkpoint: str, folder: str, tokens: list[str]) -> None:
    """Write a tokenizer that knows a word for each token, and the settings of the features."""
    import tokenizers
    import transformers

    words = {word: token for token, word in enumerate(tokens)}
    tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="0")).save(str(Path(folder, "tokenizer.json")))
    transformers.AutoFeatureExtractor.from_pretrained(checkpoint).save_pretrained(folder)


def load(folder: str, precision: str, speech: bool, threads: int) -> tuple[Any, Any]:
    for package in ("torch", "transformers"):  # its converters would import them, and their memory is not the engine's
        sys.modules[package] = None  # type: ignore[assignment]
    import ctranslate2

    threading = {"device": "cpu", "inter_threads": 1, "intra_threads": threads}
    if speech:
        return _whisper_calls(ctranslate2.models.Whisper(folder, **threading))
    if Path(folder, "vocabulary.json").exists():  # else it has one for the source, too
        return _causal_calls(ctranslate2.Generator(folder, **threading))
    translator = ctranslate2.Translator(folder, **threading)
    mapped = Path(folder, MAP).exists()

    def prepare(samples: Any) -> Any:
        return [[str(token) for token in row] for row in samples]

    def generate(batch: Any, job: dict[str, Any]) -> Any:
        settings = job["settings"]
        bos = settings.get("forced_bos_token_id")
        found = translator.translate_batch(
            batch,
            target_prefix=None if bos is None else [[str(bos)]] * len(batch),
            beam_size=settings["num_beams"],
            length_penalty=settings.get("length_penalty", 1),
            no_repeat_ngram_size=settings["no_repeat_ngram_size"],
            min_decoding_length=settings["min_new_tokens"],
            max_decoding_length=settings["max_new_tokens"],
            use_vmap=mapped,
        )
        return [list(map(int, result.hypotheses[0])) for result in found]

    return prepare, generate


def _causal_calls(generator: Any) -> tuple[Any, Any]:
    def prepare(samples: Any) -> Any:
        return [[str(token) for token in row] for row in samples]

    def generate(batch: Any, job: dict[str, Any]) -> Any:
        settings = job["settings"]
        found = generator.generate_batch(
            batch,
            beam_size=settings["num_beams"],
            length_penalty=settings.get("length_penalty", 1),
            no_repeat_ngram_size=settings["no_repeat_ngram_size"],
            min_length=settings["min_new_tokens"],
            max_length=settings["max_new_tokens"],
            end_token=[str(end) for end in job["eos"]],
            include_prompt_in_result=False,
        )
        return [result.sequences_ids[0] for result in found]

    return prepare, generate


def _whisper_calls(model: Any) -> tuple[Any, Any]:
    import ctranslate2

    def prepare(samples: Any) -> Any:
        return ctranslate2.StorageView.from_array(samples)

    def generate(batch: Any, job: dict[str, Any]) -> Any:
        settings = job["settings"]
        length, prompt = settings["max_new_tokens"], job["prompt"]
        found = model.generate(
            batch,
            [prompt] * batch.shape[0],
            beam_size=settings["num_beams"],
            length_penalty=settings.get("length_penalty", 1),
            no_repeat_ngram_size=settings["no_repeat_ngram_size"],
            max_length=max(2 * length, length + len(prompt)),  # it generates half of that at most, the prompt left out
            suppress_blank=False,
            suppress_tokens=settings["suppress_tokens"],
        )
        return [result.sequences_ids[0] for result in found]

    return prepare, generate
