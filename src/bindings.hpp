// How a kernel takes its arguments from Python and returns its result.
#pragma once

#include "arrays.hpp"
#include "contacts.hpp"
#include "drivable.hpp"
#include "frenet.hpp"

namespace reflectdrive {

using Doubles = Array<const double>;
using Flags = Array<const bool>;

// The arguments of a call, taken one after another.
class Arguments {
 public:
  Arguments(PyObject* const* values, Py_ssize_t count) : values_(values), left_(count) {}
  PyObject* next() {
    if (left_ == 0) throw std::invalid_argument("too few arguments");
    --left_;
    return *values_++;
  }
  double number() {
    const double value = PyFloat_AsDouble(next());
    if (value == -1.0 && PyErr_Occurred()) throw PythonError();
    return value;
  }
  long integer() {
    const long value = PyLong_AsLong(next());
    if (value == -1 && PyErr_Occurred()) throw PythonError();
    return value;
  }
  void end() const {
    if (left_ != 0) throw std::invalid_argument("too many arguments");
  }
  struct PythonError {};  // Python has the sentence already

 private:
  PyObject* const* values_;
  Py_ssize_t left_;
};

// Runs `body(arguments)`; what it throws becomes a ValueError with the function's name.
template <class Body>
PyObject* call(const char* name, PyObject* const* values, Py_ssize_t count, Body body) {
  try {
    Arguments arguments(values, count);
    const long long result = body(arguments);
    arguments.end();
    return PyLong_FromLongLong(result);
  } catch (const Arguments::PythonError&) {
    return nullptr;
  } catch (const std::exception& fault) {
    PyErr_Format(PyExc_ValueError, "%s: %s", name, fault.what());
    return nullptr;
  }
}

// Without Python's lock: no Python object may be touched.
template <class Body>
void unlocked(Body body) {
  Py_BEGIN_ALLOW_THREADS body();
  Py_END_ALLOW_THREADS
}

#define KERNEL(name) PyObject* py_##name(PyObject*, PyObject* const* values, Py_ssize_t count)

// Five arguments: columns (5, A, 51) with x, y, cosine and sine of the heading and speed; present; sizes; static.
class AgentArguments {
 public:
  explicit AgentArguments(Arguments& take)
      : columns_(take.next(), "columns", 3),
        present_(take.next(), "present", 2),
        sizes_(take.next(), "sizes", 2),
        fixed_(take.next(), "static", 1) {
    const Py_ssize_t agents = present_.size(0);
    columns_.of(0, 5, "columns").of(1, agents, "columns").of(2, kSamples, "columns");
    present_.of(1, kSamples, "present"), sizes_.of(0, agents, "sizes").of(1, 2, "sizes"),
        fixed_.of(0, agents, "static");
  }
  Agents agents() const {
    const Py_ssize_t size = present_.size(0) * kSamples;
    const double* x = columns_.data();
    return {static_cast<int>(present_.size(0)),
            x,
            x + size,
            x + 2 * size,
            x + 3 * size,
            x + 4 * size,
            present_.data(),
            sizes_.data(),
            fixed_.data()};
  }

 private:
  Doubles columns_;
  Flags present_;
  Doubles sizes_;
  Flags fixed_;
};

// Three arguments: distance_m (rows, columns), place (x, y, heading of the ego frame), resolution_m.
class GridArguments {
 public:
  explicit GridArguments(Arguments& take)
      : distance_(take.next(), "distance_m", 2), place_(take.next(), "place", 1), resolution_m_(take.number()) {
    place_.of(0, 3, "place");
    if (distance_.size(0) < 2 || distance_.size(1) < 2)
      throw std::invalid_argument("distance_m has fewer than 2 x 2 cells");
  }
  DistanceGrid grid() const {
    const double* at = place_.data();
    return {distance_.data(), distance_.size(0), distance_.size(1), resolution_m_, at[0], at[1], at[2]};
  }

 private:
  Array<const float> distance_;
  Doubles place_;
  double resolution_m_;
};

// Three arguments: places (R, 2), headings (R) and metres along (R) of a route; without places there is none.
class RouteArguments {
 public:
  explicit RouteArguments(Arguments& take)
      : places_(take.next(), "places", 2), headings_(take.next(), "route_headings", 1), at_(take.next(), "at", 1) {
    const Py_ssize_t length = at_.size(0);
    places_.of(0, length, "places").of(1, 2, "places"), headings_.of(0, length, "route_headings");
  }
  Route route() const { return {places_.data(), headings_.data(), at_.data(), static_cast<int>(at_.size(0))}; }

 private:
  Doubles places_, headings_, at_;
};

}  // namespace reflectdrive
