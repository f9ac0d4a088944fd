"""Bundles with a chat template."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from tightbeam.deploy.bundle.manifest import MANIFEST
from tightbeam.deploy.bundle.writer import file_entry

SIMPLE = (
    "{% for m in messages %}{{ m.role }} {{ m.content }} </s>{% endfor %}"
    "{% if add_generation_prompt %} the bridge of the town{% endif %}"
)
"""A template of a few tokens for the tests' tokenizer, which knows lower-case letters."""
LLAMA: dict[str, Any] = {"family": "llama", "tokenizer": True, "max_position_embeddings": 256}
"""Arguments of a checkpoint with room for a few turns."""


def with_template(bundle: Path, target: Path, template: str = SIMPLE, name: str = "chat_template.jinja") -> Path:
    """Copy a bundle, whose tokenizer gets a chat template."""
    shutil.copytree(bundle, target)
    path = target / "tokenizer" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(template, "utf-8")
    about = json.loads((target / MANIFEST).read_text("utf-8"))
    others = [entry for entry in about["tokenizer"]["files"] if entry["file"] != f"tokenizer/{name}"]
    about["tokenizer"]["files"] = [*others, file_entry(target, f"tokenizer/{name}").model_dump()]
    (target / MANIFEST).write_text(json.dumps(about), "utf-8")
    return target
