"""transformers in float32, with its default attention."""

from __future__ import annotations

from typing import Any

from tools.bench.peers.engines._model_generate import calls_of

PACKAGES = ("transformers", "torch")
IMPORTS = ("torch", "transformers.models.auto.modeling_auto")


def load(folder: str, precision: str, speech: bool, threads: int) -> tuple[Any, Any]:
    import torch
    import transformers

    torch.set_num_threads(threads)
    auto: Any = transformers.AutoModelForSpeechSeq2Seq if speech else transformers.AutoModelForSeq2SeqLM
    if not transformers.AutoConfig.from_pretrained(folder).is_encoder_decoder:
        auto = transformers.AutoModelForCausalLM
    return calls_of(auto.from_pretrained(folder, dtype=torch.float32).eval(), speech)


def load_recordings(folder: str, precision: str, threads: int) -> tuple[Any, Any]:
    import transformers

    prepare, generate = load(folder, precision, True, threads)
    extractor = transformers.AutoFeatureExtractor.from_pretrained(folder)

    def features(samples: Any) -> Any:
        windows = list(samples.reshape(-1, extractor.n_samples))
        return extractor(windows, sampling_rate=extractor.sampling_rate, return_tensors="np").input_features

    def transcribe(samples: Any, job: dict[str, Any]) -> Any:
        return generate(prepare(features(samples)), job)

    return features, transcribe
