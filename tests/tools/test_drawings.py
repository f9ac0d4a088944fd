"""The drawings in docs/images are those that `python -m tools.drawings` makes, and are well-formed."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from tightbeam.graph_passes import PRESETS
from tools.drawings import GENERATED, IMAGES, SOURCE, VARIANTS, drawings


@pytest.mark.parametrize("name", drawings())
def test_file_is_what_the_script_makes(name: str) -> None:
    made = drawings()[name]
    assert (IMAGES / name).read_text(encoding="utf-8") == made, "python -m tools.drawings makes it anew"
    root = ElementTree.fromstring(made)
    width, height = (float(root.attrib[side]) for side in ("width", "height"))
    for each in root.iter():
        assert 0 <= float(each.attrib.get("x", 0)) <= width, each.attrib
        assert 0 <= float(each.attrib.get("y", 0)) <= height, each.attrib


def test_every_variant_has_a_drawing_of_its_kinds() -> None:
    assert {name: (preset.source, preset.generated) for name, preset in PRESETS.items()} == VARIANTS
    assert {source for source, _ in VARIANTS.values()} == SOURCE.keys()
    assert {generated for _, generated in VARIANTS.values()} == GENERATED.keys()
