// The module reflectdrive_kernels: compiled loops of scoring and planning, whose Python documents and wraps each
// function.
//
// Results are written into contiguous arrays of the caller. The arithmetic is the same on every processor: no
// contraction to fused operations, no reordering.

#include "bindings.hpp"
#include "comfort.hpp"
#include "simulate.hpp"

NB_MODULE(kernels, module) {
  nanobind::set_leak_warnings(false);  // functions that a cache of Python holds at its exit are no fault
  // Sizes and steps of arrays, which are constants here: Python has them from here.
  module.attr("DT_S") = reflectdrive::kDtS;
  module.attr("STEPS") = reflectdrive::kSteps;
  module.attr("STATE_SIZE") = reflectdrive::kStateSize;
  module.attr("AGENT_SAMPLES") = reflectdrive::kSamples;
  module.attr("TTC_LOOK_STEPS") = reflectdrive::kLastLook;
  module.attr("COMFORT_BLOCK") = reflectdrive::kComfortBlock;
  reflectdrive::bind_agents(module);
  reflectdrive::bind_plans(module);
  reflectdrive::bind_scores(module);
}

// What runs before the check of the processor is compiled for every processor: this function, and the constructors of
// global objects of nanobind's library.
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
        "them (Intel since 2013, AMD since 2015), in a virtual machine the processor type of its host");
    PyErr_SetImportError(message, name, nullptr);
    Py_DecRef(message);
    Py_DecRef(name);
    return nullptr;
  }
#endif
  return PyInit_kernels();
}
