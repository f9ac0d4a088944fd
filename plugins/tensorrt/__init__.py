"""TensorRT plugins of the operators, for ``tensorrt`` and ``tensorrt_rtx``.

====================  ==================================================================================================
``distribution``           which TensorRT there is, and all that differs between the two
``tables``            an operator's table, and the shapes that follow from it
``native``            ``libtightbeam_tensorrt.so``: the tables, and which kernels a call starts
``compiler``          NVRTC, and the compiled kernels on disk
``launcher``           starts kernels on a GPU
``plugin``            the plugin of any operator, over all of these
``runtime``           an engine file, loaded and ready to run
====================  ==================================================================================================

Importing this package imports nothing but itself.
"""
