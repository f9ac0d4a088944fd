"""Chat templates in the manner of published models, each with the features of the language that theirs use."""

from __future__ import annotations

from pathlib import Path

PLAIN = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
FOLDER = Path(__file__).parents[1] / "data" / "chat-templates"
TEMPLATES = {path.stem: path.read_text(encoding="utf-8").rstrip("\n") for path in sorted(FOLDER.iterdir())}
"""Templates by what they are known for."""
