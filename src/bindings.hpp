// What the bindings share: how a kernel becomes a Python function, and groups of arguments, which are tuples in Python.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/tuple.h>

#include <array>
#include <tuple>

#include "arrays.hpp"
#include "contacts.hpp"
#include "drivable.hpp"
#include "frenet.hpp"

namespace reflectdrive {

using Doubles = Array<const double>;
using Floats = Array<const float>;
using Flags = Array<const bool>;
using Integers = Array<const long long>;
using Words = Array<const uint64_t>;
using DoublesOut = Array<double>;
using FlagsOut = Array<bool>;
using IntegersOut = Array<long long>;
using WordsOut = Array<uint64_t>;

void bind_agents(nanobind::module_& module);
void bind_plans(nanobind::module_& module);
void bind_scores(nanobind::module_& module);

// The guard of a kernel that is shorter than releasing Python's lock.
struct KeepLock {
  KeepLock() {}
};

template <class Guard, class Body, class Result, class... Arguments>
void bind_body(nanobind::module_& module, const char* name, Body body, Result (Body::*)(Arguments...) const) {
  module.def(name, [name, body](Arguments... arguments) -> Result {
    const Guard guard;
    try {
      return body(arguments...);
    } catch (const std::invalid_argument& fault) {
      throw std::invalid_argument(std::string(name) + ": " + fault.what());
    }
  });
}

// Adds a function, which runs without Python's lock. An array that it refuses is a ValueError with the names of both.
template <class Guard = nanobind::gil_scoped_release, class Body>
void bind(nanobind::module_& module, const char* name, Body body) {
  bind_body<Guard>(module, name, body, &Body::operator());
}

// A struct of numbers from a tuple of as many.
template <class Struct, std::size_t count>
Struct as(const std::array<double, count>& values) {
  return std::apply([](auto... each) { return Struct{each...}; }, values);
}

using BoxNumbers = std::array<double, 2>;
using FaultNumbers = std::array<double, 2>;

// Columns (5, A, 51) with x, y, cosine and sine of the heading and speed; present; sizes; static.
using AgentArrays = std::tuple<Doubles, Flags, Doubles, Flags>;

inline Agents agents_of(const AgentArrays& arrays) {
  const auto& [columns, present, sizes, fixed] = arrays;
  const int count = present.check("present", {kAny, kSamples}).size(0);
  columns.check("columns", {5, count, kSamples});
  sizes.check("sizes", {count, 2});
  fixed.check("static", {count});
  const double* x = columns.data();
  const Py_ssize_t size = Py_ssize_t{count} * kSamples;
  return {count, x, x + size, x + 2 * size, x + 3 * size, x + 4 * size, present.data(), sizes.data(), fixed.data()};
}

// distance_m (rows, columns), the pose (x, y, heading) of the ego frame, resolution_m.
using GridArrays = std::tuple<Floats, Doubles, double>;

inline DistanceGrid grid_of(const GridArrays& arrays) {
  const auto& [distance_m, pose, resolution_m] = arrays;
  distance_m.check("distance_m", {kAny, kAny});
  pose.check("pose", {3});
  const int rows = distance_m.size(0), columns = distance_m.size(1);
  if (rows < 2 || columns < 2) throw std::invalid_argument("distance_m has fewer than 2 x 2 cells");
  return {distance_m.data(), rows, columns, resolution_m, pose.data()[0], pose.data()[1], pose.data()[2]};
}

// Positions (R, 2), headings (R) and metres along (R) of a route; without positions there is none.
using RouteArrays = std::tuple<Doubles, Doubles, Doubles>;

inline Route route_of(const RouteArrays& arrays) {
  const auto& [positions, headings, along] = arrays;
  const int length = along.check("route_along", {kAny}).size(0);
  positions.check("route_positions", {length, 2});
  headings.check("route_headings", {length});
  return {positions.data(), headings.data(), along.data(), length};
}

// A route that is not empty.
inline Route road_of(const RouteArrays& arrays) {
  const Route road = route_of(arrays);
  if (road.count == 0) throw std::invalid_argument("the route is empty");
  return road;
}

}  // namespace reflectdrive
