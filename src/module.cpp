// The module reflectdrive_kernels: compiled loops of scoring and planning, whose Python documents and wraps each
// function.
//
// Results are written into contiguous arrays of the caller. Python's lock is released meanwhile. The
// arithmetic is the same on every processor: no contraction to fused operations, no reordering.

#include "kernels.hpp"

namespace reflectdrive {
namespace {

#define ENTRY(name) \
  {#name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(py_##name)), METH_FASTCALL, nullptr},

PyMethodDef kMethods[] = {REFLECTDRIVE_KERNELS(ENTRY){nullptr, nullptr, 0, nullptr}};

PyModuleDef kModule = {PyModuleDef_HEAD_INIT,
                       "reflectdrive_kernels",
                       "Compiled loops of the driving score.",
                       -1,
                       kMethods,
                       nullptr,
                       nullptr,
                       nullptr,
                       nullptr};

}  // namespace
}  // namespace reflectdrive

// What runs before the check of the processor is compiled for every processor: this function, and no constructor of a
// global object.
#ifdef __x86_64__
#define FOR_EVERY_PROCESSOR __attribute__((target("arch=x86-64")))
#else
#define FOR_EVERY_PROCESSOR
#endif

PyMODINIT_FUNC FOR_EVERY_PROCESSOR PyInit_reflectdrive_kernels() {
#ifdef __x86_64__
  if (!(__builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
        __builtin_cpu_supports("fma"))) {
    PyObject* name = PyUnicode_FromString("reflectdrive_kernels");
    PyObject* message = PyUnicode_FromString(
        "this processor lacks instructions of x86-64-v3 (AVX2, BMI, FMA), which reflectdrive needs: use one that has "
        "them "
        "(Intel since 2013, AMD since 2015), in a virtual machine the processor type of its host");
    PyErr_SetImportError(message, name, nullptr);
    Py_XDECREF(message);
    Py_XDECREF(name);
    return nullptr;
  }
#endif
  return PyModule_Create(&reflectdrive::kModule);
}
