"""The table that ends an export: what each variant keeps, in bytes, for the model's own sizes."""

from __future__ import annotations

from rich.table import Table

from tightbeam.deploy.bundle import Bundle
from tightbeam.graph_passes import PRESETS, Job, Sizes

BEAMS = 4
BATCHES = (1, 32)


def memory_table(bundle: Bundle) -> Table:
    """Bytes of the source and the generated cache by variant, batch 1 and 32, beam 4, at the model's full lengths."""
    manifest = bundle.manifest
    sizes = Sizes(**manifest.sizes.model_dump())
    T = longest_output(bundle)
    table = Table(
        title=f"Cache of {manifest.model}, fp32, {BEAMS} beams, source of {sizes.max_source} and output of {T} tokens",
        title_justify="left",
    )
    for heading in ("variant", "batch", "source cache", "generated cache", "total", "of baseline"):
        table.add_column(heading, justify="left" if heading == "variant" else "right", no_wrap=True)
    for batch in BATCHES:
        job = Job(B=batch, M=BEAMS, N=sizes.max_source, T=T)
        whole = sum(PRESETS["baseline"].cache_bytes(sizes, job))
        for name, preset in PRESETS.items():
            source, generated = preset.cache_bytes(sizes, job)
            total = source + generated
            style = "bold" if name == manifest.variant else None
            row = (name, str(batch), f"{source:,}", f"{generated:,}", f"{total:,}", f"{total / whole:.1%}")
            table.add_row(*row, style=style, end_section=name == list(PRESETS)[-1])
    return table


def longest_output(bundle: Bundle) -> int:
    """T, the most positions a generation with the bundle's defaults keeps in its cache."""
    settings = bundle.manifest.generation
    new_tokens = settings.get("max_new_tokens") or (settings.get("max_length") or 21) - 1
    return int(min(new_tokens, bundle.manifest.sizes.max_target))
