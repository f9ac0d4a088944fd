"""Runtimes that run a bundle's two graphs: one file a kind (``--engine``, ``--device``), and the protocol."""
