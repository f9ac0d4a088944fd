"""A bundle's tokenizer as nodes: texts to ids before the graph that generates, and ids to texts behind it.

    text [B] ─▶ segments between special tokens ─▶ pieces ─▶ special tokens, padding ─▶ input_ids, attention_mask [B, N]
    sequences [R, T], lengths [R] ─▶ new tokens ─▶ pieces ─▶ spaces, broken characters ─▶ text [R]

Pieces are found and joined by operators of onnxruntime-extensions. What a ``tokenizer.json`` says besides is done
around them in regular expressions: what its normalizer makes of spaces, the space in front of a text, and special
tokens that take the spaces beside them. Tokenizers of two kinds are made: byte-level BPE, and SentencePiece (unigram or
BPE).
"""

from __future__ import annotations

import base64
import importlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx.helper
from onnx import NodeProto, TensorProto
from tokenizers import Tokenizer, normalizers
from transformers.convert_slow_tokenizer import bytes_to_unicode

from tightbeam.export.errors import ExportError

__all__ = [
    "CODE",
    "FIX",
    "TEXT_DOMAIN",
    "UNDERLINE",
    "UNKNOWN_CODE",
    "Pieces",
    "composes",
    "decoding_nodes",
    "encoding_nodes",
]

TEXT_DOMAIN = "ai.onnx.contrib"
"""The domain of the operators of onnxruntime-extensions."""
ENCODING, DECODING = "encoding.", "decoding."
"""Prefixes of the names of tensors."""
BEGIN, END, BROKEN, CODE, UNKNOWN_CODE = "\ufdd0", "\ufdd1", "\ufdd2", "\ufdd3", "\ufdd4"
"""Marks in texts, which Unicode keeps out of texts: a segment's two ends, bytes that are no character, what stands in
front of the code of a language, and what stands for the code of one that the vocabulary lacks."""
UNDERLINE = "\u2581"
"""SentencePiece's space."""
SPACES = (*range(9, 14), 32, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000)
"""Unicode's white space, as the tokenizers library splits at it."""
ANY_CHARACTER = r"[\x{0}-\x{10FFFF}]"
FIX = "leave --with-tokenizer out, and tokenize in the application for generate.onnx"


class _Nodes:
    """Nodes under one prefix, in order."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self.nodes: list[NodeProto] = []
        self._number = 0

    def add(self, kind: str, *inputs: str, domain: str = "", out: str = "", **attributes: Any) -> str:
        """Add a node, and return its only output."""
        return self.add_many(kind, inputs, 1, domain=domain, out=out, **attributes)[0]

    def add_many(
        self, kind: str, inputs: Sequence[str], outputs: int, *, domain: str = "", out: str = "", **attributes: Any
    ) -> list[str]:
        """Add a node, and return its outputs."""
        self._number += 1
        names = [out] if out else [f"{self._prefix}{kind}_{self._number}_{index}" for index in range(outputs)]
        self.nodes.append(onnx.helper.make_node(kind, list(inputs), names, domain=domain, **attributes))
        return names

    def constant(self, value: Any) -> str:
        """Add a constant: an array, or a list of texts."""
        if isinstance(value, list):
            texts = [text.encode() for text in value]
            return self.add("Constant", value=onnx.helper.make_tensor("", TensorProto.STRING, [len(texts)], texts))
        return self.add("Constant", value=onnx.numpy_helper.from_array(np.asarray(value)))

    def integers(self, *values: int) -> str:
        """Add a constant int64 [values]."""
        return self.constant(np.array(values, np.int64))

    def replace(self, text: str, pattern: str, rewrite: str) -> str:
        """Replace what matches a regular expression (RE2) in texts."""
        inputs = (text, self.constant([pattern]), self.constant([rewrite]))
        return self.add("StringRegexReplace", *inputs, domain=TEXT_DOMAIN)


@dataclass(frozen=True)
class _Rules:
    """The treatment of spaces in a segment, and the kind of pieces that it is cut into."""

    is_sentencepiece: bool
    charsmap: bytes | None = None
    splits: bool = False
    """All of Unicode's white space is a space."""
    collapses: bool = False
    strips_left: bool = False
    strips_right: bool = False
    prepends: str | None = None
    """A space in front of a segment: "unless" it has one, "first" for a text's first segment alone, or "always"."""


