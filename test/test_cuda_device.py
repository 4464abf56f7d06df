"""The functions of the CUDA driver are called with the types that its header gives them."""

import ctypes
from ctypes import POINTER

from fake_gpu import C_TYPES, FUNCTIONS

from reflectdrive_ros.runtime.trt.cuda_device import SIGNATURES

MEANT = C_TYPES | {  # pointers in cuda.h
    **dict.fromkeys(("int *", "CUdevice *"), POINTER(ctypes.c_int)),
    **dict.fromkeys(("void **", "CUcontext *", "CUstream *", "CUevent *"), POINTER(ctypes.c_void_p)),
    **dict.fromkeys(("CUgraph *", "CUgraphExec *"), POINTER(ctypes.c_void_p)),
    **dict.fromkeys(("void *", "const void *"), ctypes.c_void_p),
    "CUdeviceptr *": POINTER(ctypes.c_uint64),
    "char *": ctypes.c_char_p,
    "const char **": POINTER(ctypes.c_char_p),
}


def test_every_function_of_the_driver_is_called_as_its_header_says():
    for function, words in FUNCTIONS.items():
        assert SIGNATURES[function] == tuple(MEANT[theirs] for theirs in words), function
    assert set(SIGNATURES) == set(FUNCTIONS)
