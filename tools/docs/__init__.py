"""Additions of `make docs` to mkdocs: pages and tables that are made from the code."""
