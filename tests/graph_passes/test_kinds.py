"""Records of the kinds of cache: what one says must agree with what others say."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tightbeam.graph_passes import GENERATED, PRESETS, SOURCE
from tightbeam.graph_passes.caches.kind import GeneratedKind, SourceKind


@pytest.mark.parametrize("kinds", [SOURCE, GENERATED], ids=["source", "generated"])
def test_safer_kinds_lead_to_keys_and_values(kinds: Mapping[str, SourceKind] | Mapping[str, GeneratedKind]) -> None:
    for kind in kinds.values():
        assert bool(kind.safer) == (kind.one_matrix is not None)
        seen = [kind.name]
        while kinds[seen[-1]].safer:
            seen.append(kinds[seen[-1]].safer)
            assert seen.count(seen[-1]) == 1, f"{' -> '.join(seen)} never ends"
        assert not kind.safer or seen[-1] == "kv"


def test_prompt_caches_go_with_some_generated_cache() -> None:
    forms = {form for kind in GENERATED.values() for form in kind.prefixes}
    for kind in SOURCE.values():
        assert (kind.prompt_pass is not None) == (kind.prefix in forms), kind.name


def test_presets_are_made_of_kinds() -> None:
    for preset in PRESETS.values():
        assert preset.source in SOURCE and preset.generated in GENERATED
