"""The settings and samples that an export's comparison gives torch."""

from __future__ import annotations

import pytest

from support.checkpoints.families import CheckpointCache
from tightbeam.export.accuracy.reference import make_reference, samples_of
from tightbeam.export.checkpoint.load import load_checkpoint


@pytest.mark.parametrize("family", ["moonshine", "trocr", "bart"])
def test_nothing_is_drawn_for_audio_and_images(checkpoints: CheckpointCache, family: str) -> None:
    checkpoint = load_checkpoint(checkpoints(family, generation={"do_sample": True, "num_return_sequences": 2}))
    reference = make_reference(checkpoint, samples_of(checkpoint))
    drawn = [generation.settings.get("do_sample") is not False for generation in reference.generations]
    assert drawn == [family == "bart", False, False]
