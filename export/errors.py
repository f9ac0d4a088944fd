"""The one exception of the build side."""

from __future__ import annotations


class ExportError(ValueError):
    """A checkpoint, an option or an output folder that cannot be exported.

    The message is one line: what was wrong, what was expected, the fix. The command prints it as it is.
    """

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))
