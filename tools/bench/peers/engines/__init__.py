"""The engines, a file each.

``convert`` makes their model of a checkpoint, and ``load`` returns how to run batches. ``IMPORTS`` are the modules that
are imported before the load is timed.
"""
