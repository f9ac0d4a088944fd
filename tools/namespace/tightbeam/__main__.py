"""The command ``tightbeam``: every command of the package under one name, also as ``python -m tightbeam``."""

from __future__ import annotations

import importlib
import sys
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from tightbeam.deploy.console import Version, command_line

__all__ = ["COMMANDS", "main"]


class Entry(NamedTuple):
    """A command's module, which has ``app`` and ``main``, and its line in the help."""

    module: str
    help: str


COMMANDS = {
    "export": Entry("tightbeam.export.command", "Export a model as a bundle of ONNX graphs (export-model)."),
    "run": Entry("tightbeam.deploy.commands.run_model", "Generate from files with a bundle (run-model)."),
    "serve": Entry("tightbeam.deploy.commands.serve_model", "Serve bundles over HTTP (serve-model)."),
    "show": Entry("tightbeam.deploy.commands.show_bundle", "Print what a bundle holds (show-bundle)."),
    "info": Entry(
        "tightbeam.deploy.commands.info", "Print what this machine can run, and what to install for the rest."
    ),
    "build-engine": Entry("tightbeam.export.build_command", "Build a TensorRT engine of a bundle."),
    "build-trie": Entry("tightbeam.deploy.commands.build_trie", "Build a trie of the allowed outputs of a bundle."),
    "triton-repo": Entry("tightbeam.deploy.commands.triton_repo", "Write a bundle as a model of Triton's."),
    "serve-local": Entry("tightbeam.deploy.commands.serve_local", "Serve a repository of Triton's on this machine."),
}
"""Every command by its name after ``tightbeam``. In brackets: another name, under which it is a program of its own."""


class Commands(TyperGroup):
    """The commands of the table. A command's module is imported when the command runs, or completes its options."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return TyperCommand(cmd_name, help=COMMANDS[cmd_name].help) if cmd_name in COMMANDS else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        if name in COMMANDS:
            command = typer.main.get_command(importlib.import_module(COMMANDS[name].module).app)
        return name, command, rest


app = typer.Typer(cls=Commands, pretty_exceptions_enable=False)


def main() -> None:
    """Entry point. A command of the table runs as it does under its own name."""
    if len(sys.argv) > 1 and (entry := COMMANDS.get(sys.argv[1])):
        name = f"tightbeam {sys.argv.pop(1)}"
        importlib.import_module(entry.module).main(name)
    command_line(app, "tightbeam")


@app.callback(invoke_without_command=True)
def tightbeam(context: typer.Context, version: Version = False) -> None:
    """Export sequence generation to ONNX with small caches, and run and serve it.

    Each command has its own --help.
    """
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


if __name__ == "__main__":
    main()
