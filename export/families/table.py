"""The model families that can be exported. A family of data alone is an entry here; one with code also has a file."""

from __future__ import annotations

from tightbeam.export.families.bart_like import SINUSOIDAL_TABLES, BartLike
from tightbeam.export.families.base import Family
from tightbeam.export.families.causal import Causal
from tightbeam.export.families.decoder_only.bloom import BLOOM
from tightbeam.export.families.decoder_only.falcon import FALCON
from tightbeam.export.families.decoder_only.gemma2 import GEMMA2
from tightbeam.export.families.decoder_only.gemma3 import GEMMA3
from tightbeam.export.families.decoder_only.gpt2 import GPT2
from tightbeam.export.families.decoder_only.gpt_bigcode import GPT_BIGCODE
from tightbeam.export.families.decoder_only.gpt_neox import GPT_NEOX
from tightbeam.export.families.decoder_only.mpt import MPT
from tightbeam.export.families.decoder_only.opt import OPT
from tightbeam.export.families.image.pix2struct import PIX2STRUCT
from tightbeam.export.families.image.vision_encoder_decoder import VISION_ENCODER_DECODER
from tightbeam.export.families.speech.fast_conformer import CANARY, COHERE_ASR
from tightbeam.export.families.speech.moonshine import MOONSHINE
from tightbeam.export.families.speech.speech_to_text import SPEECH_TO_TEXT
from tightbeam.export.families.speech.whisper import WHISPER
from tightbeam.export.families.text.fsmt import FSMT
from tightbeam.export.families.text.led import LED
from tightbeam.export.families.text.longt5 import LONGT5
from tightbeam.export.families.text.m2m_100 import M2M_100
from tightbeam.export.families.text.prophetnet import PROPHETNET
from tightbeam.export.families.text.seamless_m4t import SEAMLESS_M4T, SEAMLESS_M4T_V2
from tightbeam.export.families.text.t5 import MT5, T5, UMT5
from tightbeam.export.families.text.t5gemma import T5GEMMA
from tightbeam.export.families.text.t5gemma2 import T5GEMMA2

__all__ = ["FAMILIES"]

# BART (Lewis et al. 2019) and its distillations: learned positions, the first two rows of the table unused.
BART = BartLike(
    model_type="bart",
    architecture="BartForConditionalGeneration",
    position_offset=2,
    aliases={
        "bart-large-cnn": "facebook/bart-large-cnn",
        "bart-large-xsum": "facebook/bart-large-xsum",
        "bart-large-cnn-samsum": "philschmid/bart-large-cnn-samsum",
        "distilbart-cnn-6-6": "sshleifer/distilbart-cnn-6-6",
        "distilbart-cnn-12-3": "sshleifer/distilbart-cnn-12-3",
        "distilbart-cnn-12-6": "sshleifer/distilbart-cnn-12-6",
        "distilbart-xsum-6-6": "sshleifer/distilbart-xsum-6-6",
        "distilbart-xsum-12-1": "sshleifer/distilbart-xsum-12-1",
        "distilbart-xsum-12-3": "sshleifer/distilbart-xsum-12-3",
        "distilbart-xsum-12-6": "sshleifer/distilbart-xsum-12-6",
    },
)
# Pegasus (Zhang et al. 2019): BART's layers with the norm first, and sinusoidal positions.
PEGASUS = BartLike(
    model_type="pegasus",
    architecture="PegasusForConditionalGeneration",
    position_offset=0,
    computed_weights=SINUSOIDAL_TABLES,
    aliases={
        "pegasus-large": "google/pegasus-large",
        "pegasus-xsum": "google/pegasus-xsum",
        "pegasus-cnn_dailymail": "google/pegasus-cnn_dailymail",
        "pegasus-multi_news": "google/pegasus-multi_news",
        "pegasus-newsroom": "google/pegasus-newsroom",
        "pegasus-pubmed": "google/pegasus-pubmed",
        "pegasus-arxiv": "google/pegasus-arxiv",
    },
)
# mBART (Liu et al. 2020, Tang et al. 2020): BART with the norm first, a final norm, and many languages.
MBART = BartLike(
    model_type="mbart",
    architecture="MBartForConditionalGeneration",
    position_offset=2,
    languages="([a-z]{2}_[A-Z]{2})",
    aliases={
        "mbart-large-cc25": "facebook/mbart-large-cc25",
        "mbart-large-en-ro": "facebook/mbart-large-en-ro",
        "mbart-large-50": "facebook/mbart-large-50",
        "mbart-large-50-many-to-many-mmt": "facebook/mbart-large-50-many-to-many-mmt",
        "mbart-large-50-many-to-one-mmt": "facebook/mbart-large-50-many-to-one-mmt",
        "mbart-large-50-one-to-many-mmt": "facebook/mbart-large-50-one-to-many-mmt",
    },
)
_PAIRS = tuple(pair for other in ("de", "fr", "es", "it", "nl", "ru", "zh") for pair in (f"en-{other}", f"{other}-en"))
# Marian (Junczys-Dowmunt et al. 2018), as in the OPUS-MT translators: sinusoidal positions that no checkpoint stores.
MARIAN = BartLike(
    model_type="marian",
    architecture="MarianMTModel",
    position_offset=0,
    computed_weights=SINUSOIDAL_TABLES,
    aliases={f"opus-mt-{pair}": f"Helsinki-NLP/opus-mt-{pair}" for pair in _PAIRS},
)
# Blenderbot (Roller et al. 2020), a chatbot: BART with the norm first, a final norm, and a deep decoder.
BLENDERBOT = BartLike(
    model_type="blenderbot",
    architecture="BlenderbotForConditionalGeneration",
    position_offset=0,
    aliases={
        "blenderbot-400M-distill": "facebook/blenderbot-400M-distill",
        "blenderbot-1B-distill": "facebook/blenderbot-1B-distill",
        "blenderbot-3B": "facebook/blenderbot-3B",
    },
)
# Blenderbot Small, its predecessor of 90 million weights: BART with all rows of the table of positions in use.
BLENDERBOT_SMALL = BartLike(
    model_type="blenderbot-small",
    architecture="BlenderbotSmallForConditionalGeneration",
    position_offset=0,
    aliases={"blenderbot_small-90M": "facebook/blenderbot_small-90M"},
)

