"""Texts that an export is checked with."""

SAMPLE_TEXTS = (
    "The town council of Harwick voted on Tuesday to repair the old stone bridge before winter. Work begins in March "
    "and will cost 240,000 pounds, the mayor said. Buses are to use the northern road until then.",
    "A library opens at nine.",
    "Heavy rain fell over the coast for three days; two ferries stayed in port, and 1,200 homes had no power.",
    "Naïve café owners paid €5.50 (or $6.00) for 'fresh' bread - why?",
)
"""Inputs of the comparison with torch: several lengths, digits, quotes, letters beyond ASCII."""

TOKENIZER_TEXTS = (
    *SAMPLE_TEXTS,
    "It is n't so , they 're late ! Do n't ask ? I 'm , you 've .",
    "  two  spaces\tand a tab\nand a new line  ",
    "東京の図書館 \U0001f600 Ελλάδα \u200bzero width",
    "<s> </s> <pad> <unk> <mask> [MASK] >>fr<<",
    "",
)
"""Texts on which two readers of one tokenizer must agree: what clean-up, normalisers and special tokens treat."""
