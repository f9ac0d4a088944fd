"""Any checkpoint, tried on real inputs and measured beside other engines; ``python -m tools.real_check --help``."""
