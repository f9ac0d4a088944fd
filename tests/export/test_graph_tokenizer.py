"""Tokenizers inside a graph: equal to the tokenizers library on a thousand texts, or refused with the reason."""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import MarianTokenizer

from support.bundles.cache import BundleCache
from support.bundles.demo import demo_bundle
from support.checkpoints.families import SENTENCES
from support.checkpoints.whisper_tokenizer import whisper_tokenizer
from tightbeam.deploy import Bundle, Runner
from tightbeam.export import ExportError, export_model
from tightbeam.export.checkpoint.tokenizer import write_tokenizer
from tightbeam.export.one_graph import text, tokenizer
from tightbeam.export.one_graph.check import check_text_graph, scalar_inputs
from tightbeam.export.one_graph.graph import options_of, scalars_of
from tightbeam.export.one_graph.graph_tokenizer import of_class, of_file
from tightbeam.export.one_graph.text import BROKEN, check_tokenizer, session_with_text
from tightbeam.export.one_graph.tokenizer_texts import SCRIPTS
from tightbeam.export.one_graph.write import bundle_tokenizer, write_graphs

SPECIAL = ["<pad>", "</s>", "<unk>"]
CORPUS = [*SENTENCES, *SCRIPTS]

needs_extensions = pytest.mark.skipif(
    importlib.util.find_spec("onnxruntime_extensions") is None, reason="onnxruntime-extensions is not installed"
)


def byte_level() -> Tokenizer:
    """BART's kind: a space in front of a text, and a mask that takes the spaces before it."""
    made = Tokenizer(models.BPE(unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    made.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=500, initial_alphabet=alphabet, special_tokens=SPECIAL, show_progress=False
    )
    made.train_from_iterator(CORPUS, trainer)
    made.add_special_tokens([AddedToken("<mask>", lstrip=True, special=True)])
    made.post_processor = processors.TemplateProcessing(
        single="<pad> $A </s>", special_tokens=[("<pad>", 0), ("</s>", 1)]
    )
    return made


def unigram() -> Tokenizer:
    """T5's kind: words with a space in front of each."""
    made = Tokenizer(models.Unigram())
    made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    made.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=300, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False)
    made.train_from_iterator(CORPUS, trainer)
    made.add_special_tokens(["<extra_id_0>"])
    made.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return made


