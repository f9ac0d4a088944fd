"""The runs of `run-model`: input files, the run on this machine, progress, output, and what a cut run goes on with."""
