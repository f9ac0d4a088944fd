"""The reference pages name what the code has: all of it, and nothing else."""

from __future__ import annotations

import importlib
import inspect
import re
from typing import Any

import pytest
from typer.testing import CliRunner

import tightbeam.deploy
import tightbeam.export
from support.options import resolve_options
from tightbeam.deploy.bundle import engine_files, manifest
from tightbeam.deploy.bundle.reader import Bundle
from tightbeam.deploy.errors import GenerationError
from tightbeam.deploy.generation import fields
from tightbeam.deploy.runtimes.base import CANDIDATE_OUTPUTS, ENCODER_INPUTS, SMALL_INPUTS
from tightbeam.deploy.serving.protocol import tensors
from tightbeam.export.families.refused import REFUSED
from tightbeam.export.families.table import FAMILIES
from tightbeam.plugins.ops import OPERATORS
from tools.docs import tables
from tools.docs.pages import ROOT, for_site
from tools.docs.tables import command_names, table, with_tables

REFERENCE = ROOT / "docs" / "reference"
DIRECTIVE = re.compile(r"^::: (tightbeam\.[\w.]+)$", re.MULTILINE)
FIELDS = re.compile(r"<!-- fields of (\w+) -->\n\n\| field .*\n\|[-|]+\n((?:\|.*\n)+)")


def page(name: str) -> str:
    return (REFERENCE / f"{name}.md").read_text("utf-8")


def section(text: str, heading: str) -> str:
    """The text under a heading, up to the next of its level or above."""
    level = heading.partition(" ")[0]
    found = re.search(rf"^{re.escape(heading)}$(.*?)(?=^#{{1,{len(level)}}} |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found, f"there is no section {heading}"
    return found[1]


def first_column(rows: str) -> list[str]:
    return re.findall(r"^\| `([^`]+)` \|", rows, re.MULTILINE)


def entries() -> dict[str, Any]:
    """The parts of bundle.json and engine.json: every pydantic model of the two modules."""
    classes = {**vars(manifest), **vars(engine_files)}
    return {
        name: kind
        for name, kind in classes.items()
        if inspect.isclass(kind) and issubclass(kind, manifest.Entry) and kind is not manifest.Entry
    }


def test_bundle_page_has_every_field() -> None:
    documented = {name: first_column(rows) for name, rows in FIELDS.findall(page("bundle"))}
    assert documented == {name: list(kind.model_fields) for name, kind in entries().items()}


def test_tables_are_what_the_code_makes() -> None:
    """Compare each committed table with the code's."""
    made = tables.pages_with_tables()
    assert {path.name for path in made} == {"commands.md", "metrics.md", "operators.md", "python.md", "settings.md"}
    stale = [path.name for path, text in made.items() if path.read_text("utf-8") != text]
    assert not stale, f"{', '.join(stale)}: the code makes another table; run: make reference"


def test_a_table_is_made_in_its_place() -> None:
    marker = "<!-- made from the code: metrics -->"
    once = with_tables(f"Before.\n\n{marker}\n\nAfter.\n\n{marker}\n")
    assert once.count(tables.END) == 2 and once.count("`tightbeam_steps_total`") == 2 and "\n\nAfter.\n" in once
    assert with_tables(once) == once == with_tables(once.replace("counter", "dial"))
    with pytest.raises(KeyError):
        with_tables("<!-- made from the code: table-of-nothing -->")


def test_commands_page_has_every_command() -> None:
    text = page("commands")
    for name in command_names():
        assert f"<!-- made from the code: command {name} -->" in section(text, f"## {name}")


@pytest.mark.parametrize("name", command_names())
def test_table_of_a_command_has_every_option(name: str) -> None:
    app = importlib.import_module(command_names()[name].partition(":")[0]).app
    shown = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "300"}).output
    options = re.findall(r"^(?:│| ) (?:-[a-z], )?(--[a-z][a-z-]*)", shown.partition("Options")[2], re.MULTILINE)
    made = table("command", name)
    listed = [parameter for parameter in first_column(made) if parameter.startswith("--")]
    assert len(listed) >= 2
    assert [*listed, "--help"] == options


def test_settings_page_has_every_setting() -> None:
    supported, rest = section(page("settings"), "## Supported").split("### Sampling")
    assert set(first_column(supported)) == fields.SUPPORTED
    assert set(first_column(rest.partition("### ")[0])) == fields.SAMPLING.keys()
    translators = section(page("settings"), "### Translators of many languages")
    assert set(first_column(translators)) == fields.TRANSLATION_ONLY
    spoken = section(page("settings"), "### Canary and Cohere ASR")
    assert set(first_column(spoken)) == fields.SPOKEN_ONLY | {"language", "target_language"}
    assert set(first_column(section(page("settings"), "### Whisper"))) == fields.SPEECH_ONLY | {"temperature"}
    for name in fields.fields_of(fields.ModelKind.TEXT).keys() - fields.fields_of(fields.ModelKind.WHISPER).keys():
        assert f"`{name}`" in section(page("settings"), "### Whisper")
    for kind in ("DORMANT", "UNSUPPORTED", "INERT"):
        made = table("settings", kind)
        assert all(f"`{name}`" in made for name in getattr(fields, kind) if not name.startswith("_"))


