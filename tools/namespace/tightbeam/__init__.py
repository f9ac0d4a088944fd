"""Export and deployment of sequence generation; see :mod:`tightbeam.export` and :mod:`tightbeam.deploy`."""

import os

__all__ = ["SILENCED", "__version__"]

__version__ = "0.1.0"

SILENCED = {"ORT_DISABLE_TELEMETRY": "1", "RAY_USAGE_STATS_ENABLED": "0", "HF_HUB_DISABLE_TELEMETRY": "1"}
"""Variables that stop libraries from reporting usage. Libraries read them when they are imported, so they are set here,
before any module of ours; a value of the user's own stays."""

for _name, _value in SILENCED.items():
    os.environ.setdefault(_name, _value)
