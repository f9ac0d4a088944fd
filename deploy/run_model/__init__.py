"""The run of `run-model` on this machine: input files, progress, output, and resuming an interrupted run."""
