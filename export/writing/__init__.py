"""Writing a bundle: its graphs, the weights file that both point into, and the entries of its manifest."""