@dataclass(frozen=True)
class Pieces:
    """A SentencePiece model, the token id of each of its pieces int64 [pieces], and the codes of languages, of which
    one may begin a segment."""

    model: bytes
    ids: Any
    codes: tuple[str, ...]


def _parts(description: Mapping[str, Any] | None, many: str) -> Iterator[Mapping[str, Any]]:
    """The parts of a normalizer, pre-tokenizer or decoder, of which ``many`` names those of a sequence."""
    if description is None:
        return
    if description["type"] == "Sequence":
        for part in description[many]:
            yield from _parts(part, many)
    else:
        yield description


def _refused(what: str) -> ExportError:
    return ExportError(f"the tokenizer cannot be put into a graph: {what}; {FIX}")


def _rules_of(description: Mapping[str, Any]) -> _Rules:
    """Read the rules of a ``tokenizer.json``. Raises ExportError for one that a graph does not have."""
    model, kind = description["model"], description["model"].get("type")
    before = list(_parts(description.get("normalizer"), "normalizers"))
    splits = list(_parts(description.get("pre_tokenizer"), "pretokenizers"))
    if any(part["type"] == "ByteLevel" for part in splits) and kind == "BPE":
        if other := next((part["type"] for part in before if part["type"] != "NFC"), None):
            raise _refused(f"byte-level BPE behind the normalizer {other}")
        adds = any(part.get("add_prefix_space") for part in splits if part["type"] == "ByteLevel")
        return _Rules(is_sentencepiece=False, prepends="unless" if adds else None)
    if kind not in ("BPE", "Unigram") or UNDERLINE not in json.dumps(
        [before, splits, model.get("byte_fallback")], ensure_ascii=False
    ):
        raise _refused(f"its model is {kind}, expected byte-level BPE or SentencePiece")
    found: dict[str, Any] = {}
    for part in before:
        found |= _normalizer_rule(part)
    for part in splits:
        found |= _split_rule(part)
    return _Rules(is_sentencepiece=True, **found)


def composes(tokenizer: Tokenizer) -> bool:
    """True if the tokenizer brings texts into Unicode's form NFC first, for which there is no operator."""
    return any(part["type"] == "NFC" for part in _parts(json.loads(tokenizer.to_str())["normalizer"], "normalizers"))


def _normalizer_rule(part: Mapping[str, Any]) -> dict[str, Any]:
    kind = part["type"]
    if kind == "Precompiled":
        return {"charsmap": base64.b64decode(part["precompiled_charsmap"] or "")}
    if kind == "Strip":
        return {"strips_left": bool(part["strip_left"]), "strips_right": bool(part["strip_right"])}
    if kind == "Prepend" and part["prepend"] == UNDERLINE:
        return {"prepends": "always"}
    if kind == "Replace" and part["content"] in (" ", UNDERLINE):
        if part["pattern"] == {"Regex": " {2,}"}:
            return {"collapses": True}
        if part["pattern"] == {"String": " "}:
            return {}
    raise _refused(f"its normalizer {kind} has no operator")


def _split_rule(part: Mapping[str, Any]) -> dict[str, Any]:
    kind = part["type"]
    if kind == "WhitespaceSplit":
        return dict.fromkeys(("splits", "collapses", "strips_left", "strips_right"), True)
    if kind == "Metaspace":
        scheme = part.get("prepend_scheme", "always" if part.get("add_prefix_space", True) else "never")
        return {"prepends": {"always": "unless", "first": "first", "never": None}[scheme]}
    if kind == "Split" and part["pattern"] == {"String": " "}:
        return {}  # Gemma's, behind a normalizer that leaves no space
    raise _refused(f"its pre-tokenizer {kind} has no operator")


