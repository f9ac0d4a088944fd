"""The table of families for which others stand in `make test`."""

from __future__ import annotations

from support.stand_ins import STAND_INS
from tightbeam.export.families.table import FAMILIES


def test_all_code_of_families_is_run_by_default() -> None:
    """Each class of families has one that runs; Falcon runs with a shape of its own."""
    classes = {family.model_type: type(family) for family in FAMILIES}
    assert set(STAND_INS) <= set(classes)
    stand_ins = {name for names in STAND_INS.values() for name in names}
    assert stand_ins <= set(classes)
    assert stand_ins & set(STAND_INS) == {"falcon"}
    run = {kind for name, kind in classes.items() if name not in STAND_INS or name == "falcon"}
    assert run == set(classes.values())
