"""A GPU and a TensorRT for tests without either.

`FakeDriver` stands for libcuda.so.1. Its functions are C functions with the arguments that cuda.h names
(data/cuda_driver_api.json), so an address that is passed too short arrives too short. Device memory is memory of the
host. A stream is a list of things to do that are done when somebody waits, so that what is read too early, or
overwritten too early, is seen.

`FakeTensorRT` stands for the module. Its engines are ONNX files that are computed on the CPU from the very addresses
that were bound: float32 by ONNX Runtime, bfloat16 by ONNX's reference. `used` notes each attribute that was asked for.
"""

import ctypes
import importlib.machinery
import io
import json
import sys
import threading
import types
from enum import Enum
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from reflectdrive_ros.runtime.trt import cuda_device

FUNCTIONS = json.loads((Path(__file__).parent / "data" / "cuda_driver_api.json").read_text())["functions"]
C_TYPES = {
    "int": ctypes.c_int,
    "unsigned int": ctypes.c_uint,
    "size_t": ctypes.c_size_t,
    "unsigned long long": ctypes.c_uint64,
    "CUdeviceptr": ctypes.c_uint64,
    "CUdevice": ctypes.c_int,
    "CUresult": ctypes.c_int,
    "CUdevice_attribute": ctypes.c_int,
    "CUstreamCaptureMode": ctypes.c_int,
    **dict.fromkeys(("CUcontext", "CUstream", "CUevent", "CUgraph", "CUgraphExec"), ctypes.c_void_p),
}
OUT_OF_MEMORY, NO_DEVICE, NO_CONTEXT, LOST, NO_CAPTURE, BROKEN = 2, 100, 201, 719, 900, 999
SAID = {NO_DEVICE: b"no CUDA-capable device is detected", LOST: b"unspecified launch failure"}
CONTEXT = 0x7F00_0000_0010  # handles need all their 64 bits
ALIGNED = 256


class OfLibrary(ctypes._CFuncPtr):
    """A function as ctypes loads it from a library: without argument types."""

    _flags_ = ctypes._FUNCFLAG_CDECL
    _restype_ = ctypes.c_int


def c_type(words):
    return ctypes.c_void_p if words.endswith("*") else C_TYPES[words]


def put(address, kind, value):
    kind.from_address(address).value = value


