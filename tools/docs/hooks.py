"""Hooks of mkdocs, named in mkdocs.yml."""

from __future__ import annotations

import logging

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from tools.docs.pages import OUTSIDE, ROOT, for_site
from tools.docs.tables import with_tables

LOG = logging.getLogger("mkdocs.tools.docs")
"""A child of mkdocs' own logger, whose warnings fail a strict build."""
SOURCES = {page: source for source, page in OUTSIDE.items()}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages whose text stands outside docs/."""
    for source, page in OUTSIDE.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text("utf-8")))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Make a page of the repository a page of the site."""
    uri = page.file.src_uri
    if page.is_homepage:
        page.meta["hide"] = ["navigation", "toc"]
    if with_tables(markdown) != markdown:
        LOG.warning("%s has a table that the code makes otherwise; run: make reference", uri)
    return for_site(markdown, SOURCES.get(uri, f"docs/{uri}"), uri)
