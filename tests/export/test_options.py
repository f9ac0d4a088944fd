"""The options of an export: one record, of which the command, the function and the reference pages are made."""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import pytest
import typer
from typer.testing import CliRunner

from tightbeam.export import ExportError, build_command, command, export_model
from tightbeam.export.auto.workload import Workload
from tightbeam.export.option import Option, check_options, from_command, settings_of, with_options
from tightbeam.export.options import ExportKeywords, ExportOptions
from tightbeam.export.tensorrt.options import EngineOptions
from tools.docs.tables import table


@pytest.mark.parametrize(
    ("app", "records", "own"),
    [
        (command.app, [ExportOptions, Workload], {"model", "output", "dry_run", "verbose", "version"}),
        (build_command.app, [EngineOptions], {"bundle", "version"}),
    ],
)
def test_a_command_has_every_option_once(app: typer.Typer, records: list[type], own: set[str]) -> None:
    made: Any = typer.main.get_command(app)
    parameters = {parameter.name: parameter for parameter in made.params}
    settings = [setting for record in records for setting in settings_of(record)]
    assert {*parameters} - own == {setting.parameter.name for setting in settings}
    for setting in settings:
        parameter = parameters[setting.parameter.name]
        assert parameter.opts == [setting.flag] and parameter.help == setting.option.help
        default = setting.value(parameter.default)
        assert (tuple(default) if isinstance(default, list) else default) == setting.default


def test_the_function_has_every_option_once() -> None:
    signature, text = inspect.signature(export_model), inspect.getdoc(export_model) or ""
    own = ["model", "output", "workload", "on_step", "on_table", "on_note", "on_count"]
    settings = settings_of(ExportOptions)
    assert sorted(signature.parameters) == sorted([*own, *(setting.name for setting in settings)])
    for setting in settings:
        assert signature.parameters[setting.name] == setting.keyword
    for name in signature.parameters:
        assert text.count(f"\n{name}\n    ") == 1, name
    assert get_type_hints(ExportKeywords) == {setting.name: setting.type for setting in settings}
    with pytest.raises(TypeError, match="unexpected keyword argument 'varient'"):
        export_model("demo", varient="el")  # type: ignore[call-arg]


@pytest.mark.parametrize("record", [ExportOptions, Workload])
def test_the_reference_page_has_every_option(record: type) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "python.md").read_text("utf-8")
    name = f"{record.__module__}.{record.__name__}"
    assert f"<!-- made from the code: keywords {name} -->" in page
    made = table("keywords", name)
    assert [line.split("`")[1] for line in made.splitlines()[2:]] == [setting.name for setting in settings_of(record)]


def test_every_field_is_an_option() -> None:
    assert {field.name for field in fields(ExportOptions)} - {s.name for s in settings_of(ExportOptions)} == {
        "workload"
    }
    for record in (Workload, EngineOptions):
        assert [field.name for field in fields(record)] == [setting.name for setting in settings_of(record)]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"variant": "slimmer"}, "variant 'slimmer' is unknown; expected one of baseline, dedup, el, "),
        ({"source_cache": "k1"}, "source-cache 'k1' is unknown; expected one of "),
        ({"generated_cache": "y"}, "generated-cache 'y' is unknown; expected one of "),
        ({"precision": "fp8"}, "precision 'fp8' is not supported; expected fp32, "),
        ({"precision": "bf16"}, "a bundle cannot be in bf16: .*; take --precision fp16, or "),
        ({"cache_precision": "int4"}, "cache_precision 'int4' is not supported; expected int8, "),
        ({"max_new_tokens": 0}, "max_new_tokens=0 leaves nothing to generate; expected 1 or more"),
        ({"weight_threshold": 1.0}, "weight_threshold=1 is not a share below 1; expected 0 "),
        ({"screen_logits": True, "precision": "int4"}, "screen_logits is for fp32 and int8, the precision is int4; "),
        ({"weight_threshold": math.nan}, "weight_threshold=nan is not a share below 1; expected 0 "),
        ({"global_tokens": -1}, "global_tokens=-1 is not a number of tokens; expected 0 "),
        ({"max_differing": 2.0, "precision": "int8"}, "max_differing=2 is not a share; expected 0 to 1"),
    ],
)
def test_wrong_values_are_refused_in_one_line(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ExportError, match=rf"^{said}[^\n]*$"):
        ExportOptions(**options)


@pytest.mark.parametrize(
    "size", ["batch_size", "num_beams", "source_length", "new_tokens", "bandwidth_gb_s", "gflop_s"]
)
def test_sizes_that_are_not_positive_are_refused(size: str) -> None:
    for value in (0, -1, 2**31):
        with pytest.raises(ExportError, match=rf"^{size}={value} is out of range; expected more than 0 and less than"):
            Workload(**{size: value})


def check_size(record: Toy) -> None:
    if record.size < 1:
        raise ExportError(f"size={record.size}; expected 1 or more")


@dataclass(frozen=True, kw_only=True)
class Toy:
    """A record with each kind of option."""

    size: Annotated[int, Option("Bytes, with --no-compress.", check_size, lambda text: int(text, 16))]
    colours: Annotated[tuple[str, ...], Option("Colours.", parse=lambda text: tuple(text.split(",")), flag="--colour")]
    compress: Annotated[bool, Option("Do not compress.")] = True
    fast: Annotated[bool, Option("Be quick.")] = False
    other: int = 3

    def __post_init__(self) -> None:
        check_options(self)


def test_a_command_makes_the_record() -> None:
    app, made = typer.Typer(), []

    @app.command()
    @with_options(Toy)
    def run(name: str, **given: Any) -> None:
        made.append(from_command(Toy, given, other=len(name)))

    done = CliRunner().invoke(app, ["four", "--size", "ff", "--colour", "red,blue", "--no-compress", "--fast"])
    assert done.exit_code == 0, done.output
    assert made == [Toy(size=255, colours=("red", "blue"), compress=False, fast=True, other=4)]
    assert [s.meaning for s in settings_of(Toy)][::2] == ["Bytes, with compress=False.", "False: do not compress."]
    with pytest.raises(ExportError, match="size=0"):
        Toy(size=0, colours=())
