"""Model repositories of Triton: bundles written as models, with their configuration and readme."""
