"""JSON lines that name recordings and images: each with its own settings, and faults of a line alone."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from support.audio import RATE_HZ, chirp
from support.bundles.cache import BundleCache
from support.checkpoints.families import WHISPER_GENERATION
from support.checkpoints.image import images
from support.commands import SHORT, caller
from tightbeam.deploy import Runner
from tightbeam.deploy.errors import Fix, InputError, Setting
from tightbeam.deploy.inputs.file_lines import FileLine
from tightbeam.deploy.inputs.result import InputResult
from tightbeam.deploy.inputs.sources import SourceReader, _LineReader

pillow = pytest.importorskip("PIL.Image")
soundfile = pytest.importorskip("soundfile")


def lines(path: Path, *records: Any) -> Path:
    path.write_text("".join(f"{each if isinstance(each, str) else json.dumps(each)}\n" for each in records))
    return path


def test_each_recording_has_its_settings(
    bundles: BundleCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = bundles("dedup", "whisper", generation=WHISPER_GENERATION, tokenizer=True)
    runner, run = Runner.load(folder, threads=1), caller(monkeypatch, capsys)
    capsys.readouterr()  # of transformers, while the bundle was made
    wave, name = np.round(chirp(0.8) * 32768).astype(np.int16), str(tmp_path / "a.wav")
    soundfile.write(name, wave, RATE_HZ)
    own: tuple[dict[str, Any], ...] = (
        {},
        {"language": "de", "max_new_tokens": 9},
        {"num_beams": 2, "task": "translate"},
        {"prompt_ids": [50, 7, 8], "language": "fr"},
    )
    file = lines(
        tmp_path / "lines.jsonl",
        *({"file": name, **settings} for settings in own),
        *({"file": name, **wrong} for wrong in ({"num_beams": 9}, {"truncate": True}, {"language": 3})),
        {"file": 3},
        "{",
        {"file": name, "prompt_ids": [50, 7, 8], "return_token_scores": True},
        {"file": name},
    )
    done = run(folder, file, "--json-input", "file", "--json", "--language", "en", *SHORT)
    faults = (
        ("lines.jsonl, line 5: num_beams=9 is more than the 8 rows that run together; pass 8 or less"),
        ("lines.jsonl, line 6: truncate cuts texts, not files; leave it out"),
        ("lines.jsonl, line 7: language=3 (from the line) is not a language of this model, by its code or name"),
        ("lines.jsonl, line 8: file is int, expected the name of a file; pass it in quotes"),
        ("lines.jsonl, line 9: not a JSON object; expected a line such as"),
        ("lines.jsonl, line 10: return_token_scores=True does not go with prompt_ids; leave one of them out"),
    )
    for fault in faults:
        done.failed(fault)
    for record, settings in zip(done.records, own, strict=False):
        expected = {"language": "en", "max_new_tokens": 5, **settings}
        assert record["text"] == runner.transcribe([name], **expected)[0]
    assert done.records[-1] == {**done.records[0], "line": 11}
    assert len({record["text"] for record in done.records[:4]}) > 2
    wrong = ("--json-input", "file", "--format", "srt")
    run(folder, file, *wrong).failed("--format srt does not go with --resume, --json or --json-input; leave one out")


def test_a_fix_is_given_as_fields_of_the_line() -> None:
    """For a fault that is found as the file is opened, too."""

    class Refusing(SourceReader):
        def open(self, result: InputResult, source: Any) -> Any:
            raise InputError(f"{source} is too long", fix=Fix("pass {}", Setting("return_timestamps", False)))

    options: Any = SimpleNamespace(num_beams=1, num_return_sequences=1)
    model: Any = SimpleNamespace(has_windows=True, settings=SimpleNamespace(options=lambda settings: options))
    reader = _LineReader(model, Refusing, {}, 8)
    assert str(reader.read(1, "a.wav").failure) == "a.wav is too long; pass return_timestamps=False"
    assert str(reader.read(2, FileLine("a.wav", {})).failure) == 'a.wav is too long; pass "return_timestamps": false'


def test_each_image_has_its_settings(
    bundles: BundleCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, run = bundles("dedup", "trocr", tokenizer=True), caller(monkeypatch, capsys)
    runner, name = Runner.load(folder, threads=1), str(tmp_path / "a.png")
    capsys.readouterr()  # of transformers, while the bundle was made
    pillow.fromarray(images(2)[0]).save(name)
    own: tuple[dict[str, Any], ...] = ({}, {"num_beams": 3, "num_return_sequences": 2}, {"decoder_input_text": "the"})
    records = [{"page": name, **settings} for settings in own]
    wrong = ({"page": f"{name}x"}, {"page": name, "prompt": "a"}, {"page": name, "top_k": 3})
    file = lines(tmp_path / "lines.jsonl", *records, *wrong)
    done = run(folder, file, "--json-input", "page", "--json", *SHORT)
    done.failed("lines.jsonl, line 4: there is no file")
    done.failed("lines.jsonl, line 5: prompt='a' (from the line)", "for Whisper")
    done.failed("lines.jsonl, line 6: top_k=3 (from the line)", 'pass "do_sample": true, or leave it out')
    for record, settings in zip(done.records, own, strict=False):
        (expected,) = runner.read_images([name], max_new_tokens=5, **settings)
        assert record["tokens"] == expected.sequences[0]
        assert record.get("sequences", [record["tokens"]]) == expected.sequences