FAMILIES: tuple[Family, ...] = (
    BART,
    PEGASUS,
    MBART,
    MARIAN,
    M2M_100,
    SEAMLESS_M4T,
    SEAMLESS_M4T_V2,
    BLENDERBOT,
    BLENDERBOT_SMALL,
    FSMT,
    T5,
    MT5,
    UMT5,
    LONGT5,
    LED,
    T5GEMMA,
    T5GEMMA2,
    PROPHETNET,
    WHISPER,
    MOONSHINE,
    SPEECH_TO_TEXT,
    COHERE_ASR,
    CANARY,
    VISION_ENCODER_DECODER,
    PIX2STRUCT,
    GPT2,
    GPT_BIGCODE,
    FALCON,
    GPT_NEOX,
    OPT,
    BLOOM,
    MPT,
    # Llama (Touvron et al. 2023, Dubey et al. 2024): rotary positions, key heads shared by query heads.
    Causal(model_type="llama", architecture="LlamaForCausalLM"),
    # Mistral (Jiang et al. 2023): Llama with a window over the newest positions.
    Causal(model_type="mistral", architecture="MistralForCausalLM"),
    # Qwen2 (Yang et al. 2024): Llama with biases on queries, keys and values.
    Causal(model_type="qwen2", architecture="Qwen2ForCausalLM"),
    # Qwen3 (Yang et al. 2025): Llama with a norm on each head's queries and keys.
    Causal(model_type="qwen3", architecture="Qwen3ForCausalLM", key_norm=True),
    # OLMo (Groeneveld et al. 2024): Llama with a normalisation that has no weights.
    Causal(model_type="olmo", architecture="OlmoForCausalLM", must_be_off=("clip_qkv",)),
    # OLMo 2 (OLMo team 2024): norms on queries and keys, and after each branch.
    Causal(model_type="olmo2", architecture="Olmo2ForCausalLM", key_norm=True),
    # Phi-3 (Abdin et al. 2024): Llama with queries, keys and values out of one product, and a window.
    Causal(model_type="phi3", architecture="Phi3ForCausalLM"),
    # Gemma (Gemma team 2024): Llama with scaled embeddings, and heads wider than the model divided by them.
    Causal(model_type="gemma", architecture="GemmaForCausalLM"),
    GEMMA2,
    GEMMA3,
    # SmolLM3 (2025): Llama with rotated keys in some layers alone.
    Causal(model_type="smollm3", architecture="SmolLM3ForCausalLM"),
    # Phi-1, Phi-1.5 and Phi-2 (Gunasekar et al. 2023): attention beside a plain feed-forward part, a part
    # of each head rotated.
    Causal(model_type="phi", architecture="PhiForCausalLM", gated=False, must_be_off=("qk_layernorm",)),
    # StableLM (Bellagente et al. 2024): Llama with layer norms, a part of each head rotated.
    Causal(model_type="stablelm", architecture="StableLmForCausalLM", must_be_off=("qk_layernorm",)),
    # Granite (Mishra et al. 2024): Llama with factors on embeddings, scores, branches and logits.
    Causal(model_type="granite", architecture="GraniteForCausalLM"),
    # OLMo 3 (OLMo team 2025): OLMo 2 with a window in three of four layers.
    Causal(model_type="olmo3", architecture="Olmo3ForCausalLM", key_norm=True),
    # StarCoder2 (Lozhkov et al. 2024): biases everywhere, a plain feed-forward part, and a window.
    Causal(model_type="starcoder2", architecture="Starcoder2ForCausalLM", gated=False),
    # EXAONE 4 (LG AI Research 2025): OLMo 3 with a norm of each head, whose layers without a window are not rotated.
    Causal(model_type="exaone4", architecture="Exaone4ForCausalLM", key_norm=True),
    # Apertus (Swiss AI 2025): Llama with a norm of each head, and a plain feed-forward part of xIELU.
    Causal(model_type="apertus", architecture="ApertusForCausalLM", key_norm=True, gated=False),
    # Seed-OSS (ByteDance Seed 2025): Llama with biases on queries, keys and values, and heads wider than the model.
    Causal(model_type="seed_oss", architecture="SeedOssForCausalLM"),
    # Jais 2 (MBZUAI 2025): layer norms, biases everywhere, and a plain feed-forward part of squared ReLU.
    Causal(model_type="jais2", architecture="Jais2ForCausalLM", gated=False),
)