def encoding_nodes(tokenizer: Tokenizer, most: int | None, pad: int, pieces: Pieces | None = None) -> list[NodeProto]:
    """Make the nodes of ``input_ids`` and ``attention_mask`` int64 [B, N] from ``text`` [B].

    Parameters
    ----------
    tokenizer
        The bundle's tokenizer, without truncation and padding.
    most
        The most tokens of a text, special tokens counted. A longer text is cut at its end, before the special tokens
        behind it; None cuts nothing.
    pad
        The id behind shorter texts.
    pieces
        The pieces of SentencePiece, if the tokenizer's own model stands for no more than the names of ids.

    Raises
    ------
    ExportError
        No operators do what the tokenizer does.
    """
    description = json.loads(tokenizer.to_str())
    rules = _rules_of(description)
    graph = _Nodes(ENCODING)
    segments = _prepared(graph, description, rules, () if pieces is None else pieces.codes)
    if rules.is_sentencepiece:
        pieces = pieces or _sentencepiece_pieces(description, rules.charsmap or b"")
        ids, counts = _sentencepiece(graph, pieces, segments)
    else:
        ids, counts = _byte_level(graph, description, segments)
    whole, inner = tokenizer.encode("a").ids, tokenizer.encode("a", add_special_tokens=False).ids
    place = next((i for i in range(len(whole)) if whole[i : i + len(inner)] == inner), None)
    if place is None:
        raise _refused("its special tokens change those of the text")
    _add_special_tokens(graph, ids, counts, whole[:place], whole[place + len(inner) :], most, pad)
    return graph.nodes


def _prepared(graph: _Nodes, description: Mapping[str, Any], rules: _Rules, codes: Sequence[str]) -> str:
    """Add the treatment of spaces in the segments between special tokens."""
    text = graph.replace("text", r"(?s)\A(.*)\z", rf"{BEGIN}\1{END}")
    if pattern := _added_tokens(description["added_tokens"]):
        text = graph.replace(text, pattern, rf"{END}\1\2\3\4{BEGIN}")
    if codes:
        any_code = "|".join(map(_quoted, codes))
        text = graph.replace(text, f"{BEGIN}(>>[^{END}]*?<<)", rf"{CODE}\1{CODE}{BEGIN}")
        text = graph.replace(text, f"{CODE}({any_code}){CODE}", rf"{CODE}\1")
        text = graph.replace(text, f"{CODE}[^{CODE}{BEGIN}]*{CODE}", UNKNOWN_CODE)
    if rules.charsmap or rules.splits:
        spaces, nothing = _spaces_of(rules)
        text = graph.replace(text, f"[{nothing}]+", "") if nothing else text
        text = graph.replace(text, f"[{spaces}]", " ")
    if rules.collapses:
        text = graph.replace(text, "  +", " ")
    if rules.strips_right:
        text = graph.replace(text, f" +{END}", END)
    if rules.strips_left:
        text = graph.replace(text, f"{BEGIN} +", BEGIN)
    text = graph.replace(text, BEGIN + END, "")
    if rules.prepends == "always":
        text = graph.replace(text, BEGIN, UNDERLINE)
    elif rules.prepends is not None:
        begin = rf"\A{BEGIN}" if rules.prepends == "first" else BEGIN
        text = graph.replace(text, f"{begin}([^ {UNDERLINE}])" if rules.is_sentencepiece else f"{begin}([^ ])", r" \1")
    return graph.replace(text, f"[{BEGIN}{END}]", "")


def _added_tokens(added: Sequence[Mapping[str, Any]]) -> str:
    """A regular expression of the added tokens, with the spaces that they take. Its four groups are the tokens without
    the spaces; "" without such tokens."""
    space = "[" + "".join(rf"\x{{{code:X}}}" for code in SPACES) + "]*"
    alternatives = []
    for left in (True, False):
        for right in (True, False):
            names = [each["content"] for each in added if (each["lstrip"], each["rstrip"]) == (left, right)]
            one = "|".join(_quoted(name) for name in sorted(names, key=len, reverse=True))
            some = f"({one})" if one else r"([^\x{0}-\x{10FFFF}])"
            alternatives.append((space if left else "") + some + (space if right else ""))
    return "|".join(alternatives) if added else ""


