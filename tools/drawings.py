"""The drawings of the documentation: one of each variant, of the beams' ancestry, and of the data's way.

python -m tools.drawings        # writes docs/images/*.svg

Filled boxes are tensors that are kept, arrows are products. Each drawing is 390 px wide, a phone's width, and has a
light background of its own, so that it is legible on a dark page.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
WIDTH = 390
INK, PALE, LINE, KEPT, MOVED = "#1c2733", "#56657a", "#8694a7", "#bfe3d0", "#ffd9a8"
BEAMS = ("#1f5fbf", "#b4501f", "#2a7d4f")
TIMES = "\N{MULTIPLICATION SIGN}"
FONT = "font-family='Helvetica, Arial, sans-serif'"


def text(
    x: float, y: float, words: str, size: int = 13, anchor: str = "start", fill: str = INK, bold: bool = False
) -> str:
    """Text whose parts after ``_`` and ``^`` are below and above the line, as in ``W_K^T``."""
    parts, shift = [], 0
    for part in re.findall(r"[_^](?:\{[^}]*\}|.)|[^_^]+", words):
        wanted = {"_": 4, "^": -5}.get(part[0], 0)
        small = f" font-size='{size - 3}'" if wanted else ""
        moved = f" dy='{wanted - shift}'" if wanted != shift else ""
        parts.append(f"<tspan{moved}{small}>{part.lstrip('_^{').rstrip('}')}</tspan>")
        shift = wanted
    style = f"font-size='{size}' text-anchor='{anchor}' fill='{fill}'" + (" font-weight='bold'" if bold else "")
    return f"<text x='{x}' y='{y}' {style} xml:space='preserve'>{''.join(parts)}</text>"


def box(x: float, y: float, w: float, h: float, kept: bool, stack: bool = False) -> str:
    """A tensor: filled where it is kept, dashed where it is not; ``stack`` draws more of them behind."""
    style = f"fill='{KEPT}'" if kept else "fill='#fff' stroke-dasharray='4 3'"
    behind = [
        f"<rect x='{x + d}' y='{y - d}' width='{w}' height='{h}' rx='4' stroke='{LINE}' fill='{KEPT}'/>"
        for d in ((8, 4) if stack else ())
    ]
    return "".join(behind) + f"<rect x='{x}' y='{y}' width='{w}' height='{h}' rx='4' stroke='{INK}' {style}/>"


def arrow(*points: tuple[float, float], stroke: str = INK) -> str:
    path = " ".join(f"{x},{y}" for x, y in points)
    return f"<polyline points='{path}' fill='none' stroke='{stroke}' stroke-width='1.4' marker-end='url(#head)'/>"


def product(x: float, y: float, words: str, moved: bool) -> str:
    """The matrix of a product, on its arrow; ``moved`` from before the cache to after it."""
    width = 12 + 8 * len(re.sub(r"[_^{}]", "", words))
    fill = MOVED if moved else "#fff"
    return (
        f"<rect x='{x - width / 2}' y='{y - 10}' width='{width}' height='20' rx='10' fill='{fill}' stroke='{INK}'/>"
        + text(x, y + 4, words, 12, "middle")
    )


def drawing(height: float, title: str, parts: Sequence[str]) -> str:
    head = (
        "<defs><marker id='head' viewBox='0 0 8 8' refX='7' refY='4' markerWidth='7' markerHeight='7' orient='auto'>"
        f"<path d='M0,0 L8,4 L0,8 z' fill='{INK}'/></marker></defs>"
    )
    frame = f"<rect x='.5' y='.5' width='{WIDTH - 1}' height='{height - 1}' rx='8' fill='#fdfdfb' stroke='#d5dbe3'/>"
    inside = "\n".join([head, frame, *parts])
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height}' width='{WIDTH}' height='{height}' "
        f"role='img' {FONT}>\n<title>{title}</title>\n{inside}\n</svg>\n"
    )


@dataclass(frozen=True)
class Kind:
    """One kind of cache, as a panel shows it."""

    kept: tuple[str, ...]
    """tensors that are kept: names; none for the input itself"""
    numbers: str
    how: str
    before: tuple[str, ...] = ()
    """matrices that the input is multiplied by, once"""
    query: str = ""
    """matrix that moved to the query"""
    output: str = ""
    """matrix that moved to the output"""
    stack: bool = True


SOURCE = {
    "kv-per-beam": Kind(("k", "v"), "2 L M N E", "for each layer and each beam", ("W_K", "W_V")),
    "kv": Kind(("k", "v"), "2 L N E", "for each layer, once for all beams", ("W_K", "W_V")),
    "states": Kind((), "N D", "once for all layers and beams", (), "W_K^T", "W_V", stack=False),
    "k": Kind(("k",), "L N E", "for each layer, once for all beams", ("W_K",), "", "W_K^{-1}W_V"),
    "first-k": Kind(
        ("k_1",), "N E", "of the first layer, for all layers and beams", ("W_{K1}",),
        "W_K^TW_{K1}^{-T}", "W_{K1}^{-1}W_V", stack=False,
    ),
}  # fmt: skip
GENERATED = {
    "kv-reordered": Kind(("k", "v"), "2 L T E", "copied to their beam's place in every step", ("W_K", "W_V")),
    "kv": Kind(("k", "v"), "2 L T E", "written once, read through ancestry", ("W_K", "W_V")),
    "k": Kind(("k",), "L T E", "written once, read through ancestry", ("W_K",), "", "W_K^{-1}W_V"),
    "x": Kind((), "L T D", "written once, read through ancestry", (), "W_K^T", "W_V"),
}
VARIANTS = {
    "baseline": ("kv-per-beam", "kv-reordered"),
    "dedup": ("kv", "kv"),
    "el": ("states", "kv"),
    "kcache": ("k", "k"),
    "xcache": ("states", "x"),
    "slim": ("states", "k"),
    "hybrid": ("first-k", "k"),
}


def panel(top: float, heading: str, name: str, length: str, kind: Kind, unit: str) -> list[str]:
    """Input, what is kept of it, and the step that reads it: the scores P of the query q above, the output below."""
    scores, sums, kept_x, node = top + 62, top + 122, 124, 236
    parts = [
        text(14, top + 18, heading, 14, bold=True),
        text(376, top + 18, f"{kind.numbers} numbers a {unit}", 13, "end"),
        text(14, top + 172, kind.how, 12, fill=PALE),
    ]
    middle = (scores + sums) / 2
    if kind.kept:
        parts += [box(14, middle - 24, 48, 48, kept=False), text(38, middle - 2, name, 15, "middle", bold=True)]
        parts.append(text(38, middle + 15, f"{length} {TIMES} D", 12, "middle"))
    places = {0: (middle,), 1: (middle,), 2: (scores, sums)}[len(kind.kept)]
    tall = 22.0 if len(kind.kept) == 2 else 50.0
    for place, tensor in zip(places, kind.kept or (name,), strict=True):
        width = f"{length} {TIMES} {'E' if kind.kept else 'D'}"
        parts.append(box(kept_x, place - tall, 62, 2 * tall, kept=True, stack=kind.stack))
        parts += [text(kept_x + 31, place - 2, tensor, 15, "middle", bold=True)]
        parts += [text(kept_x + 31, place + 15, width, 12, "middle")]
    for place, matrix in zip(places, kind.before, strict=False):
        start = (62, middle + (0 if len(places) == 1 else 12 * (1 if place > middle else -1)))
        parts += [arrow(start, (kept_x - 2, place)), product(92, (start[1] + place) / 2, matrix, moved=False)]
    parts += [arrow((kept_x + 62, y), (node - 17, y)) for y in (scores, sums)]
    for y, label in ((scores, "P"), (sums, "Σ")):
        parts.append(f"<circle cx='{node}' cy='{y}' r='15' fill='#fff' stroke='{INK}'/>")
        parts.append(text(node, y + 5, label, 14, "middle"))
    parts += [arrow((node, scores + 15), (node, sums - 17))]
    parts += [arrow((356, scores), (node + 17, scores)), text(362, scores + 5, "q", 15, bold=True)]
    parts += [arrow((node + 15, sums), (350, sums)), text(353, sums + 5, "out", 13, bold=True)]
    parts += [product(307, scores, kind.query, moved=True)] if kind.query else []
    parts += [product(299, sums, kind.output, moved=True)] if kind.output else []
    return parts


def variant(name: str) -> str:
    source, generated = VARIANTS[name]
    rule = f"<line x1='14' x2='376' y1='222' y2='222' stroke='{LINE}'/>"
    return drawing(
        412,
        f"The variant {name}: what it keeps, and where its products are",
        [
            text(14, 27, name, 17, bold=True),
            text(376, 27, "left: once a position | right: in every step", 12, "end", PALE),
            *panel(38, "Source", "S", "N", SOURCE[source], "sample"),
            rule,
            *panel(226, "Generated tokens", "x", "T", GENERATED[generated], "row"),
        ],
    )


def legend() -> str:
    return drawing(
        128,
        "How to read the drawings",
        [
            box(14, 16, 40, 26, kept=True),
            text(64, 34, "a tensor that is kept"),
            box(214, 16, 40, 26, kept=False),
            text(264, 34, "one that is not"),
            product(34, 64, "W_V", moved=False),
            text(64, 69, "a product made once"),
            product(234, 64, "W_V", moved=True),
            text(264, 69, "one in every step"),
            text(14, 98, "q: query of a beam    P: softmax of the scores", 13),
            text(14, 117, "Σ: weighted sum of the rows", 13),
        ],
    )


def ancestry() -> str:
    rows = ((0, 0, 1, 0), (0, 0, 1, 1), (0, 2, 2, 2))
    left, top, wide, high = 74, 62, 76, 62
    parts = [text(14, 27, "Keys of one sample, 3 beams, 4 positions", 15, bold=True)]
    parts += [text(left + 33 + wide * t, top - 9, f"position {t}", 12, "middle", PALE) for t in range(4)]
    for slot in range(3):
        parts.append(text(14, top + 30 + high * slot, f"slot {slot}", 13, fill=PALE))
        for t in range(4):
            parts.append(box(left + wide * t, top + high * slot, 66, 50, kept=True))
            parts.append(
                text(left + (40 if t > 1 else 5) + wide * t, top + 42 + high * slot, f"k_{{{slot}{t}}}", 13, bold=True)
            )
    for beam, slots in enumerate(rows):
        y = [top + high * slot + 12 + 7 * beam for slot in slots]
        points = " ".join(f"{left + 33 + wide * t},{y[t]}" for t in range(4))
        parts.append(f"<polyline points='{points}' fill='none' stroke='{BEAMS[beam]}' stroke-width='2.2'/>")
        parts += [f"<circle cx='{left + 33 + wide * t}' cy='{y[t]}' r='3.2' fill='{BEAMS[beam]}'/>" for t in range(4)]
    below = top + 3 * high + 22
    parts.append(text(14, below, "ancestry: which slot holds each position of a beam", 14, bold=True))
    for beam, slots in enumerate(rows):
        y0 = below + 14 + 30 * beam
        parts.append(text(14, y0 + 17, f"beam {beam}", 13, fill=BEAMS[beam], bold=True))
        for t, slot in enumerate(slots):
            place = f"x='{left + wide * t}' y='{y0}' width='66' height='23' rx='3'"
            parts.append(f"<rect {place} fill='#fff' stroke='{BEAMS[beam]}'/>")
            parts.append(text(left + 33 + wide * t, y0 + 16, str(slot), 13, "middle"))
    return drawing(below + 116, "Each beam reads its own path through the slots; no key is moved", parts)


def pipeline() -> str:
    def stage(x: float, y: float, title: str, *lines: str, kept: bool = False) -> list[str]:
        fill = KEPT if kept else "#fff"
        frame = f"<rect x='{x}' y='{y}' width='110' height='66' rx='6' fill='{fill}' stroke='{INK}'/>"
        words = [text(x + 55, y + 38 + 16 * i, line, 11, "middle", PALE) for i, line in enumerate(lines)]
        return [frame, text(x + 55, y + 20, title, 13, "middle", bold=True), *words]

    def band(y: float, height: float, words: str) -> list[str]:
        frame = f"<rect x='8' y='{y}' width='374' height='{height}' rx='8' fill='#f0f4f8' stroke='none'/>"
        return [frame, text(18, y + 17, words, 12, fill=PALE)]

    first, second = 40, 178
    return drawing(
        302,
        "From a checkpoint to a served model",
        [
            *band(10, 110, "build machine: export-model"),
            *stage(14, first, "checkpoint", "config.json,", "safetensors"),
            *stage(140, first, "canonical ONNX", "plain attention,", "nothing cached"),
            *stage(266, first, "variant ONNX", "a pass for each", "kind of cache"),
            arrow((124, first + 33), (138, first + 33)),
            arrow((250, first + 33), (264, first + 33)),
            *band(148, 144, "serving machine: no torch"),
            *stage(266, second, "bundle", "graphs, weights,", "tokenizer", kept=True),
            *stage(140, second, "runtime", "ONNX Runtime,", "TensorRT"),
            *stage(14, second, "text, tokens", "run-model, Python,", "Triton"),
            arrow((320, first + 66), (320, second - 2)),
            text(312, 138, "checked against model.generate", 12, "end", INK),
            arrow((266, second + 33), (252, second + 33)),
            arrow((140, second + 33), (126, second + 33)),
            text(195, second + 88, "search: beams and their ancestry, in numpy", 12, "middle", PALE),
            text(195, second + 104, "step by step: candidates out, tokens in", 12, "middle", PALE),
        ],
    )


def drawings() -> dict[str, str]:
    """All drawings, by file name."""
    named = {"legend": legend(), "ancestry": ancestry(), "pipeline": pipeline()}
    return {f"{name}.svg": body for name, body in ({f"cache-{v}": variant(v) for v in VARIANTS} | named).items()}


if __name__ == "__main__":
    for name, body in drawings().items():
        (IMAGES / name).write_text(body, encoding="utf-8")
