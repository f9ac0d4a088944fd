"""The Debian release in which other roots are made, and the wheels that its Python can have."""

from __future__ import annotations

__all__ = ["SUITE", "VERSION", "wheel_options"]

SUITE, VERSION = "bookworm", "3.11"
"""The release, and the version of its Python."""
GLIBC = (17, 24, 26, 27, 28, 31, 34, 35)
"""Minor versions of glibc in the tags of wheels that the release can run."""


def wheel_options(machine: str) -> list[str]:
    """List the options of ``pip install --target`` that choose wheels for a machine, such as ``aarch64``."""
    platforms = ("manylinux2014", *(f"manylinux_2_{minor}" for minor in GLIBC))
    return [
        "--only-binary=:all:",
        f"--python-version={VERSION}",
        *(f"--platform={each}_{machine}" for each in platforms),
    ]
