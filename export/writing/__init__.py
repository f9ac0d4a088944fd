"""The files of a bundle: graphs, and one file with every weight once."""
