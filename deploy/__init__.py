"""Bundle folder -> tokens and text. Runs on the serving machine; never imports torch.

    from tightbeam.deploy import Runner
    runner = Runner.load("bart-large-cnn-el")
    runner.generate_text(["..."], num_beams=4)

Errors, each a ValueError with a one-line message:

    BundleError         a bundle that cannot be read
    GenerationError     a setting that is unknown, not supported or impossible
    InputError          a text, ids or a mask that cannot be run
"""

from tightbeam.deploy.bundle.reader import Bundle, BundleError
from tightbeam.deploy.errors import InputError
from tightbeam.deploy.generation.fields import GenerationError
from tightbeam.deploy.generation.options import GenerationOptions
from tightbeam.deploy.runner import Runner
from tightbeam.deploy.search import SearchResult

__all__ = [
    "Bundle",
    "BundleError",
    "GenerationError",
    "GenerationOptions",
    "InputError",
    "Runner",
    "SearchResult",
]