class FakeDriver:
    """Its attributes cu.. are C functions; what else there is, is for tests."""

    def __init__(self, name="Fake Thor", devices=1, capability=(11, 0), processors=20, version=13000):
        self.name, self.devices, self.version = name, devices, version
        self.attributes = {16: processors, 75: capability[0], 76: capability[1]}
        self.lost, self.full, self.captures = False, False, True
        self.launches, self.copies_back, self.fault = 0, 0, None
        self._here = threading.local()
        self._memory, self._handles, self._queue, self._capturing = [], {}, [], None
        for function, words in FUNCTIONS.items():
            callback = ctypes.CFUNCTYPE(ctypes.c_int, *map(c_type, words))(self._guarded(function))
            self._memory.append(callback)
            setattr(self, function, OfLibrary(ctypes.cast(callback, ctypes.c_void_p).value))

    def queue(self, action):
        (self._queue if self._capturing is None else self._capturing).append(action)

    def _guarded(self, function):
        """What a C function may do: return a code, and raise nothing."""
        work = getattr(self, f"_{function}")
        needs_context = function.startswith(("cuMem", "cuStream", "cuEvent", "cuGr"))

        def called(*arguments):
            if self.lost:
                return LOST
            if needs_context and getattr(self._here, "context", None) != CONTEXT:
                return NO_CONTEXT
            try:
                return work(*arguments) or 0
            except Exception as fault:
                self.fault = fault
                return BROKEN

        return called if function != "cuGetErrorString" else lambda *arguments: work(*arguments) or 0

    def _handle(self, at, what):
        handle = CONTEXT + 16 * (len(self._handles) + 1)
        self._handles[handle] = what
        put(at, ctypes.c_void_p, handle)

    def _allocated(self, size):
        memory = ctypes.create_string_buffer(b"\xaa" * (size + ALIGNED), size + ALIGNED)
        self._memory.append(memory)
        return -(-ctypes.addressof(memory) // ALIGNED) * ALIGNED

    def _cuInit(self, flags):
        return 0 if self.devices else NO_DEVICE

    def _cuDriverGetVersion(self, at):
        put(at, ctypes.c_int, self.version)

    def _cuGetErrorString(self, code, at):
        put(at, ctypes.c_char_p, SAID.get(code, b"something else"))

    def _cuDeviceGetCount(self, at):
        put(at, ctypes.c_int, self.devices)

    def _cuDeviceGet(self, at, ordinal):
        put(at, ctypes.c_int, ordinal)

    def _cuDeviceGetName(self, at, size, device):
        ctypes.memmove(at, self.name.encode() + b"\0", len(self.name) + 1)

    def _cuDeviceGetAttribute(self, at, which, device):
        put(at, ctypes.c_int, self.attributes[which])

    def _cuDevicePrimaryCtxRetain(self, at, device):
        put(at, ctypes.c_void_p, CONTEXT)

    def _cuCtxSetCurrent(self, context):
        self._here.context = context

    def _cuMemAlloc_v2(self, at, size):
        if not self.full:
            put(at, ctypes.c_uint64, self._allocated(size))
        return OUT_OF_MEMORY if self.full else 0

    def _cuMemAllocHost_v2(self, at, size):
        put(at, ctypes.c_void_p, self._allocated(size))

    def _cuMemcpyHtoDAsync_v2(self, device, host, size, stream):
        self.queue(lambda: ctypes.memmove(device, host, size))

    def _cuMemcpyDtoHAsync_v2(self, host, device, size, stream):
        def copy():
            ctypes.memmove(host, device, size)
            self.copies_back += 1

        self.queue(copy)

    def _cuStreamCreate(self, at, flags):
        assert flags == 1, "the stream waits for the default one"
        self._handle(at, "stream")

    def _cuStreamBeginCapture_v2(self, stream, mode):
        self._capturing = [] if self.captures else None
        return 0 if self.captures else NO_CAPTURE

    def _cuStreamEndCapture(self, stream, at):
        self._handle(at, tuple(self._capturing))
        self._capturing = None

    def _cuGraphInstantiateWithFlags(self, at, graph, flags):
        self._handle(at, self._handles[graph])

    def _cuGraphDestroy(self, graph):
        self._handles[graph] = "destroyed"

    def _cuGraphLaunch(self, graph, stream):
        assert self._handles[stream] == "stream"
        self.launches += 1
        self._queue += self._handles[graph]

    def _cuEventCreate(self, at, flags):
        assert flags & 1, "who waits for the event spins"
        self._handle(at, "event")

    def _cuEventRecord(self, event, stream):
        assert self._handles[stream] == "stream"
        self._handles[event] = len(self._queue)

    def _cuEventSynchronize(self, event):
        due, self._queue = self._queue[: self._handles[event]], self._queue[self._handles[event] :]
        for action in due:
            action()


# --- TensorRT --------------------------------------------------------------------------------------------------------

USED = set()  # (class, attribute) of TensorRT that the tests used


class Noted:
    """What TensorRT has: who looks at an attribute from outside is noted."""

    def __getattribute__(self, name):
        if not name.startswith("_"):
            for kind in type(self).__mro__:
                if kind.__module__ == __name__ and kind is not Noted:
                    USED.add((kind.__name__, name))
                    break
        return super().__getattribute__(name)


class ILogger(Noted):
    INTERNAL_ERROR, ERROR, WARNING, INFO, VERBOSE = range(5)

    def __init__(self):
        self._begun = True


DataType = Enum("DataType", ["FLOAT", "BF16", "INT64", "BOOL", "UINT8"])
ELEMENTS = {1: "FLOAT", 16: "BF16", 7: "INT64", 9: "BOOL", 2: "UINT8"}  # by ONNX's numbers
TensorIOMode = Enum("TensorIOMode", ["NONE", "INPUT", "OUTPUT"])
HEAD = b"an engine of "


class GatherElements(OpRun):
    """ONNX's own takes 64 rows at most."""

    def _run(self, data, indices, axis=0):
        return (np.take_along_axis(data, indices, axis),)


def computer(model):
    """What computes a graph: feeds by name -> outputs in order."""
    if any(tensor.type.tensor_type.elem_type == onnx.TensorProto.BFLOAT16 for tensor in model.graph.value_info):
        return ReferenceEvaluator(model, new_ops=[GatherElements])
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.disable_quant_qdq", "1")  # fp8 is computed as it stands
    return ort.InferenceSession(model.SerializeToString(), options)


class IHostMemory(Noted):
    def __init__(self, content):
        self._content = content

    def __bytes__(self):
        return self._content


class ITimingCache(Noted):
    def __init__(self, content):
        self._content = content

    def serialize(self):
        return IHostMemory(self._content + b"timed ")


class IBuilderConfig(Noted):
    def __init__(self, trt):
        self._trt = trt

    def set_memory_pool_limit(self, pool, size):
        assert pool == "WORKSPACE"

    def clear_flag(self, flag):
        assert flag == "TF32"

    def create_timing_cache(self, content):
        self._trt.timings.append(content)
        return None if b"spoilt" in content else ITimingCache(content)

    def set_timing_cache(self, cache, ignore_mismatch):
        assert ignore_mismatch is False
        self._cache = cache
        return True

    def get_timing_cache(self):
        return self._cache


class ParserError(Noted):
    def desc(self):
        return "node 7 is of no kind\nthat is known"


class ITensor(Noted):
    """An input of a network; the sizes that its file leaves free are -1."""

    def __init__(self, value):
        self._value = value

    @property
    def shape(self):
        return tuple(size.dim_value or -1 for size in self._value.type.tensor_type.shape.dim)

    @shape.setter
    def shape(self, sizes):
        for size, length in zip(self._value.type.tensor_type.shape.dim, sizes, strict=True):
            size.dim_value = length


class INetworkDefinition(Noted):
    def __init__(self):
        self._model = onnx.ModelProto()

    @property
    def num_inputs(self):
        return len(self._model.graph.input)

    def get_input(self, index):
        return ITensor(self._model.graph.input[index])


class OnnxParser(Noted):
    def __init__(self, network, sink):
        assert sink._begun
        self._network = network
        self.num_errors = 0

    def parse_from_file(self, file):
        self._network._model.ParseFromString(content := Path(file).read_bytes())
        self.num_errors = int(not content)
        return not self.num_errors

    def get_error(self, index):
        return ParserError()


class Builder(Noted):
    def __init__(self, sink, trt):
        self._sink, self._trt = sink, trt

    def create_network(self, flags):
        assert flags == 2, "the network is not strongly typed"
        return INetworkDefinition()

    def create_builder_config(self):
        return IBuilderConfig(self._trt)

    def build_serialized_network(self, network, config):
        self._trt.builds += 1
        if self._trt.build_fault:
            self._sink.log(ILogger.ERROR, self._trt.build_fault)
            return None
        return IHostMemory(HEAD + onnx.shape_inference.infer_shapes(network._model).SerializeToString())


class IExecutionContext(Noted):
    def __init__(self, model, trt):
        self._model, self._trt, self._bound, self._computer = model, trt, {}, computer(model)

    def set_tensor_address(self, name, address):
        graph = self._model.graph
        self._bound[name] = address
        return address % ALIGNED == 0 and name in {value.name for value in (*graph.input, *graph.output)}

    def infer_shapes(self):
        return []

    def execute_async_v3(self, stream):
        if self._trt.refuses:
            return False
        self._trt.driver.queue(self._run)
        return True

    def _run(self):
        graph = self._model.graph
        feeds = {value.name: self._at(value).copy() for value in graph.input}
        for value, answer in zip(graph.output, self._computer.run(None, feeds), strict=True):
            self._at(value)[...] = answer

    def _at(self, value):
        """The tensor at the address that was bound."""
        dtype, shape = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type), shape_of(value)
        size = int(np.prod(shape)) * dtype.itemsize
        raw = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(self._bound[value.name]))
        return raw.view(dtype).reshape(shape)


