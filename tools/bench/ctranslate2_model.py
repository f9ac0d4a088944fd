"""Convert a BART checkpoint to CTranslate2's format, without its tokenizer: token 17 is the string "17" there.

    python -m tools.bench.ctranslate2_model export/demo build/bench/demo-ctranslate2-int8 int8 \
      --packages build/ctranslate2/lib/python3.11/site-packages

CTranslate2's own converter reads ``normalize_before`` of the config, which transformers 5 no longer writes, and wants a
tokenizer, which a checkpoint with random weights lacks. `tools.bench.peers` runs this in a process of its own.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import transformers
import typer

UNKNOWN = "3"
"""BART's token for what its vocabulary lacks; the format wants one."""


def main(
    checkpoint: Annotated[Path, typer.Argument(help="Checkpoint folder of a BART model.")],
    output: Annotated[Path, typer.Argument(help="Folder to write.")],
    precision: Annotated[str, typer.Argument(help="float32 or int8.")],
    packages: Annotated[Path, typer.Option(help="The site-packages folder with ctranslate2 in it.")],
) -> None:
    """Write OUTPUT for ctranslate2.Translator."""
    sys.path.append(str(packages))  # last, so that numpy and torch are this environment's
    from ctranslate2.converters.transformers import BartLoader

    model = transformers.BartForConditionalGeneration.from_pretrained(checkpoint)
    model.config.normalize_before = False
    spec = BartLoader().get_model_spec(model)
    tokens = [str(token) for token in range(model.config.vocab_size)]
    spec.register_source_vocabulary(tokens)
    spec.register_target_vocabulary(tokens)
    spec.config.bos_token = str(model.config.bos_token_id)
    spec.config.eos_token = str(model.config.eos_token_id)
    spec.config.decoder_start_token = str(model.config.decoder_start_token_id)
    spec.config.unk_token = UNKNOWN
    spec.validate()
    spec.optimize(quantization=None if precision == "float32" else precision)
    output.mkdir(parents=True)
    spec.save(str(output))


if __name__ == "__main__":
    typer.run(main)
