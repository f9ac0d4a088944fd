"""A checkpoint's config with transformers' defaults, without importing transformers, which takes seconds with torch.

transformers declares the fields of a config class with literal defaults; they are read from its source. What a class
computes from other fields stays as declared, which is None as a rule.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tightbeam.export.families.image.pix2struct import PIX2STRUCT_PARTS
from tightbeam.export.families.image.vision_encoder_decoder import PARTS
from tightbeam.export.families.speech.fast_conformer import COHERE_ASR, FAST_CONFORMER_PARTS
from tightbeam.export.families.text.t5gemma import T5GEMMA, T5GEMMA_PART
from tightbeam.export.families.text.t5gemma2 import T5GEMMA2_PARTS

__all__ = ["declared_config"]

SIDES = frozenset({"encoder", "decoder", "text_config", "vision_config", *FAST_CONFORMER_PARTS})
"""Fields that hold the config of a part of a model."""
OWN_PARTS = {T5GEMMA.model_type: T5GEMMA_PART}
"""Model types whose two sides have a type of their own, and that type; a config may leave a side out."""

KNOWN_PARTS = (*PARTS, *PIX2STRUCT_PARTS, *FAST_CONFORMER_PARTS.values(), *T5GEMMA2_PARTS)
"""Model types of parts whose configs transformers declares."""


def declared_config(model_type: str, config_json: Mapping[str, Any]) -> SimpleNamespace:
    """The fields of ``config.json``, over the defaults that transformers declares for its model type.

    Parameters
    ----------
    model_type
        Name of the family, such as "bart".
    config_json
        The content of ``config.json``.

    Returns
    -------
    SimpleNamespace
        Fields as attributes, also under the other names that transformers knows them by.

    Raises
    ------
    ModuleNotFoundError
        transformers is not installed.
    """
    defaults, other_names, of_parts = _declarations(model_type)
    fields = {other_names.get(name, name): value for name, value in config_json.items()}
    fields = {**defaults, **fields, **{name: config_json[name] for name in defaults.keys() & config_json.keys()}}
    for side in SIDES & fields.keys():
        part = fields[side]
        if side in of_parts and part is None:
            part = of_parts[side]
        elif side in of_parts and isinstance(part, dict) and model_type == COHERE_ASR.model_type:
            part = {**of_parts[side], **part}  # as this config class does
        if side in FAST_CONFORMER_PARTS and (part is None or isinstance(part, dict)):
            part = {"model_type": FAST_CONFORMER_PARTS[side], **(part or {})}
        if model_type in OWN_PARTS and (part is None or isinstance(part, dict)):
            fields[side] = declared_config(OWN_PARTS[model_type], part or {})
        elif isinstance(part, dict):
            known = part.get("model_type") in KNOWN_PARTS
            fields[side] = declared_config(str(part["model_type"]), part) if known else SimpleNamespace(**part)
    aliases = {alias: fields[name] for alias, name in other_names.items() if name in fields}
    return SimpleNamespace(**{**aliases, **fields})


FORMER_NAMES = {"bloom": {"n_embed": "hidden_size"}}
"""Names that a config class takes beside its ``attribute_map``: other name -> name."""


@cache
def _declarations(model_type: str) -> tuple[dict[str, Any], dict[str, str], dict[str, dict[str, Any]]]:
    """Literal defaults of the config class of a model type.

    Also its ``attribute_map``: other name -> name; and defaults of its parts' configs: field -> name -> value.
    """
    path = _source_file(model_type)
    if path is None:
        raise ModuleNotFoundError("No module named 'transformers'", name="transformers")
    tree = ast.parse(path.read_text("utf-8"))
    config_class = next(
        node for node in tree.body if isinstance(node, ast.ClassDef) and _literals(node).get("model_type") == model_type
    )
    literals = _literals(config_class)
    other_names = literals.pop("attribute_map", {})
    return literals, {**FORMER_NAMES.get(model_type, {}), **other_names}, _part_defaults(config_class)


def _source_file(model_type: str) -> Path | None:
    """The source of the config class of a model type; None if transformers is not installed, or lacks it."""
    spec = importlib.util.find_spec("transformers")
    if spec is None or not spec.submodule_search_locations:
        return None
    whole, models = model_type.replace("-", "_"), Path(spec.submodule_search_locations[0]) / "models"
    whole = {part: model for model, part in OWN_PARTS.items()}.get(whole, whole)
    # The text part of a model of several kinds lies with it, and so do both parts of Pix2Struct.
    for name in (whole, whole.removesuffix("_text"), whole.removesuffix("_model").rpartition("_")[0]):
        for path in (models / name / f"configuration_{name}.py", *models.glob(f"*/configuration_{name}.py")):
            if path.is_file():
                return path
    return None


def _part_defaults(config_class: ast.ClassDef) -> dict[str, dict[str, Any]]:
    """Literal defaults of the parts' configs, by field, for parts that have them; ``model_type`` is one of them."""
    found: dict[str, dict[str, Any]] = {}
    for node in config_class.body:
        names = [target.id for target in getattr(node, "targets", ()) if isinstance(target, ast.Name)]
        if (
            names != ["sub_configs_defaults"]
            or not isinstance(node, ast.Assign)
            or not isinstance(node.value, ast.Dict)
        ):
            continue
        for field, spec in zip(node.value.keys, node.value.values, strict=True):
            given = {word.arg: word.value for word in spec.keywords} if isinstance(spec, ast.Call) else {}
            if isinstance(field, ast.Constant) and "init_kwargs" in given and "model_type" in given:
                kind = _literal(given["model_type"])
                found[str(field.value)] = {**_literal(given["init_kwargs"]), "model_type": kind}
    return found


def _literals(config_class: ast.ClassDef) -> dict[str, Any]:
    """Attributes of a class whose values are literals."""
    found = {}
    for node in config_class.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            name, value = node.target.id, node.value
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name, value = node.targets[0].id, node.value
        else:
            continue
        try:
            found[name] = _literal(value)
        except ValueError:  # a call
            continue
    return found


def _literal(node: ast.expr) -> Any:
    """The value of a literal, or of a product such as ``4096 * 32``. Raises ValueError for anything else."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return _literal(node.left) * _literal(node.right)
    return ast.literal_eval(node)
