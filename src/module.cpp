// The module reflectdrive_kernels: compiled loops of scoring and planning, whose Python documents and wraps each function.
//
// Results are written into contiguous arrays of the caller. Python's lock is released meanwhile. The
// arithmetic is the same on every processor: no contraction to fused operations, no reordering.

#include "kernels.hpp"

namespace reflectdrive {
namespace {

#define ENTRY(name) {#name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(py_##name)), METH_FASTCALL, nullptr},

PyMethodDef kMethods[] = {REFLECTDRIVE_KERNELS(ENTRY){nullptr, nullptr, 0, nullptr}};

PyModuleDef kModule = {PyModuleDef_HEAD_INIT, "reflectdrive_kernels", "Compiled loops of the driving score.", -1,
                       kMethods, nullptr, nullptr, nullptr, nullptr};

}  // namespace
}  // namespace reflectdrive

PyMODINIT_FUNC PyInit_reflectdrive_kernels() {
#ifdef __x86_64__
  if (!__builtin_cpu_supports("avx2")) {
    PyErr_SetString(PyExc_ImportError, "this processor has no AVX2, which reflectdrive needs on x86-64");
    return nullptr;
  }
#endif
  return PyModule_Create(&reflectdrive::kModule);
}