def _quoted(text: str) -> str:
    """A regular expression (RE2) of a text."""
    return "".join(each if re.match(r"\w", each) else rf"\x{{{ord(each):X}}}" for each in text)


def _spaces_of(rules: _Rules) -> tuple[str, str]:
    """Classes of the characters of which the table makes a space, and of those of which it leaves nothing."""
    table = normalizers.Precompiled(rules.charsmap) if rules.charsmap else None
    codes = (code for code in range(0x10000) if not 0xD800 <= code < 0xE000)
    normal = {code: table.normalize_str(chr(code)) if table else chr(code) for code in codes}
    splits = SPACES if rules.splits else ()
    spaces = [code for code, text in normal.items() if text == " " or (code in splits and text.isspace())]
    nothing = [code for code, text in normal.items() if not text]
    one, other = ("".join(rf"\x{{{code:X}}}" for code in codes) for codes in (spaces or [32], nothing))
    return one, other


def _byte_level(graph: _Nodes, description: Mapping[str, Any], text: str) -> tuple[str, str]:
    """Add the pieces of byte-level BPE: ids int64 [B, X], X above 0, and their counts int64 [B, 1]."""
    splits = [
        {**part, "add_prefix_space": False} if part["type"] == "ByteLevel" else part
        for part in _parts(description["pre_tokenizer"], "pretokenizers")
    ]
    before = splits[0] if len(splits) == 1 else {"type": "Sequence", "pretokenizers": splits}
    ids, mask = graph.add_many(
        "HfJsonTokenizer",
        [text],
        2,
        domain=TEXT_DOMAIN,
        tokenizer_vocab=json.dumps(
            {**description, "normalizer": None, "pre_tokenizer": before, "post_processor": None}
        ),
        tokenizer_config='{"tokenizer_class": "GPT2Tokenizer"}',
    )
    counts = graph.add("ReduceSum", mask, graph.integers(1), keepdims=1)
    wider = graph.add("Pad", ids, graph.integers(0, 0, 0, 1))
    return wider, counts


def _sentencepiece(graph: _Nodes, found: Pieces, text: str) -> tuple[str, str]:
    """Add SentencePiece's pieces: ids int64 [B, X], X above 0, and their counts int64 [B, 1]."""
    settings = [np.array([0], np.int64), np.array([0], np.float32), *([np.array([False])] * 4)]
    inputs = [text, *(graph.constant(value) for value in settings)]
    pieces, ends, _ = graph.add_many("SentencepieceTokenizer", inputs, 3, domain=TEXT_DOMAIN, model=found.model)
    starts = graph.add("Slice", ends, graph.integers(0), graph.integers(-1))
    behind = graph.add("Slice", ends, graph.integers(1), graph.integers(2**62))
    counts = graph.add("Unsqueeze", graph.add("Sub", behind, starts), graph.integers(1))
    some = graph.add("Concat", graph.add("Cast", pieces, to=TensorProto.INT64), graph.integers(0), axis=0)
    most = graph.add("ReduceMax", counts, keepdims=0)
    columns = graph.add("Range", graph.constant(np.int64(0)), graph.add("Add", most, _one(graph)), _one(graph))
    places = graph.add("Add", graph.add("Unsqueeze", starts, graph.integers(1)), columns)
    last = graph.add("Sub", graph.add("Shape", some), graph.integers(1))
    by_row = graph.add("Gather", some, graph.add("Min", places, last))
    return graph.add("Gather", graph.constant(found.ids), by_row), counts


def _one(graph: _Nodes) -> str:
    return graph.constant(np.int64(1))


