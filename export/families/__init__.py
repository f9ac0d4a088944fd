"""The model families that can be exported. A new one is a file here and an entry in FAMILIES."""

from __future__ import annotations

from tightbeam.export.families.bart import BART
from tightbeam.export.families.base import Family
from tightbeam.export.families.fsmt import FSMT
from tightbeam.export.families.gpt2 import GPT2
from tightbeam.export.families.llama import LLAMA
from tightbeam.export.families.marian import MARIAN
from tightbeam.export.families.mbart import MBART
from tightbeam.export.families.pegasus import PEGASUS
from tightbeam.export.families.t5 import MT5, T5, UMT5
from tightbeam.export.families.whisper import WHISPER

FAMILIES: tuple[Family, ...] = (BART, PEGASUS, MBART, MARIAN, T5, MT5, UMT5, FSMT, WHISPER, GPT2, LLAMA)

__all__ = ["FAMILIES", "Family"]
