"""Generation of tokens and text from a bundle folder. Runs on the serving machine, without torch.

    from tightbeam.deploy import Runner
    runner = Runner.load("bart-large-cnn-el")
    runner.generate_text(["..."], num_beams=4)

Errors, each a ValueError with a one-line message:

    BundleError         a bundle cannot be read, or cannot be run on this machine (deploy/errors.py)
    GenerationError     a setting is unknown, not supported or impossible
    InputError          a text, ids, a mask or audio cannot be run

A setting that has no effect, such as output_scores, is a NoEffectWarning.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tightbeam.deploy.bundle.reader import Bundle
    from tightbeam.deploy.errors import BundleError, GenerationError, InputError, NoEffectWarning
    from tightbeam.deploy.generation.options import GenerationOptions
    from tightbeam.deploy.runner import Runner
    from tightbeam.deploy.runtimes.kept_prompt import KeptPrompt
    from tightbeam.deploy.search import SearchResult

__all__ = [
    "Bundle",
    "BundleError",
    "GenerationError",
    "GenerationOptions",
    "InputError",
    "KeptPrompt",
    "NoEffectWarning",
    "Runner",
    "SearchResult",
]

_MODULES = {
    "Bundle": "bundle.reader",
    "BundleError": "errors",
    "GenerationError": "errors",
    "GenerationOptions": "generation.options",
    "InputError": "errors",
    "KeptPrompt": "runtimes.kept_prompt",
    "NoEffectWarning": "errors",
    "Runner": "runner",
    "SearchResult": "search",
}
"""Module of each name: it is imported at the first use, so that commands that run no model start at once."""


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