def _sentencepiece_pieces(description: Mapping[str, Any], charsmap: bytes) -> Pieces:
    """The pieces of a ``tokenizer.json``.

    Added tokens are pieces that a text is never split within. The unknown token is two pieces: the one that stands for
    unknown characters, and an added token like the others.
    """
    protobuf: Any = importlib.import_module("sentencepiece.sentencepiece_model_pb2")
    model, added = description["model"], {each["id"]: each["content"] for each in description["added_tokens"]}
    if model["type"] == "Unigram":
        pieces = [(name, float(score)) for name, score in model["vocab"]]
        unknown = model["unk_id"]
    else:
        ranks: dict[str, int] = {}
        for rank, merge in enumerate(model["merges"]):
            ranks.setdefault("".join(merge.split(" ") if isinstance(merge, str) else merge), rank)
        ordered = sorted(model["vocab"], key=model["vocab"].__getitem__)
        if [model["vocab"][name] for name in ordered] != list(range(len(ordered))):
            raise _refused("its ids have gaps")
        pieces = [(name, -float(ranks.get(name, 10**9))) for name in ordered]
        unknown = model["vocab"].get(model["unk_token"] or "<unk>")
    if unknown is None:
        raise _refused("it has no unknown token")
    ids = list(range(len(pieces)))
    more = [token for token in added if token >= len(pieces)]
    pieces += [(added[token], 0.0) for token in more]
    made = protobuf.ModelProto()
    kinds = made.SentencePiece
    made.trainer_spec.model_type = 1 if model["type"] == "Unigram" else 2
    made.trainer_spec.byte_fallback = bool(model.get("byte_fallback"))
    made.trainer_spec.unk_id, made.trainer_spec.bos_id = unknown, -1
    made.trainer_spec.eos_id = made.trainer_spec.pad_id = -1
    made.normalizer_spec.add_dummy_prefix = made.normalizer_spec.remove_extra_whitespaces = False
    made.normalizer_spec.precompiled_charsmap = charsmap
    ids += more
    for place, (name, score) in enumerate(pieces):
        piece = made.pieces.add(piece=name, score=score)
        if place == unknown:
            piece.piece, piece.type = BROKEN, kinds.UNKNOWN
        elif ids[place] in added:
            piece.type = kinds.USER_DEFINED
        elif model.get("byte_fallback") and re.fullmatch("<0x[0-9A-F]{2}>", name):
            piece.type = kinds.BYTE
    if unknown in added:
        made.pieces.add(piece=added[unknown], score=0.0, type=kinds.USER_DEFINED)
        ids.append(unknown)
    return Pieces(made.SerializeToString(), np.array(ids, np.int64), ())


def _add_special_tokens(
    graph: _Nodes, ids: str, counts: str, before: Sequence[int], behind: Sequence[int], most: int | None, pad: int
) -> None:
    """Add ``input_ids`` and ``attention_mask`` of ids [B, X] and counts [B, 1]."""
    if most is not None:
        counts = graph.add("Min", counts, graph.integers(most - len(before) - len(behind)))
    last = graph.add("Add", counts, graph.integers(len(before)))
    total = graph.add("Add", last, graph.integers(len(behind)))
    longest = graph.add("ReduceMax", total, keepdims=0)
    columns = graph.add("Range", graph.constant(np.int64(0)), longest, _one(graph))
    inner = graph.add("Sub", columns, graph.integers(len(before)))
    width = graph.add("Sub", graph.add("Shape", ids, start=1), graph.integers(1))
    places = graph.add("Min", graph.add("Max", inner, graph.integers(0)), width)
    found = graph.add("Gather", ids, places, axis=1)
    inside = graph.add("Less", columns, total)
    found = graph.add("Where", inside, found, graph.integers(pad))
    for place, token in enumerate(before):
        found = graph.add("Where", graph.add("Equal", columns, graph.integers(place)), graph.integers(token), found)
    for place, token in enumerate(behind):
        at = graph.add("Add", last, graph.integers(place))
        found = graph.add("Where", graph.add("Equal", columns, at), graph.integers(token), found)
    graph.add("Identity", found, out="input_ids")
    graph.add("Cast", inside, to=TensorProto.INT64, out="attention_mask")


