"""The check that what a sample gets does not depend on the samples beside it."""

from __future__ import annotations

import numpy as np

from support.references.generate_runs import batch
from tightbeam.deploy import Runner

LENGTHS = (5, 11, 11, 23, 7, 11)


def check_samples_alone(runner: Runner) -> None:
    """Assert that each sample of a batch has the tokens, and within rounding the scores, that it has alone."""
    ids, mask = batch(runner.manifest.sizes.source_vocabulary, 3, LENGTHS)
    settings = {"num_beams": 3, "max_new_tokens": 12}
    together = runner.generate(ids, mask, **settings)
    for sample, length in enumerate(LENGTHS):
        alone = runner.generate(ids[sample : sample + 1, :length], mask[sample : sample + 1, :length], **settings)
        width = alone.sequences.shape[1]
        np.testing.assert_array_equal(alone.sequences[0], together.sequences[sample, :width])
        np.testing.assert_allclose(alone.scores[0], together.scores[sample], rtol=1e-5)
