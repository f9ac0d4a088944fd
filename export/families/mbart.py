"""mBART (Liu et al. 2020, Tang et al. 2020): BART with the normalisation first, one more at the end, many languages."""

from __future__ import annotations

from tightbeam.export.families.bart_like import BartLike

MBART = BartLike(
    model_type="mbart",
    architecture="MBartForConditionalGeneration",
    position_offset=2,
    aliases={
        "mbart-large-cc25": "facebook/mbart-large-cc25",
        "mbart-large-en-ro": "facebook/mbart-large-en-ro",
        "mbart-large-50": "facebook/mbart-large-50",
        "mbart-large-50-many-to-many-mmt": "facebook/mbart-large-50-many-to-many-mmt",
        "mbart-large-50-many-to-one-mmt": "facebook/mbart-large-50-many-to-one-mmt",
        "mbart-large-50-one-to-many-mmt": "facebook/mbart-large-50-one-to-many-mmt",
    },
)
