"""BART (Lewis et al. 2019) and its distillations: learned positions, the first two rows of the table unused."""

from __future__ import annotations

from tightbeam.export.families.bart_like import BartLike

BART = BartLike(
    model_type="bart",
    architecture="BartForConditionalGeneration",
    position_offset=2,
    aliases={
        "bart-large-cnn": "facebook/bart-large-cnn",
        "bart-large-xsum": "facebook/bart-large-xsum",
        "bart-large-cnn-samsum": "philschmid/bart-large-cnn-samsum",
        "distilbart-cnn-6-6": "sshleifer/distilbart-cnn-6-6",
        "distilbart-cnn-12-3": "sshleifer/distilbart-cnn-12-3",
        "distilbart-cnn-12-6": "sshleifer/distilbart-cnn-12-6",
        "distilbart-xsum-6-6": "sshleifer/distilbart-xsum-6-6",
        "distilbart-xsum-12-1": "sshleifer/distilbart-xsum-12-1",
        "distilbart-xsum-12-3": "sshleifer/distilbart-xsum-12-3",
        "distilbart-xsum-12-6": "sshleifer/distilbart-xsum-12-6",
    },
)
