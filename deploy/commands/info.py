"""The command ``tightbeam info``."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from tightbeam.deploy.console import Version, command_line, printable

__all__ = ["main"]

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


def main(name: str = "tightbeam info") -> None:
    """Entry point."""
    command_line(app, name)


@app.command()
def info(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    version: Version = False,
) -> None:
    """Print what this machine can run: processor, kernels, runtimes, GPUs and installed extras.

    What is missing is named with the command that installs it. Nothing is loaded onto a GPU.
    """
    # Imported here, so that --help does not wait for onnxruntime.
    from tightbeam.deploy.commands._machine import machine_facts, machine_report

    facts = machine_facts()
    if as_json:
        print(json.dumps(facts, ensure_ascii=False, indent=2))
        return
    for word, text in machine_report(facts):
        print(f"{word:<12}{printable(text)}")


if __name__ == "__main__":
    main()
