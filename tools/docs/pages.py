"""Pages of the site that stand elsewhere in the repository, and links that mean a file of the repository."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

__all__ = ["OUTSIDE", "ROOT", "for_site", "on_prose"]

ROOT = Path(__file__).resolve().parents[2]
OUTSIDE = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
"""Files of the repository's root that are pages of the site, and where."""
HOME = {"README.md": "index.md"}
"""Files that have a page in their place."""
LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
FENCE = re.compile(r"^ *(```|~~~)")


def for_site(markdown: str, source: str, page: str) -> str:
    """Rewrite a page's links for the site.

    A link to a page of the site leads there. A link to any other file of the repository becomes its text, since the
    site has no such file. A link to what does not exist stays, so that the build fails.

    Parameters
    ----------
    markdown : str
    source : str
        Path of the file, from the root of the repository.
    page : str
        Path of the page, from the root of the site.

    Returns
    -------
    str
    """

    def link(match: re.Match[str]) -> str:
        text, target = match.groups()
        path, hash_sign, anchor = target.partition("#")
        if re.match(r"[a-z]+:", target) or not path:
            return match.group()
        linked = os.path.normpath(os.path.join(os.path.dirname(source), path))
        if linked.startswith("docs/"):
            to = linked.removeprefix("docs/")
        elif linked in OUTSIDE or linked in HOME:
            to = (OUTSIDE | HOME)[linked]
        else:
            return text if (ROOT / linked).exists() else match.group()
        return f"[{text}]({os.path.relpath(to, os.path.dirname(page) or '.')}{hash_sign}{anchor})"

    return on_prose(markdown, lambda prose: LINK.sub(link, prose))


def on_prose(markdown: str, change: Callable[[str], str]) -> str:
    """Apply a function to the text between blocks of code, which are left as they are."""
    parts: list[tuple[bool, list[str]]] = []
    fenced = False
    for line in markdown.split("\n"):
        mark = bool(FENCE.match(line))
        is_code = fenced or mark or line.startswith("    ")
        fenced ^= mark
        if not parts or parts[-1][0] != is_code:
            parts.append((is_code, []))
        parts[-1][1].append(line)
    return "\n".join("\n".join(lines) if is_code else change("\n".join(lines)) for is_code, lines in parts)
