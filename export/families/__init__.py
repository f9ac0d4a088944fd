"""The model families that can be exported. A new one is a file here and an entry in FAMILIES."""

from __future__ import annotations

from tightbeam.export.families.bart import BART
from tightbeam.export.families.base import Family
from tightbeam.export.families.falcon import FALCON
from tightbeam.export.families.fsmt import FSMT
from tightbeam.export.families.gemma import GEMMA
from tightbeam.export.families.gpt2 import GPT2
from tightbeam.export.families.gpt_bigcode import GPT_BIGCODE
from tightbeam.export.families.llama import LLAMA
from tightbeam.export.families.marian import MARIAN
from tightbeam.export.families.mbart import MBART
from tightbeam.export.families.mistral import MISTRAL
from tightbeam.export.families.olmo import OLMO
from tightbeam.export.families.olmo2 import OLMO2
from tightbeam.export.families.pegasus import PEGASUS
from tightbeam.export.families.phi3 import PHI3
from tightbeam.export.families.prophetnet import PROPHETNET
from tightbeam.export.families.qwen2 import QWEN2
from tightbeam.export.families.qwen3 import QWEN3
from tightbeam.export.families.smollm3 import SMOLLM3
from tightbeam.export.families.starcoder2 import STARCODER2
from tightbeam.export.families.t5 import MT5, T5, UMT5
from tightbeam.export.families.whisper import WHISPER

FAMILIES: tuple[Family, ...] = (
    BART,
    PEGASUS,
    MBART,
    MARIAN,
    FSMT,
    T5,
    MT5,
    UMT5,
    PROPHETNET,
    WHISPER,
    GPT2,
    GPT_BIGCODE,
    FALCON,
    LLAMA,
    MISTRAL,
    QWEN2,
    QWEN3,
    OLMO,
    OLMO2,
    PHI3,
    GEMMA,
    SMOLLM3,
    STARCODER2,
)

__all__ = ["FAMILIES", "Family"]