def decoding_nodes(tokenizer: Tokenizer) -> list[NodeProto]:
    """Make the nodes of ``texts`` [R] from ``sequences`` int64 [R, T], ``lengths`` int64 [R] and ``P1`` int64 [1].

    The first ``P1`` tokens of a row, with which it began, are no part of its text.

    Parameters
    ----------
    tokenizer
        The bundle's tokenizer.

    Raises
    ------
    ExportError
        No operators do what the tokenizer does.
    """
    description = json.loads(tokenizer.to_str())
    added = description["added_tokens"]
    names = _names(tokenizer, added)
    steps = list(_parts(description.get("decoder"), "decoders"))
    hidden = len(names)
    special = [str(each["id"]) for each in added if each["special"]]
    graph = _Nodes(DECODING)
    tokens = graph.add("Slice", "sequences", "P1", graph.integers(2**62), graph.integers(1))
    length = graph.add("Unsqueeze", graph.add("Sub", "lengths", "P1"), graph.integers(1))
    count = graph.add("Squeeze", graph.add("Shape", tokens, start=1))
    columns = graph.add("Range", graph.constant(np.int64(0)), count, _one(graph))
    is_text = graph.add("And", graph.add("Less", columns, length), graph.add("Less", tokens, graph.integers(hidden)))
    shown = graph.add("Where", is_text, tokens, graph.integers(hidden))
    # One text of all rows, since the operator reads beyond the end of the second of two.
    ended = graph.add("Pad", shown, graph.integers(0, 0, 0, 1), graph.constant(np.int64(hidden + 1)))
    whole = graph.add(
        "BpeDecoder",
        graph.add("Reshape", ended, graph.integers(-1)),
        domain=TEXT_DOMAIN,
        id_vocab="\n".join([*names, "hidden", END]),
        byte_decoder="\n".join(f"{code}\t{byte}" for code, byte in _byte_decoder(steps).items()),
        added_tokens="\n".join([*(f"{each['id']}\t{each['content']}" for each in added), f"{hidden + 1}\t{END}"]),
        all_special_ids="\n".join([*special, str(hidden)]),
        skip_special_tokens=1,
        en_normalization=0,
    )
    split, _ = graph.add_many("StringSplit", [whole], 2, delimiter=END)
    rows = graph.add("Shape", "sequences", end=1)
    first = graph.add("Slice", split, graph.integers(0), rows, graph.integers(1))
    text = graph.add("Squeeze", first, graph.integers(0))
    # Each byte that is no character becomes a mark: first behind each run of characters too, from where it goes again.
    text = graph.replace(text, rf"({ANY_CHARACTER}+)|\C", rf"\1{BROKEN}")
    text = graph.replace(text, f"([^{BROKEN}]+){BROKEN}", r"\1")
    text = graph.replace(text, BROKEN, "\ufffd")
    if ends := _stripped_ends(steps):
        text = graph.replace(text, ends, "")
    graph.add("Identity", text, out="texts")
    return graph.nodes


def _names(tokenizer: Tokenizer, added: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names of all ids; "" for an id without one."""
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    names = [""] * (1 + max(vocabulary.values()))
    for name, token in vocabulary.items():
        names[token] = name.replace("\n", "<0x0A>")
    if any("\n" in each["content"] for each in added):
        raise _refused("an added token has a line break")
    return names


def _byte_decoder(steps: Sequence[Mapping[str, Any]]) -> dict[int, int]:
    """Bytes of the characters in names of tokens, by their code."""
    kinds = [step["type"] for step in steps]
    if "ByteLevel" in kinds:
        return {ord(character): byte for byte, character in bytes_to_unicode().items()}
    if "Metaspace" in kinds or {"type": "Replace", "pattern": {"String": UNDERLINE}, "content": " "} in list(steps):
        return {ord(UNDERLINE): 32}
    raise _refused(f"its decoder {kinds[0] if kinds else None} has no operator")


def _stripped_ends(steps: Sequence[Mapping[str, Any]]) -> str:
    """A regular expression of the spaces that are removed from a text's ends; "" if none are."""
    strips = [step for step in steps if step["type"] == "Strip" and step["content"] == " "]
    if any(step["start"] > 1 for step in strips):  # all of them
        return r"\A +| +\z"
    metaspace = any(step["type"] == "Metaspace" and step.get("prepend_scheme", "always") != "never" for step in steps)
    return r"\A " if metaspace or any(step["start"] == 1 for step in strips) else ""
