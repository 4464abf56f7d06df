// The module reflectdrive_kernels: compiled loops of scoring and planning, whose Python documents and wraps each function.
//
// Results are written into contiguous arrays of the caller. Python's lock is released meanwhile. The
// arithmetic is the same on every processor: no contraction to fused operations, no reordering.

#include "contacts.hpp"
#include "frenet.hpp"
#include "motion.hpp"
#include "polylines.hpp"
#include "score_bindings.hpp"

namespace reflectdrive {
namespace {

KERNEL(nearest_places) {
  return call("nearest_places", values, count, [](Arguments& take) {
    const Doubles line(take.next(), "line", 2), along(take.next(), "along", 1), points(take.next(), "points", 2);
    const Array<long long> segments(take.next(), "segments", 1);
    const Array<double> shares(take.next(), "shares", 1), distances(take.next(), "distances", 1);
    const Py_ssize_t number = points.size(0);
    line.of(1, 2, "line"), along.of(0, line.size(0), "along"), points.of(1, 2, "points");
    segments.of(0, number, "segments"), shares.of(0, number, "shares"), distances.of(0, number, "distances");
    if (line.size(0) < 2) throw std::invalid_argument("line has fewer than 2 points");
    const Polyline polyline{line.data(), along.data(), static_cast<int>(line.size(0))};
    unlocked([&] { nearest_places(polyline, points.data(), number, segments.data(), shares.data(), distances.data()); });
    return 0;
  });
}

KERNEL(farther_than) {
  return call("farther_than", values, count, [](Arguments& take) {
    const Doubles line(take.next(), "line", 2), along(take.next(), "along", 1), points(take.next(), "points", 2);
    const double distance = take.number();
    const Array<bool> farther(take.next(), "farther", 1);
    line.of(1, 2, "line"), along.of(0, line.size(0), "along"), points.of(1, 2, "points");
    farther.of(0, points.size(0), "farther");
    if (line.size(0) < 2) throw std::invalid_argument("line has fewer than 2 points");
    const Polyline polyline{line.data(), along.data(), static_cast<int>(line.size(0))};
    unlocked([&] { farther_than(polyline, points.data(), points.size(0), distance, farther.data()); });
    return 0;
  });
}

KERNEL(first_fault) {
  return call("first_fault", values, count, [](Arguments& take) {
    const Doubles centers(take.next(), "centers", 2), rear_axles(take.next(), "rear_axles", 2);
    const Flags moving(take.next(), "moving", 1);
    const EgoBox box{take.number(), take.number()};
    const Doubles others(take.next(), "others", 3), sizes(take.next(), "sizes", 2);
    const Py_ssize_t samples = centers.size(0), agents = others.size(0);
    centers.of(1, 3, "centers"), rear_axles.of(0, samples, "rear_axles").of(1, 3, "rear_axles");
    moving.of(0, samples, "moving"), others.of(1, samples, "others").of(2, 3, "others");
    sizes.of(0, agents, "sizes").of(1, 2, "sizes");
    long long found = -1;
    unlocked([&] {
      found = first_fault(centers.data(), rear_axles.data(), moving.data(), static_cast<int>(samples), box, others.data(),
                          sizes.data(), static_cast<int>(agents));
    });
    return found;
  });
}

KERNEL(to_frenet) {
  return call("to_frenet", values, count, [](Arguments& take) {
    const Doubles places(take.next(), "places", 2), route_headings(take.next(), "route_headings", 1), at(take.next(), "at", 1);
    const Doubles points(take.next(), "points", 3);
    const double tolerance_m = take.number();
    const Array<double> straight(take.next(), "straight", 3), headings(take.next(), "headings", 2);
    const Py_ssize_t plans = points.size(0), number = points.size(1), length = at.size(0);
    places.of(0, length, "places").of(1, 2, "places"), route_headings.of(0, length, "route_headings"), points.of(2, 2, "points");
    straight.of(0, plans, "straight").of(1, number, "straight").of(2, 2, "straight");
    headings.of(0, plans, "headings").of(1, number, "headings");
    if (length == 0) throw std::invalid_argument("at is empty");
    const Route route{places.data(), route_headings.data(), at.data(), static_cast<int>(length)};
    unlocked([&] {
      to_frenet(route, points.data(), static_cast<int>(plans), static_cast<int>(number), tolerance_m, straight.data(), headings.data());
    });
    return 0;
  });
}

KERNEL(headings_of_points) {
  return call("headings_of_points", values, count, [](Arguments& take) {
    const Doubles points(take.next(), "points", 3);
    const HeadingPrior prior{take.number(), take.number(), take.number(), take.number(), take.number(), take.number(), take.number()};
    const Array<double> headings(take.next(), "headings", 2);
    const Py_ssize_t plans = points.size(0), number = points.size(1);
    points.of(2, 2, "points"), headings.of(0, plans, "headings").of(1, number, "headings");
    unlocked([&] {
      headings_of_points(points.data(), static_cast<int>(plans), static_cast<int>(number), prior, headings.data());
    });
    return 0;
  });
}

KERNEL(resample) {
  return call("resample", values, count, [](Arguments& take) {
    const Doubles poses(take.next(), "poses", 2), knots(take.next(), "knots", 1), times(take.next(), "times", 1);
    const double same_place_m = take.number();
    const Array<double> found(take.next(), "found", 2);
    poses.of(1, 3, "poses"), knots.of(0, poses.size(0), "knots"), found.of(0, times.size(0), "found").of(1, 3, "found");
    if (poses.size(0) < 2) throw std::invalid_argument("poses has fewer than 2");
    unlocked([&] {
      resample(poses.data(), knots.data(), static_cast<int>(poses.size(0)), times.data(), static_cast<int>(times.size(0)),
               same_place_m, found.data());
    });
    return 0;
  });
}

KERNEL(drop_reversals) {
  return call("drop_reversals", values, count, [](Arguments& take) {
    const Array<double> points(take.next(), "points", 3);
    const double ahead = take.number(), telling_m = take.number();
    points.of(2, 2, "points");
    for (Py_ssize_t n = 0; n < points.size(0); ++n)
      drop_reversals(points.data() + 2 * n * points.size(1), static_cast<int>(points.size(1)), ahead, telling_m);
    return 0;
  });
}

KERNEL(hold_distances) {
  return call("hold_distances", values, count, [](Arguments& take) {
    const Array<double> wanted(take.next(), "wanted", 2);
    const Doubles room(take.next(), "room", 1);
    const double start_mps = take.number(), fine_s = take.number();
    const SpeedLimits limits{take.number(), take.number(), take.number(), take.number()};
    room.of(0, wanted.size(0), "room");
    unlocked([&] {
      hold_distances(wanted.data(), room.data(), static_cast<int>(wanted.size(0)), static_cast<int>(wanted.size(1)),
                     start_mps, fine_s, limits);
    });
    return 0;
  });
}

KERNEL(follow_waypoints) {
  return call("follow_waypoints", values, count, [](Arguments& take) {
    const Doubles knots(take.next(), "knots", 3), distances(take.next(), "distances", 2);
    const double same_place_m = take.number();
    const Array<double> found(take.next(), "found", 3);
    const Py_ssize_t plans = knots.size(0), samples = distances.size(1);
    knots.of(2, 3, "knots"), distances.of(0, plans, "distances");
    found.of(0, plans, "found").of(1, samples, "found").of(2, 3, "found");
    if (knots.size(1) < 2 || samples < 1) throw std::invalid_argument("knots has fewer than 2, or distances is empty");
    unlocked([&] {
      follow_waypoints(knots.data(), static_cast<int>(plans), static_cast<int>(knots.size(1)), distances.data(),
                       static_cast<int>(samples), same_place_m, found.data());
    });
    return 0;
  });
}

KERNEL(bends_too_sharply) {
  return call("bends_too_sharply", values, count, [](Arguments& take) {
    const Doubles knots(take.next(), "knots", 3);
    const double tightest_per_m = take.number(), telling_m = take.number();
    const Array<bool> found(take.next(), "found", 1);
    const Py_ssize_t plans = knots.size(0), number = knots.size(1);
    knots.of(2, 2, "knots"), found.of(0, plans, "found");
    for (Py_ssize_t n = 0; n < plans; ++n)
      found.data()[n] = bends_too_sharply(knots.data() + 2 * n * number, static_cast<int>(number), tightest_per_m, telling_m);
    return 0;
  });
}

KERNEL(pursue) {
  return call("pursue", values, count, [](Arguments& take) {
    const Doubles poses(take.next(), "poses", 3), distances(take.next(), "distances", 2);
    const double tightest_per_m = take.number(), look_ahead_m = take.number();
    const Array<double> found(take.next(), "found", 3);
    const Py_ssize_t plans = poses.size(0), samples = poses.size(1);
    poses.of(2, 3, "poses"), distances.of(0, plans, "distances").of(1, samples, "distances");
    found.of(0, plans, "found").of(1, samples, "found").of(2, 3, "found");
    if (samples < 1) throw std::invalid_argument("poses is empty");
    for (Py_ssize_t n = 0; n < plans; ++n)
      pursue(poses.data() + 3 * n * samples, distances.data() + n * samples, static_cast<int>(samples), tightest_per_m,
             look_ahead_m, found.data() + 3 * n * samples);
    return 0;
  });
}

KERNEL(follow_leads) {
  return call("follow_leads", values, count, [](Arguments& take) {
    const Doubles speeds(take.next(), "speeds", 1), accelerations(take.next(), "accelerations", 2);
    const Array<const long long> leads(take.next(), "leads", 1);
    const Doubles gaps(take.next(), "gaps", 1), times(take.next(), "times", 1);
    const Following rule{take.number(), take.number(), take.number(), take.number(), take.number(), take.number(), take.number()};
    const Array<double> driven(take.next(), "driven", 2);
    const Py_ssize_t agents = speeds.size(0), steps = accelerations.size(1);
    accelerations.of(0, agents, "accelerations"), leads.of(0, agents, "leads"), gaps.of(0, agents, "gaps");
    driven.of(0, agents, "driven").of(1, times.size(0), "driven");
    if (steps < 1) throw std::invalid_argument("accelerations has no step");
    for (Py_ssize_t a = 0; a < agents; ++a)
      if (leads.data()[a] < 0 || leads.data()[a] >= agents) throw std::invalid_argument("leads holds no row of an agent");
    for (Py_ssize_t t = 0; t < times.size(0); ++t)
      if (!(times.data()[t] >= 0.0)) throw std::invalid_argument("times is negative");
    unlocked([&] {
      follow_leads(speeds.data(), accelerations.data(), leads.data(), gaps.data(), static_cast<int>(agents),
                   static_cast<int>(steps), times.data(), static_cast<int>(times.size(0)), rule, driven.data());
    });
    return 0;
  });
}

#define ENTRY(name) {#name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(py_##name)), METH_FASTCALL, nullptr}

PyMethodDef kMethods[] = {
    ENTRY(interpolate_plans), ENTRY(follow),          ENTRY(fit_curvatures),     ENTRY(no_collision),
    ENTRY(time_to_collision), ENTRY(agent_gaps),      ENTRY(box_points),         ENTRY(polygons_around),
    ENTRY(area_flags),        ENTRY(red_light_contacts), ENTRY(driving_direction), ENTRY(point_clearances),
    ENTRY(box_clearances),    ENTRY(comfort_flags),   ENTRY(nearest_places),     ENTRY(farther_than),
    ENTRY(first_fault),       ENTRY(to_frenet),       ENTRY(headings_of_points), ENTRY(resample),
    ENTRY(bends_too_sharply), ENTRY(pursue),
    ENTRY(drop_reversals), ENTRY(hold_distances),    ENTRY(follow_waypoints), ENTRY(follow_leads),
    {nullptr, nullptr, 0, nullptr},
};

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
