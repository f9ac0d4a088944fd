"""The command ``show-bundle``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from tightbeam.deploy.bundle.reader import Bundle
from tightbeam.deploy.console import Version, command_line, printable, say
from tightbeam.deploy.errors import BundleError, GenerationError, InputError
from tightbeam.deploy.model.bundle_facts import facts_of, report_of, workload_of

__all__ = ["main"]

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


def main(name: str = "show-bundle") -> None:
    """Entry point."""
    command_line(app, name)


@app.command()
def show_bundle(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="Bundle folder made by export-model.")],
    batch_size: Annotated[
        int | None, typer.Option(help="Inputs of the batch whose cache is printed; 1 by default.")
    ] = None,
    num_beams: Annotated[
        int | None, typer.Option(help="Beams of the batch whose cache is printed; by default the checkpoint's.")
    ] = None,
    source_length: Annotated[
        int | None,
        typer.Option(
            help="Tokens of each source or prompt in the batch whose cache is printed; by default the model's limit."
        ),
    ] = None,
    new_tokens: Annotated[
        int | None,
        typer.Option(
            help="New tokens of each output in the batch whose cache is printed; by default the checkpoint's limit."
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object, with more facts, and sizes in bytes.")
    ] = False,
    version: Version = False,
) -> None:
    """Print what BUNDLE holds: model, variant, files, bytes of cache, the export's check, settings and engines.

    Everything is read from bundle.json and the graphs. Nothing is loaded or run, and checksums are not compared.
    """
    try:
        loaded = Bundle.load(bundle, verify=False)
        workload = workload_of(
            loaded.manifest,
            batch_size=batch_size,
            num_beams=num_beams,
            source_length=source_length,
            new_tokens=new_tokens,
        )
        if as_json:
            print(json.dumps(facts_of(loaded, workload), ensure_ascii=False, indent=2))
        else:
            for word, text in report_of(loaded, workload):
                print(f"{word:<12}{printable(text)}")
    except (BundleError, GenerationError, InputError) as error:
        say(f"error: {error}")
        raise typer.Exit(1) from None


if __name__ == "__main__":
    main()
