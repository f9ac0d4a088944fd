"""HTML as texts to translate, with the markup between them as it was."""

from __future__ import annotations

import html
from collections.abc import Sequence
from html.parser import HTMLParser

__all__ = ["Markup"]


class Markup(HTMLParser):
    """Splits HTML into texts and what is between them.

    A text is what stands between two tags. Scripts, styles and space between tags are kept as they are.

    Parameters
    ----------
    source
        The HTML; any text is one.

    Attributes
    ----------
    texts : list of str
        The texts, without entities and without the space around them.
    """

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.texts: list[str] = []
        self._between = [""]  # before each text, and after the last one
        self.feed(source)
        self.close()

    def with_texts(self, texts: Sequence[str]) -> str:
        """Return the HTML with other ``texts`` in the places of its own, which are escaped."""
        escaped = [html.escape(text, quote=False) for text in texts]
        return "".join(part for pair in zip(self._between, [*escaped, ""], strict=True) for part in pair)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._keep(self.get_starttag_text() or "")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._keep(self.get_starttag_text() or "")

    def handle_endtag(self, tag: str) -> None:
        self._keep(f"</{tag}>")

    def handle_comment(self, data: str) -> None:
        self._keep(f"<!--{data}-->")

    def handle_decl(self, decl: str) -> None:
        self._keep(f"<!{decl}>")

    def unknown_decl(self, data: str) -> None:
        self._keep(f"<![{data}]>")

    def handle_pi(self, data: str) -> None:
        self._keep(f"<?{data}>")

    def handle_data(self, data: str) -> None:
        text = data.strip()
        if self.cdata_elem is not None or not text:
            self._keep(data if self.cdata_elem is not None else html.escape(data, quote=False))
            return
        begin = data.index(text)
        self._keep(data[:begin])
        self.texts.append(text)
        self._between.append(data[begin + len(text) :])

    def _keep(self, part: str) -> None:
        self._between[-1] += part
