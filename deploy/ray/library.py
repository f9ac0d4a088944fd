"""Import of the optional libraries ray and pyarrow."""

from __future__ import annotations

import importlib
from typing import Any

from tightbeam.deploy.errors import RuntimeSetupError

__all__ = ["optional_library"]


def optional_library(name: str) -> Any:
    """Import a module of the extra ``ray``.

    Parameters
    ----------
    name : str
        The module, such as "ray.data" or "pyarrow.parquet".

    Returns
    -------
    module

    Raises
    ------
    RuntimeSetupError
        The package is missing, or cannot be imported.
    """
    package = name.partition(".")[0]
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise RuntimeSetupError(
            f"this needs the package {package}, which cannot be imported ({error}); pip install 'tightbeam[ray]'"
        ) from None
