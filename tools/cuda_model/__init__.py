"""A static model of the CUDA kernels, made of their machine code: instructions, floors and shares, without a GPU."""