def llama() -> Tokenizer:
    """Llama's kind: SentencePiece's BPE, with bytes for unknown characters, and all spaces kept."""
    made = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    kept = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    made.decoder = kept
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=[*SPECIAL, *bytes_], show_progress=False)
    made.train_from_iterator([line for line in CORPUS if line.isascii()], trainer)
    state = Tokenizer(
        models.BPE(vocab=made.get_vocab(), merges=merges_of(made), unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    state.normalizer, state.decoder = made.normalizer, kept
    state.add_special_tokens(SPECIAL)
    return state


def merges_of(made: Tokenizer) -> list[tuple[str, str]]:
    return [tuple(pair) for pair in json.loads(made.to_str())["model"]["merges"]]


@needs_extensions
@pytest.mark.parametrize("make", [byte_level, unigram, llama])
def test_equal_on_a_thousand_texts(make: Callable[[], Tokenizer]) -> None:
    check_tokenizer(of_file(make()), 200, encodes=True)


def marian(folder: Path, codes: tuple[str, ...] = ()) -> MarianTokenizer:
    """Marian's kind: pieces of a source and of a target model, in a vocabulary of other ids."""
    (folder / "corpus").write_text("\n".join(CORPUS * 3), encoding="utf-8")
    words = ["</s>", *codes, "<unk>"]
    for side, lines in (("source", CORPUS), ("target", [line[::-1] for line in CORPUS])):
        (folder / "corpus").write_text("\n".join(lines * 3), encoding="utf-8")
        sentencepiece.SentencePieceTrainer.train(
            input=str(folder / "corpus"), model_prefix=str(folder / side), vocab_size=300, minloglevel=2
        )
        (folder / f"{side}.model").rename(folder / f"{side}.spm")
        pieces = sentencepiece.SentencePieceProcessor(model_file=str(folder / f"{side}.spm"))
        words += [pieces.id_to_piece(i) for i in range(3, len(pieces))]
    vocabulary = {word: index for index, word in enumerate(dict.fromkeys([*words, "<pad>"]))}
    (folder / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    return MarianTokenizer(
        *(str(folder / name) for name in ("source.spm", "target.spm", "vocab.json")), model_max_length=200
    )


@needs_extensions
def test_equal_for_composed_texts() -> None:
    """Qwen 2's kind: a pattern of its own, behind a normalization that the application does."""
    made = byte_level()
    made.normalizer = normalizers.NFC()
    words = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(words), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    made.decoder = decoders.ByteLevel()
    sizes = SimpleNamespace(decoder_only=True)
    tokenizer = SimpleNamespace(backend_tokenizer=made)
    assert "form NFC" in text.check_checkpoint_tokenizer(tokenizer, sizes, encodes=True)


@needs_extensions
@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses:UserWarning")
@pytest.mark.parametrize("codes", [pytest.param((), marks=pytest.mark.slow), (">>fr<<", ">>de<<")])
def test_marians_class_is_equal_on_a_thousand_texts(codes: tuple[str, ...], tmp_path: Path) -> None:
    check_tokenizer(of_class(marian(tmp_path, codes)), 200, encodes=True)


@needs_extensions
def test_a_text_that_differs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the split at special tokens, the space behind one is lost."""
    monkeypatch.setattr(tokenizer, "_added_tokens", lambda _: "")
    with pytest.raises(ExportError, match=r"the tokenizer in a graph encodes '.*<mask>.*' as .*, expected .*; leave"):
        check_tokenizer(of_file(byte_level()), None, encodes=True)


def test_rules_without_operators_are_refused_by_name() -> None:
    made = byte_level()
    made.normalizer = normalizers.NFKC()
    with pytest.raises(ExportError, match="byte-level BPE behind the normalizer NFKC"):
        tokenizer.encoding_nodes(made, None, 0)
    made = unigram()
    made.normalizer = normalizers.Lowercase()
    with pytest.raises(ExportError, match="its normalizer Lowercase has no operator"):
        tokenizer.encoding_nodes(made, None, 0)
    with pytest.raises(ExportError, match="its model is WordPiece"):
        tokenizer.encoding_nodes(Tokenizer(models.WordPiece({"[UNK]": 0}, unk_token="[UNK]")), None, 0)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ExportError, match="needs onnxruntime-extensions; pip install"):
        text.session_with_text(b"")


def test_the_option_needs_the_graph(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="pass --one-graph too"):
        export_model("demo", tmp_path / "out", with_tokenizer=True)


@needs_extensions
def test_texts_in_texts_out(tmp_path: Path) -> None:
    path = demo_bundle(tmp_path / "demo", "el")
    manifest = write_graphs(path, Bundle.load(path).manifest, with_tokenizer=True)
    assert manifest.text_graph is not None
    check_text_graph(path, manifest)
    model = onnx.load(path / manifest.text_graph.file, load_external_data=False)
    assert model.graph.input[0].name == "text"
    session = session_with_text(path / manifest.text_graph.file)
    sources = [SENTENCES[0], "a", f" {SENTENCES[1]} \n" * 40]
    values = scalar_inputs({**scalars_of(options_of(manifest)), "num_beams": 3, "max_new_tokens": 12})
    found = session.run(["texts"], {"text": np.array(sources, object), **values})[0].tolist()
    runner = Runner.load(path, threads=1)
    assert found == runner.generate_text(sources, num_beams=3, max_new_tokens=12, truncate=True)


@needs_extensions
@pytest.mark.slow
def test_audio_in_text_out(bundles: BundleCache, tmp_path: Path) -> None:
    path = Path(shutil.copytree(bundles("dedup", "whisper"), tmp_path / "whisper"))
    runner = Runner.load(path, threads=1)
    words = whisper_tokenizer()
    manifest = runner.manifest.model_copy(update={"tokenizer": write_tokenizer(words, path)})
    manifest = write_graphs(path, manifest, with_tokenizer=True)
    check_text_graph(path, manifest)
    options = options_of(manifest)
    audio = np.random.default_rng(0).standard_normal((2, 9000)).astype(np.float32) / 10
    values = scalar_inputs({**scalars_of(options), "num_beams": 2, "max_new_tokens": 9})
    values["decoder_input_ids"] = np.tile(np.array(options.prompt, np.int64), (2, 1))
    found, sequences, *_ = session_with_text(path / "generate_text.onnx").run(None, {"audio": audio, **values})
    assert runner.log_mel is not None
    features = np.stack([runner.log_mel.features(samples) for samples in audio])
    plain = ort.InferenceSession(path / "generate.onnx")
    np.testing.assert_array_equal(sequences, plain.run(None, {"input_features": features, **values})[0])
    new = sequences[:, len(options.prompt) :].tolist()
    expected = [bundle_tokenizer(path, manifest).decode(ids) for ids in new]
    assert [each.replace(BROKEN, "") for each in found] == [each.replace(BROKEN, "") for each in expected]
    assert any(found)


def test_what_has_no_tokenizer_json_is_refused(tmp_path: Path) -> None:
    sizes = Bundle.load(demo_bundle(tmp_path / "demo", "el")).manifest.sizes
    with pytest.raises(ExportError, match="needs a tokenizer, which the checkpoint lacks"):
        text.check_checkpoint_tokenizer(None, sizes, encodes=True)
    with pytest.raises(ExportError, match="it is a class of transformers alone; leave --with-tokenizer out"):
        text.check_checkpoint_tokenizer(object(), sizes, encodes=True)
