"""TensorRT plugins of the operators, for ``tensorrt`` and ``tensorrt_rtx``.

====================  ==================================================================================================
``distribution``      which TensorRT is installed, and all that differs between the two
``shapes``            shapes of an operator's outputs
``native``            ``libtightbeam_tensorrt.so``: the kernels that a call launches
``compiler``          NVRTC, and the compiled kernels on disk
``launcher``          launches kernels on a GPU
``plugin``            the plugin of any operator, over all of these
``runtime``           an engine file, loaded and ready to run
====================  ==================================================================================================

Importing this package imports nothing but itself.
"""
