"""One graph that generates, for programs without Tightbeam: encoder, decoder and search, over a bundle's weights."""
