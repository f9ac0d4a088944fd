"""TensorRT plugins of the operators, for ``tensorrt`` and ``tensorrt_rtx``.

====================  ==================================================================================================
``distribution``      the installed TensorRT, and the differences between the two
``shapes``            shapes of an operator's outputs
``native``            ``libtightbeam_tensorrt.so``, which plans the kernels of a call
``compiler``          NVRTC, and compiled kernels on disk
``launcher``          launches kernels on a GPU
``plugin``            the plugin of any operator, on top of all of these
``ahead``             the kernels of an engine, found when it is built
``runtime``           an engine file, loaded and ready to run
====================  ==================================================================================================

Importing this package imports nothing but itself.
"""
