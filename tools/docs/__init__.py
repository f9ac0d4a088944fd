"""The site of `make docs`, and the tables of its reference pages, which are made from the code."""
