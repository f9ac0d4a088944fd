"""The loaded model: a bundle, the runtime of its graphs, and the readers of its inputs, each part in its own file."""
