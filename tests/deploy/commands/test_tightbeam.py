"""The command ``tightbeam``: every command under one name, completion, and what this machine can run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer

from support.commands import caller
from tightbeam.__main__ import COMMANDS, main
from tightbeam.deploy.commands import _machine
from tightbeam.deploy.console import command_line
from tightbeam.plugins.instruction_set import INSTRUCTION_SETS, instruction_set
from tightbeam.plugins.library import cpu_library

ROOT = Path(__file__).resolve().parents[3]
START = "import sys; from tightbeam.__main__ import main; sys.argv = {arguments!r}"


def tightbeam(*arguments: str, after: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    code = START.format(arguments=["tightbeam", *arguments])
    code += f"\ntry:\n    main()\nfinally:\n    {after or 'pass'}"
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | {"COLUMNS": "100"} | environment
    )


def test_every_command_is_there() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts.pop("tightbeam") == "tightbeam.__main__:main"
    by_module = {f"{entry.module}:main": (name, entry.help) for name, entry in COMMANDS.items()}
    assert by_module.keys() == {*scripts.values(), "tightbeam.deploy.commands.info:main"}
    for script, place in scripts.items():
        name, text = by_module[place]
        assert name == script or text.endswith(f"({script}).")


def test_help_lists_the_commands_and_imports_none() -> None:
    done = tightbeam(after="print(*sorted(sys.modules), file=sys.stderr)")
    assert done.returncode == 0
    for name, entry in COMMANDS.items():
        assert re.search(rf"^\W*{name} +{re.escape(entry.help[:40])}", done.stdout, re.MULTILINE)
        assert entry.module not in done.stderr.split()


def test_a_command_runs_as_under_its_own_name(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    own = subprocess.run(
        [sys.executable, "-m", "tightbeam.deploy.commands.show_bundle", missing], capture_output=True, text=True
    )
    done = tightbeam("show", missing)
    assert (done.returncode, done.stderr) == (own.returncode, own.stderr)
    assert done.returncode == 1 and missing in done.stderr


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("shw",), ("'shw'", "; see tightbeam --help")),
        (("show", "x", "--bach-size", "3"), ("--bach-size", "; see tightbeam show --help")),
        (("export", "x", "--fp16"), ("the precision is --precision", "; see tightbeam export --help")),
    ],
)
def test_a_wrong_command_line(
    arguments: tuple[str, ...],
    parts: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    done = caller(monkeypatch, capsys)(*arguments, entry=main)
    (line,) = done.err.splitlines()
    assert done.code == 2 and line.startswith("error: ") and all(part in line for part in parts)


@pytest.mark.parametrize(
    ("words", "expected"),
    [("tightbeam s", ["serve", "show", "serve-local"]), ("tightbeam show --num", ["--num-beams"])],
)
def test_completion(words: str, expected: list[str]) -> None:
    place = str(len(words.split()) - 1)
    done = tightbeam(_TIGHTBEAM_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=place)
    assert (done.returncode, done.stdout.split()) == (0, expected)


@pytest.mark.parametrize("coloured", [True, False])
def test_no_color(coloured: bool) -> None:
    environment = {"FORCE_COLOR": "1", "TERM": "xterm"} | ({} if coloured else {"NO_COLOR": "1"})
    done = tightbeam("--help", **environment)
    assert bool(re.search(r"\x1b\[[\d;]*3\d", done.stdout)) == coloured


def test_info_says_what_runs() -> None:
    facts = json.loads(tightbeam("info", "--json").stdout)
    assert facts["cpu_library"] == (str(cpu_library()) if cpu_library() else None)
    assert facts["instruction_set"] == instruction_set()
    assert "CPUExecutionProvider" in facts["providers"] and facts["extras"].keys() == _machine.EXTRAS.keys()
    lowest = json.loads(tightbeam("info", "--json", TIGHTBEAM_ISA="baseline").stdout)
    assert lowest["instruction_set"] == (None if instruction_set() is None else "baseline")


def report(facts: dict[str, Any]) -> str:
    return "\n".join(f"{word:<12}{text}" for word, text in _machine.machine_report(facts))


def test_info_names_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    versions, found = {"pillow": None, "av": "1"}, _machine._version
    monkeypatch.setattr(_machine, "_version", lambda name: versions[name] if name in versions else found(name))
    monkeypatch.setattr(_machine, "_gpus", lambda: ["NVIDIA H200, 143771 MiB, 580.1, 9.0"])
    monkeypatch.setenv("TIGHTBEAM_LIBRARY", "none")
    facts = _machine.machine_facts()
    assert facts["extras"]["image"] == ["pillow"] and "av" in facts["extras"]["audio"]
    text = report(facts)
    assert "kernels     none" in text and "GPU         NVIDIA H200" in text
    for part in (
        "read images: pip install 'tightbeam[image]' (lacks pillow)",
        "pip uninstall onnxruntime, then pip install onnxruntime-gpu",
        "install GCC 12 or Clang",
    ):
        assert part in text


def test_info_leaves_out_an_extra_for_other_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "importlib.metadata.requires", lambda name: ['some; sys_platform == "none" and extra == "server"']
    )
    assert _machine._lacking("server") is None


def test_every_extra_of_a_user_is_known() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert _machine.EXTRAS.keys() == extras.keys() - {"docs", "dev"}


def test_a_library_that_the_system_lacks_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["run"])
    app = typer.Typer(add_completion=False)

    @app.command()
    def run() -> None:
        raise ImportError("no numpy\nThe error was: libstdc++.so.6: cannot open shared object file: No such file")

    with pytest.raises(SystemExit, match="1"):
        command_line(app, "run")
    said = (
        "error: a package needs libstdc++.so.6, which this system lacks; install it (libstdc++6, as Debian names it)\n"
    )
    assert capfd.readouterr().err == said


def test_every_instruction_set_has_a_name() -> None:
    listed = (ROOT / "plugins" / "kernels" / "cpu" / "instruction_sets.h").read_text()
    names = re.search(r"enum class InstructionSet \{ (.*) \}", listed)
    assert names and names[1].split(", ") == list(INSTRUCTION_SETS)
