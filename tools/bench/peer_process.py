"""One engine in a process of its own, for `tools.bench.peers`: jobs come as lines of JSON, results go back so.

    python -I tools/bench/peer_process.py tightbeam build/demo-dedup 2

A job is a list of batches of token ids and the settings of ``model.generate``; a result holds the best sequence of each
row without its start token and padding, the seconds of wall clock and of processor, and the process's memory. Nothing
but the engine is imported, so that its memory is the engine's: CTranslate2 has an environment without torch.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

Rows = list[list[int]]
Generate = Callable[[Any, dict[str, Any]], Rows]
Prepare = Callable[[Rows], Any]


def load_transformers(folder: str, threads: int) -> tuple[Prepare, Generate]:
    import torch
    import transformers

    torch.set_num_threads(threads)
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=torch.float32).eval()
    pad = model.config.pad_token_id

    def prepare(rows: Rows) -> Any:
        longest = max(map(len, rows))
        ids = torch.tensor([row + [pad] * (longest - len(row)) for row in rows])
        mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
        return ids, mask

    def generate(batch: Any, settings: dict[str, Any]) -> Rows:
        ids, mask = batch
        with torch.inference_mode():
            return model.generate(ids, attention_mask=mask, **settings).tolist()  # type: ignore[no-any-return]

    return prepare, generate


def load_tightbeam(folder: str, threads: int) -> tuple[Prepare, Generate]:
    from tightbeam.deploy import Runner
    from tightbeam.deploy.text.padding import right_pad

    runner = Runner.load(folder, threads=threads)

    def generate(batch: Any, settings: dict[str, Any]) -> Rows:
        return runner.generate(*batch, **settings).sequences.tolist()  # type: ignore[no-any-return]

    return right_pad, generate


def load_ctranslate2(folder: str, threads: int) -> tuple[Prepare, Generate]:
    import ctranslate2

    translator = ctranslate2.Translator(folder, device="cpu", inter_threads=1, intra_threads=threads)

    def prepare(rows: Rows) -> Any:
        return [[str(token) for token in row] for row in rows]

    def generate(batch: Any, settings: dict[str, Any]) -> Rows:
        bos = settings.get("forced_bos_token_id")
        found = translator.translate_batch(
            batch,
            target_prefix=None if bos is None else [[str(bos)]] * len(batch),
            beam_size=settings["num_beams"],
            length_penalty=settings["length_penalty"],
            no_repeat_ngram_size=settings["no_repeat_ngram_size"],
            min_decoding_length=settings["min_new_tokens"],
            max_decoding_length=settings["max_new_tokens"],
        )
        return [[-1, *map(int, result.hypotheses[0])] for result in found]

    return prepare, generate


ENGINES = {"transformers": load_transformers, "tightbeam": load_tightbeam, "ctranslate2": load_ctranslate2}


def without_padding(row: list[int], eos: int) -> list[int]:
    """The tokens between the start token, which may be an end token too, and the first end token."""
    tokens = row[1:]
    return tokens[: tokens.index(eos)] if eos in tokens else tokens


def memory_mb() -> dict[str, float]:
    """Resident memory of this process, now and at its peak. The peak of ``ru_maxrss`` would be that before exec."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {name: int(status[field].split()[0]) / 1000 for name, field in (("now", "VmRSS"), ("peak", "VmHWM"))}


def main(engine: str, folder: str, threads: int) -> None:
    """Load the engine, then run the jobs of standard input."""
    start = time.perf_counter()
    prepare, generate = ENGINES[engine](folder, threads)
    results = sys.stdout
    sys.stdout = sys.stderr  # what a library prints is no result

    def send(result: dict[str, Any]) -> None:
        print(json.dumps(result), file=results, flush=True)

    send({"version": version(engine), "seconds": time.perf_counter() - start, "memory_mb": memory_mb()})
    for line in sys.stdin:
        job = json.loads(line)
        batches = [prepare(rows) for rows in job["batches"]]
        wall, processor = time.perf_counter(), time.process_time()
        found = [row for batch in batches for row in generate(batch, job["settings"])]
        wall, processor = time.perf_counter() - wall, time.process_time() - processor
        send(
            {
                "tokens": [without_padding(row, job["eos"]) for row in found],
                "seconds": wall,
                "processor_seconds": processor,
                "memory_mb": memory_mb(),
            }
        )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
