"""The bundle folder: its manifest, its reader and writer, and the TensorRT engines inside it."""