def test_ranges_of_settings() -> None:
    """Each integer setting takes the least value that the page says, and refuses the one below it."""
    rows = re.findall(r"^\| `(\w+)` \|.*\| integer, (\d) or more \|", page("settings"), re.MULTILINE)
    assert len(rows) >= 9
    for name, least in rows:
        value = int(least)
        room = (
            {"max_length": 9} if name.startswith("min") else {"num_beams": 4} if name == "num_return_sequences" else {}
        )
        # A row has a start token, which max_length counts.
        accepted = value + (name == "max_length")
        defaults = {"decoder_start_token_id": 2, "eos_token_id": 2}
        resolve_options(defaults, {**room, name: accepted}, vocab_size=99, max_positions=32)
        with pytest.raises(GenerationError, match=name):
            resolve_options(defaults, {**room, name: value - 1}, vocab_size=99, max_positions=32)


def test_models_page_has_every_family_and_alias() -> None:
    text = page("models")
    encoders, decoders = section(text, "## Encoder-decoder models"), section(text, "## Decoder-only models")
    assert first_column(encoders) + first_column(decoders) == [family.model_type for family in FAMILIES]
    rows = re.findall(r"^\| `([\w-]+)` \| (.*) \|$", section(text, "## Aliases"), re.MULTILINE)
    aliases = {family: re.findall(r"`([^`]+)`", names) for family, names in rows}
    assert aliases == {family.model_type: list(family.aliases) for family in FAMILIES if family.aliases}
    assert not {*REFUSED} & {family.model_type for family in FAMILIES}
    for family in FAMILIES:  # as the page says
        assert all(hub_id.partition("/")[2] == alias for alias, hub_id in family.aliases.items())


def test_graphs_page_has_every_tensor() -> None:
    text = page("graphs")
    listed = {
        re.sub(r"<l>", "0", name)
        for row in re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)
        for name in re.findall(r"`([^`]+)`", row)
    }
    assert listed >= {*SMALL_INPUTS, *CANDIDATE_OUTPUTS, *ENCODER_INPUTS}
    bundle = Bundle.load(ROOT / "tests" / "data" / "bundle-format-1").manifest
    for tensor in (*bundle.encoder.inputs, *bundle.encoder.outputs, *bundle.decoder.inputs):
        assert tensor.name in listed


def test_served_model_page_has_every_tensor() -> None:
    text = page("metrics")
    listed = first_column(section(text, "## Inputs")) + first_column(section(text, "## Outputs"))
    assert set(listed) == {getattr(tensors, name) for name in tensors.__all__}


def test_operators_page_has_every_operator() -> None:
    assert set(re.findall(r"^\| \[`(\w+)`\]", page("operators"), re.MULTILINE)) == set(OPERATORS)
    for name in OPERATORS:
        assert f"<!-- made from the code: operator {name} -->" in section(page("operators"), f"### {name}")
    for name, operator in OPERATORS.items():
        made = table("operator", name)
        assert all(f"`{tensor.name}`" in made for tensor in operator.tensors)


def test_python_page_has_every_public_object() -> None:
    shown = set(DIRECTIVE.findall(page("python")))
    public = {
        f"{package.__name__}.{name}" for package in (tightbeam.export, tightbeam.deploy) for name in package.__all__
    }
    assert shown >= public, f"docs/reference/python.md lacks {', '.join(sorted(public - shown))}"


@pytest.mark.parametrize(
    ("source", "page_of_site", "link", "on_site"),
    [
        ("CONTRIBUTING.md", "contributing.md", "[d](docs/design.md#letters)", "[d](design.md#letters)"),
        (
            "docs/reference/graphs.md",
            "reference/graphs.md",
            "[c](../../CONTRIBUTING.md#rules)",
            "[c](../contributing.md#rules)",
        ),
        ("docs/hardware.md", "hardware.md", "[home](../README.md)", "[home](index.md)"),
        ("docs/hardware.md", "hardware.md", "[`Makefile`](../Makefile) runs", "`Makefile` runs"),
        ("docs/hardware.md", "hardware.md", "[no](../absent.txt)", "[no](../absent.txt)"),
        ("docs/hardware.md", "hardware.md", "![p](images/memory.png)", "![p](images/memory.png)"),
        ("docs/hardware.md", "hardware.md", "    [x](../Makefile)", "    [x](../Makefile)"),
        ("docs/hardware.md", "hardware.md", "[o](https://example.org/)", "[o](https://example.org/)"),
    ],
)
def test_links_on_the_site(source: str, page_of_site: str, link: str, on_site: str) -> None:
    assert for_site(link, source, page_of_site) == on_site
