"""The loaded model: a bundle, what runs its graphs, and what reads its inputs; each part has a name and a file."""
