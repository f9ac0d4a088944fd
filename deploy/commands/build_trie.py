"""The command ``build-trie``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from tightbeam.deploy.bundle.reader import Bundle
from tightbeam.deploy.console import Version, command_line, counted, say
from tightbeam.deploy.errors import BundleError, GenerationError, InputError
from tightbeam.deploy.generation.resolve import resolve_settings
from tightbeam.deploy.inputs.lines import parse_ids
from tightbeam.deploy.text.tokenizer import load_codec
from tightbeam.deploy.tries.build import build_trie
from tightbeam.deploy.tries.file import write_trie

__all__ = ["main"]

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


def main(name: str = "build-trie") -> None:
    """Entry point."""
    command_line(app, name)


@app.command("build-trie")
def build_trie_command(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="Bundle folder made by export-model.")],
    entries: Annotated[Path, typer.Argument(metavar="FILE", help="UTF-8 file with one allowed output in each line.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="File for the trie; an existing file is replaced.")
    ],
    ids: Annotated[
        bool, typer.Option("--ids", help="Read each line as a JSON list of token ids, in place of text.")
    ] = False,
    eos_token_id: Annotated[
        int | None,
        typer.Option(
            help="The token that ends an output, added to each output that does not end with it; by default the "
            "checkpoint's first end token."
        ),
    ] = None,
    open_ended: Annotated[
        bool,
        typer.Option(
            "--open-ended",
            help="Add no end token: the lines are beginnings of outputs, or end with their own end tokens.",
        ),
    ] = False,
    version: Version = False,
) -> None:
    """Build a trie of all outputs that may be generated, for run-model --trie.

    The bundle's tokenizer tokenizes texts, without special tokens. With --ids, leave out the start token (or prompt)
    and a forced first token.
    """
    try:
        if open_ended and eos_token_id is not None:
            raise InputError("--open-ended adds no end token, so --eos-token-id has no effect; leave one out")
        loaded = Bundle.load(bundle, verify=False)
        end = None if open_ended else _end_token(loaded, eos_token_id)
        found = list(_entries(loaded, entries, ids))
        if not found:
            raise InputError(f"{entries} is empty, a trie needs at least one entry; write one output in each line")
        trie = build_trie(found, end_token_id=end, name=str(entries))
        vocabulary = loaded.manifest.sizes.vocabulary
        if trie.vocabulary > vocabulary:
            raise InputError(
                f"{entries} holds token {trie.vocabulary - 1}, outside the vocabulary; "
                f"pass ids from 0 to {vocabulary - 1}"
            )
        write_trie(trie, output)
    except (BundleError, GenerationError, InputError) as error:
        say(f"error: {error}")
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        say("error: interrupted; nothing was left behind")
        raise typer.Exit(130) from None
    longest = counted(trie.longest, "token")
    print(f"wrote {output}: {trie.entries:,} different outputs of {longest} at most, {output.stat().st_size:,} bytes")


def _end_token(bundle: Bundle, given: int | None) -> int:
    """Return the end token of entries. Raises InputError if the checkpoint has no end token."""
    manifest = bundle.manifest
    chosen: dict[str, Any] = {} if given is None else {"eos_token_id": given}
    resolved = resolve_settings(manifest.generation, chosen, manifest.sizes, speech=manifest.has_windows)
    options = resolved.for_prompt(1)
    if not options.eos_token_ids:
        raise InputError(
            "the checkpoint has no eos_token_id; pass --eos-token-id, or --open-ended for outputs without an end token"
        )
    return options.eos_token_ids[0]


def _entries(bundle: Bundle, path: Path, ids: bool) -> Iterator[list[int]]:
    """Yield the tokens of each line. Raises InputError, which names the line, if a line has no tokens."""
    codec = None if ids else load_codec(bundle)
    if codec is None and not ids:
        raise InputError(f"bundle {bundle.path} has no tokenizer, since its checkpoint has none; pass --ids")
    try:
        with open(path, encoding="utf-8-sig") as file:
            for number, line in enumerate(file, start=1):
                text = line.rstrip("\r\n")
                try:
                    tokens = parse_ids(text) if codec is None else codec.encode_output(text)
                    if not tokens:
                        raise InputError("an empty line; expected an output")
                except InputError as error:
                    raise InputError(f"line {number} of {path}: {error}") from None
                yield tokens
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise InputError(f"cannot read {path}: {reason}; pass a file with one output in each line") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 ({error.reason}); convert it") from None


if __name__ == "__main__":
    main()
