"""Export and deployment of sequence generation; see :mod:`tightbeam.export` and :mod:`tightbeam.deploy`."""

__all__ = ["__version__"]

__version__ = "0.1.0"
