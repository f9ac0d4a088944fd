"""Samples per second by engine and batch, as a drawing in SVG."""

from __future__ import annotations

from tools.bench.peers.results import Figures, Group, Results
from tools.drawings import INK, LINE, PALE, WIDTH, drawing, text

__all__ = ["picture"]

LEFT, RIGHT = 172, 48
"""Room for the engines' names, and for the numbers after the longest bar."""
TOP, HIGH, GAP = 58.0, 17, 30
COLOURS = {
    "Tightbeam": "#1f7a54",
    "CTranslate2": "#b4501f",
    "faster-whisper": "#b4501f",
    "OpenVINO": "#1f5fbf",
    "optimum-onnx": "#7a4fb0",
    "transformers": "#56657a",
}
INT8_OPACITY, FP32_OPACITY = 1, 0.55


def picture(results: Results, groups: list[Group]) -> str:
    """Bars of the groups, which have one shape and one number of beams; longer is faster."""
    figures = {group: [each for each in results.figures(group) if not each.is_floor] for group in groups}
    longest = max(each.samples_per_second for engines in figures.values() for each in engines)
    first = groups[0]
    search = f"{first.beams} beams" if first.beams > 1 else "greedy"
    length = f", {first.source} tokens in" if first.source else ""
    size = f"{first.shape}{length}, {first.new_tokens} out, {search}"
    parts = [text(14, 26, "Samples per second", 15, bold=True), text(14, 43, size, 12, fill=PALE)]
    y = TOP
    for group, engines in figures.items():
        parts.append(text(14, y + 12, f"batch {group.batch}", 13, bold=True))
        y += 20
        for each in sorted(engines, key=lambda each: -each.samples_per_second):
            parts += _bar(y, each, longest)
            y += HIGH
        y += GAP - HIGH + 4
    parts.append(f"<line x1='{LEFT}' x2='{LEFT}' y1='{TOP}' y2='{y - 8}' stroke='{LINE}'/>")
    parts.append(text(14, y + 6, "full colour: int8; pale: float32", 11, fill=PALE))
    return drawing(y + 20, f"Samples per second: {size}", parts)


def _bar(y: float, each: Figures, longest: float) -> list[str]:
    rate = each.samples_per_second
    width = max(1.0, (WIDTH - LEFT - RIGHT) * rate / longest)
    colour = next(colour for name, colour in COLOURS.items() if each.engine.startswith(name))
    opacity = INT8_OPACITY if each.engine.partition(",")[0].endswith("int8") else FP32_OPACITY
    return [
        text(LEFT - 8, y + 11, each.engine, 12, "end", INK, bold=each.engine.startswith("Tightbeam")),
        f"<rect x='{LEFT}' y='{y}' width='{width:.1f}' height='13' fill='{colour}' fill-opacity='{opacity}'/>",
        text(round(LEFT + width + 5, 1), y + 11, f"{rate:.3g}", 11, fill=PALE),
    ]
