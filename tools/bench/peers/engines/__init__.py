"""The engines, a file each: ``convert`` makes their model of a checkpoint, ``load`` returns how to run batches."""