def shape_of(value):
    return tuple(size.dim_value for size in value.type.tensor_type.shape.dim)


class ICudaEngine(Noted):
    def __init__(self, model, trt):
        self._model, self._trt = model, trt
        self._tensors = {value.name: (value, TensorIOMode.INPUT) for value in model.graph.input}
        self._tensors |= {value.name: (value, TensorIOMode.OUTPUT) for value in model.graph.output}
        self.num_io_tensors = len(self._tensors)

    def get_tensor_name(self, index):
        return list(self._tensors)[index]

    def get_tensor_dtype(self, name):
        return DataType[ELEMENTS[self._tensors[name][0].type.tensor_type.elem_type]]

    def get_tensor_mode(self, name):
        return self._tensors[name][1]

    def get_tensor_shape(self, name):
        return shape_of(self._tensors[name][0])

    def create_execution_context(self):
        return IExecutionContext(self._model, self._trt)


class Runtime(Noted):
    def __init__(self, sink, trt):
        self._sink, self._trt = sink, trt
        if trt.runtime_fault:
            sink.log(ILogger.ERROR, trt.runtime_fault)

    def deserialize_cuda_engine(self, plan):
        if not plan.startswith(HEAD):
            self._sink.log(ILogger.INTERNAL_ERROR, "Serialization assertion\nmagicTagRead == kMAGIC_TAG failed.")
            return None
        return ICudaEngine(onnx.load(io.BytesIO(plan.removeprefix(HEAD))), self._trt)


class FakeTensorRT(types.ModuleType):
    """To be put where `import tensorrt` finds it."""

    def __init__(self, driver, version="10.13.3.9"):
        super().__init__("tensorrt")
        self.__spec__ = importlib.machinery.ModuleSpec("tensorrt", None)
        self.__version__ = version
        self.driver, self.builds, self.timings = driver, 0, []
        self.build_fault = self.runtime_fault = ""
        self.refuses = False
        self.ILogger, self.OnnxParser, self.TensorIOMode = ILogger, OnnxParser, TensorIOMode
        self.MemoryPoolType = types.SimpleNamespace(WORKSPACE="WORKSPACE")
        self.BuilderFlag = types.SimpleNamespace(TF32="TF32")
        self.NetworkDefinitionCreationFlag = types.SimpleNamespace(STRONGLY_TYPED=1)

    def Builder(self, sink):
        return Builder(sink, self)

    def Runtime(self, sink):
        return Runtime(sink, self)


@pytest.fixture
def driver(monkeypatch):
    """A machine with one GPU."""
    fake_driver = FakeDriver()
    monkeypatch.setattr(cuda_device, "load_driver", lambda: fake_driver)
    yield fake_driver
    if fake_driver.fault is not None:
        raise fake_driver.fault


@pytest.fixture
def trt(driver, monkeypatch):
    """.. and with TensorRT."""
    fake_trt = FakeTensorRT(driver)
    monkeypatch.setitem(sys.modules, "tensorrt", fake_trt)
    return fake_trt
