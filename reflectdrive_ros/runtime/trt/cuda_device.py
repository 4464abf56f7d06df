"""One NVIDIA GPU through its driver: properties, memory, a stream, captured work.

    device = CudaDevice(0)      # raises CudaError without a driver or GPU

The driver is called through ctypes because every machine with a GPU has it, under one name. JetPack and ROS have no
CUDA package for Python, torch is 3 GB for training, and the CUDA runtime's file name changes with every version
(libcudart.so.12, .so.13); the driver's functions are the same from CUDA 11 to 13. The context is shared with TensorRT.

It uses its own stream, because TensorRT synchronises the whole device on the default one. Waiting sleeps and does not
spin, which leaves the processor to other processes. Memory is held until the process ends.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any

import numpy as np

from ...core.domain import Array
from ...infra.errors import UserError

LIBRARY = "libcuda.so.1"
HANDLE = POINTER(c_void_p)
# functions of the driver, as in cuda.h; a test compares them with that file
SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cuInit": (c_uint,),
    "cuDriverGetVersion": (POINTER(c_int),),
    "cuGetErrorString": (c_int, POINTER(c_char_p)),
    "cuDeviceGetCount": (POINTER(c_int),),
    "cuDeviceGet": (POINTER(c_int), c_int),
    "cuDeviceGetName": (c_char_p, c_int, c_int),
    "cuDeviceGetAttribute": (POINTER(c_int), c_int, c_int),
    "cuDevicePrimaryCtxRetain": (HANDLE, c_int),
    "cuCtxSetCurrent": (c_void_p,),
    "cuMemAlloc_v2": (POINTER(c_uint64), c_size_t),
    "cuMemAllocHost_v2": (HANDLE, c_size_t),
    "cuMemcpyHtoDAsync_v2": (c_uint64, c_void_p, c_size_t, c_void_p),
    "cuMemcpyDtoHAsync_v2": (c_void_p, c_uint64, c_size_t, c_void_p),
    "cuStreamCreate": (HANDLE, c_uint),
    "cuStreamBeginCapture_v2": (c_void_p, c_int),
    "cuStreamEndCapture": (c_void_p, HANDLE),
    "cuGraphInstantiateWithFlags": (HANDLE, c_void_p, c_uint64),
    "cuGraphDestroy": (c_void_p,),
    "cuGraphLaunch": (c_void_p, c_void_p),
    "cuEventCreate": (HANDLE, c_uint),
    "cuEventRecord": (c_void_p, c_void_p),
    "cuEventSynchronize": (c_void_p,),
}
OUT_OF_MEMORY = 2
PROCESSORS, MAJOR, MINOR = 16, 75, 76  # of CUdevice_attribute
NON_BLOCKING = 1  # a stream that does not wait for the default one
SLEEP_UNTIMED = 1 | 2  # an event with blocking wait and without timing
THIS_THREAD = 1  # while this thread captures, others may use the GPU


class CudaError(UserError):
    """The GPU is not available or has failed; the message contains the driver's."""


def has_driver() -> bool:
    """Whether this machine has NVIDIA's driver; whether that finds a GPU is another question."""
    try:
        return bool(load_driver())
    except CudaError:
        return False


def load_driver() -> Any:
    """The driver. Raises CudaError where there is none."""
    try:
        return ctypes.CDLL(LIBRARY)
    except OSError as fault:
        raise CudaError(
            f"there is no NVIDIA driver ({fault}): install it, or start the container with its GPU"
        ) from None


class CudaDevice:
    """A GPU of the driver. Not for two threads at once, but for one after another."""

    def __init__(self, number: int = 0) -> None:
        """number: the ordinal in `cuda:1`. Raises CudaError."""
        self._driver = load_driver()
        for name, arguments in SIGNATURES.items():
            getattr(self._driver, name).argtypes = arguments
        self._call("cuInit", 0)
        count, handle, version = c_int(), c_int(), c_int()
        self._call("cuDeviceGetCount", byref(count))
        if number >= count.value:
            raise CudaError(f"there is no GPU cuda:{number}: the driver finds {count.value}")
        self._call("cuDeviceGet", byref(handle), number)
        self._call("cuDriverGetVersion", byref(version))
        letters = ctypes.create_string_buffer(256)
        self._call("cuDeviceGetName", letters, len(letters), handle)
        self.name = letters.value.decode()
        self.capability = f"{self._attribute(handle, MAJOR)}.{self._attribute(handle, MINOR)}"
        self.processors = self._attribute(handle, PROCESSORS)
        self.cuda = f"{version.value // 1000}.{version.value % 1000 // 10}"
        self._context = self._create("cuDevicePrimaryCtxRetain", handle)
        self.use()
        self.stream: int = self._create("cuStreamCreate", NON_BLOCKING)
        self._event = self._create("cuEventCreate", SLEEP_UNTIMED)

    def use(self) -> None:
        """Makes it the calling thread's GPU, required before other calls in a thread."""
        self._call("cuCtxSetCurrent", self._context)

    def allocate(self, size: int) -> int:
        """The address of `size` bytes of device memory."""
        address = c_uint64()
        self._call("cuMemAlloc_v2", byref(address), size)
        return address.value

    def allocate_pinned(self, size: int) -> Array:
        """(size,) uint8 zeros of page-locked host memory, for direct copies by the GPU."""
        address = self._create("cuMemAllocHost_v2", size)
        array = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))
        array[:] = 0
        return array

    def upload(self, address: int, host: Array) -> None:
        """Queue a copy of pinned memory to the device."""
        self._call("cuMemcpyHtoDAsync_v2", address, host.ctypes.data, host.nbytes, self.stream)

    def download(self, host: Array, address: int) -> None:
        """Queue a copy from the device to pinned memory, there after `wait`."""
        self._call("cuMemcpyDtoHAsync_v2", host.ctypes.data, address, host.nbytes, self.stream)

    def capture(self, work: Callable[[], None]) -> int:
        """Records the work that `work` queues as a CUDA graph for `launch`; nothing is run. Raises CudaError, and as
        `work`.
        """
        graph = c_void_p()
        self._call("cuStreamBeginCapture_v2", self.stream, THIS_THREAD)
        try:
            work()
        finally:
            self._call("cuStreamEndCapture", self.stream, byref(graph))
        ready = self._create("cuGraphInstantiateWithFlags", graph, 0)
        self._call("cuGraphDestroy", graph)
        return ready

    def launch(self, graph: int) -> None:
        """Queue what was captured."""
        self._call("cuGraphLaunch", graph, self.stream)

    def wait(self) -> None:
        """Sleep until all that was queued is done."""
        self._call("cuEventRecord", self._event, self.stream)
        self._call("cuEventSynchronize", self._event)

    def _attribute(self, handle: c_int, which: int) -> int:
        value = c_int()
        self._call("cuDeviceGetAttribute", byref(value), which, handle)
        return value.value

    def _create(self, function: str, *arguments: Any) -> int:
        """The handle that a function returns through its first argument."""
        handle = c_void_p()
        self._call(function, byref(handle), *arguments)
        return handle.value or 0

    def _call(self, function: str, *arguments: Any) -> None:
        code = getattr(self._driver, function)(*arguments)
        if code == OUT_OF_MEMORY:
            raise CudaError(f"the GPU is out of memory ({function}): close other programs that use it")
        if code:
            words = c_char_p()
            self._driver.cuGetErrorString(code, byref(words))
            message = (words.value or b"an unknown error").decode()
            raise CudaError(f"CUDA says '{message}' (error {code} of {function})")
