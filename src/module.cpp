// The module reflectdrive_kernels: compiled loops for reflectdrive_ros.scoring, which documents and wraps each function.
//
// Results are written into contiguous arrays of the caller. Python's lock is released meanwhile. The
// arithmetic is the same on every processor: no contraction to fused operations, no reordering.

#include "agents.hpp"
#include "areas.hpp"
#include "arrays.hpp"
#include "comfort.hpp"
#include "contacts.hpp"
#include "drivable.hpp"
#include "frenet.hpp"
#include "motion.hpp"
#include "polylines.hpp"
#include "safety.hpp"
#include "simulate.hpp"
#include "waypoints.hpp"

namespace reflectdrive {
namespace {

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
  Py_BEGIN_ALLOW_THREADS
  body();
  Py_END_ALLOW_THREADS
}

#define KERNEL(name) PyObject* py_##name(PyObject*, PyObject* const* values, Py_ssize_t count)

KERNEL(interpolate_plans) {
  return call("interpolate_plans", values, count, [](Arguments& take) {
    const Doubles plans(take.next(), "plans", 3), knots(take.next(), "knot_times", 1), times(take.next(), "times", 1);
    const Array<double> reference(take.next(), "reference", 3);
    const Py_ssize_t cars = plans.size(0), poses = plans.size(1);
    plans.of(2, 3, "plans"), knots.of(0, poses + 1, "knot_times"), times.of(0, kSteps + 1, "times");
    reference.of(0, cars, "reference").of(1, kSteps + 1, "reference").of(2, 3, "reference");
    unlocked([&] {
      for (Py_ssize_t n = 0; n < cars; ++n)
        interpolate_plan(plans.data() + n * poses * 3, static_cast<int>(poses), knots.data(), times.data(),
                         reference.data() + n * (kSteps + 1) * 3);
    });
    return 0;
  });
}

KERNEL(follow) {
  return call("follow", values, count, [](Arguments& take) {
    const Doubles reference(take.next(), "reference", 3), motion(take.next(), "motion", 2), fit(take.next(), "speed_fit", 2);
    const Bicycle car{take.number(), take.number()};
    const Array<double> states(take.next(), "states", 3);
    const Py_ssize_t cars = reference.size(0);
    reference.of(1, kSteps + 1, "reference").of(2, 3, "reference");
    motion.of(1, kStateSize - 3, "motion"), fit.of(0, kSteps, "speed_fit").of(1, kSteps, "speed_fit");
    states.of(0, cars, "states").of(1, kSteps + 1, "states").of(2, kStateSize, "states");
    if (motion.size(0) != 1) motion.of(0, cars, "motion");
    unlocked([&] {
      for (Py_ssize_t n = 0; n < cars; ++n)
        follow(reference.data() + n * (kSteps + 1) * 3, motion.data() + (motion.size(0) == 1 ? 0 : n) * (kStateSize - 3),
               fit.data(), car, states.data() + n * (kSteps + 1) * kStateSize);
    });
    return 0;
  });
}

KERNEL(fit_curvatures) {
  return call("fit_curvatures", values, count, [](Arguments& take) {
    const Doubles turns(take.next(), "turns", 2), distances(take.next(), "distances", 2);
    const Array<double> curvatures(take.next(), "curvatures", 2);
    turns.of(1, kSteps, "turns"), distances.of(0, turns.size(0), "distances").of(1, kSteps, "distances");
    curvatures.of(0, turns.size(0), "curvatures").of(1, kSteps, "curvatures");
    for (Py_ssize_t n = 0; n < turns.size(0); ++n)
      fit_curvatures(turns.data() + n * kSteps, distances.data() + n * kSteps, curvatures.data() + n * kSteps);
    return 0;
  });
}

// Five arguments: columns (5, A, 51) with x, y, cosine and sine of the heading and speed; present; sizes; static.
class AgentArguments {
 public:
  explicit AgentArguments(Arguments& take)
      : columns_(take.next(), "columns", 3), present_(take.next(), "present", 2), sizes_(take.next(), "sizes", 2),
        fixed_(take.next(), "static", 1) {
    const Py_ssize_t agents = present_.size(0);
    columns_.of(0, 5, "columns").of(1, agents, "columns").of(2, kSamples, "columns");
    present_.of(1, kSamples, "present"), sizes_.of(0, agents, "sizes").of(1, 2, "sizes"), fixed_.of(0, agents, "static");
  }
  Agents agents() const {
    const Py_ssize_t size = present_.size(0) * kSamples;
    const double* x = columns_.data();
    return {static_cast<int>(present_.size(0)), x, x + size, x + 2 * size, x + 3 * size, x + 4 * size,
            present_.data(), sizes_.data(), fixed_.data()};
  }

 private:
  Doubles columns_;
  Flags present_;
  Doubles sizes_;
  Flags fixed_;
};

// Three arguments: states, centers, beside_counts.
class CandidateArguments {
 public:
  explicit CandidateArguments(Arguments& take)
      : states_(take.next(), "states", 3), centers_(take.next(), "centers", 3), beside_(take.next(), "beside_counts", 2) {
    states_.of(1, kInstants, "states").of(2, kStateSize, "states");
    centers_.of(0, states_.size(0), "centers").of(1, kInstants, "centers").of(2, 3, "centers");
    beside_.of(0, states_.size(0), "beside_counts").of(1, kInstants, "beside_counts");
  }
  Candidates candidates() const {
    return {static_cast<int>(states_.size(0)), states_.data(), centers_.data(), beside_.data()};
  }

 private:
  Doubles states_, centers_;
  Flags beside_;
};

KERNEL(no_collision) {
  return call("no_collision", values, count, [](Arguments& take) {
    const CandidateArguments ego(take);
    const EgoBox box{take.number(), take.number()};
    const AgentArguments agents(take);
    const bool whole = take.integer(), spare_first = take.integer();
    const Array<double> score(take.next(), "score", 2);
    const Candidates candidates = ego.candidates();
    score.of(0, candidates.count, "score").of(1, kInstants, "score");
    unlocked([&] { no_collision(candidates, box, agents.agents(), whole, spare_first, score.data()); });
    return 0;
  });
}

KERNEL(time_to_collision) {
  return call("time_to_collision", values, count, [](Arguments& take) {
    const CandidateArguments ego(take);
    const EgoBox box{take.number(), take.number()};
    const AgentArguments agents(take);
    const long last = take.integer();
    const bool whole = take.integer(), at_contact = take.integer();
    const Array<double> score(take.next(), "score", 1);
    const Candidates candidates = ego.candidates();
    score.of(0, candidates.count, "score");
    if (last < 0 || last >= kInstants) throw std::invalid_argument("last is not 0 to 40");
    unlocked([&] {
      time_to_collision(candidates, box, agents.agents(), static_cast<int>(last), whole, at_contact, score.data());
    });
    return 0;
  });
}

KERNEL(agent_gaps) {
  return call("agent_gaps", values, count, [](Arguments& take) {
    const Doubles centers(take.next(), "centers", 3);
    const Array<const long long> samples(take.next(), "samples", 1);
    const EgoBox box{take.number(), take.number()};
    const AgentArguments agents(take);
    const double most_m = take.number();
    const Array<double> gaps(take.next(), "gaps", 2);
    const Py_ssize_t candidates = centers.size(0), instants = centers.size(1);
    centers.of(2, 3, "centers"), samples.of(0, instants, "samples");
    gaps.of(0, candidates, "gaps").of(1, instants, "gaps");
    for (Py_ssize_t k = 0; k < instants; ++k)
      if (samples.data()[k] < 0 || samples.data()[k] >= kSamples) throw std::invalid_argument("samples is not 0 to 50");
    unlocked([&] {
      agent_gaps(centers.data(), static_cast<int>(candidates), static_cast<int>(instants), samples.data(), box,
                 agents.agents(), most_m, gaps.data());
    });
    return 0;
  });
}

// Four arguments: centers (B, 3), length_m, width_m and ahead_m of boxes.
class BoxArguments {
 public:
  explicit BoxArguments(Arguments& take)
      : centers_(take.next(), "centers", 2), length_m_(take.number()), width_m_(take.number()), ahead_m_(take.number()) {
    centers_.of(1, 3, "centers");
  }
  AreaBoxes boxes() const { return {centers_.data(), centers_.size(0), length_m_, width_m_, ahead_m_}; }

 private:
  Doubles centers_;
  double length_m_, width_m_, ahead_m_;
};

KERNEL(box_points) {
  return call("box_points", values, count, [](Arguments& take) {
    const BoxArguments boxes(take);
    const Array<double> points(take.next(), "points", 3);
    points.of(0, boxes.boxes().count, "points").of(1, 6, "points").of(2, 2, "points");
    unlocked([&] { box_points(boxes.boxes(), points.data()); });
    return 0;
  });
}

// Seven arguments, those of `AreaCells`: place (5), columns, references, first, edges, edge_bits, reach_m.
class CellArguments {
 public:
  explicit CellArguments(Arguments& take)
      : place_(take.next(), "place", 1), columns_(take.integer()), references_(take.next(), "references", 2),
        first_(take.next(), "first", 1), edges_(take.next(), "edges", 2), edge_bits_(take.next(), "edge_bits", 2),
        reach_m_(take.number()) {
    const Py_ssize_t words = references_.size(0), cells = references_.size(1);
    place_.of(0, 5, "place"), first_.of(0, cells + 1, "first"), edges_.of(0, 6, "edges");
    edge_bits_.of(0, words, "edge_bits").of(1, edges_.size(1), "edge_bits");
    if (columns_ <= 0 || cells % columns_ != 0) throw std::invalid_argument("columns does not divide the cells");
  }
  AreaCells cells() const {
    const double* p = place_.data();
    const Py_ssize_t cells = references_.size(1);
    return {p[0], p[1], p[2], p[3], p[4], cells / columns_, columns_, cells, edges_.size(1), static_cast<int>(words()),
            references_.data(), first_.data(), edges_.data(), edge_bits_.data(), reach_m_};
  }
  Py_ssize_t words() const { return references_.size(0); }

 private:
  Doubles place_;
  long columns_;
  Array<const uint64_t> references_;
  Array<const long long> first_;
  Doubles edges_;
  Array<const uint64_t> edge_bits_;
  double reach_m_;
};

// Four arguments: bits of lanes, of the route's lanes, of drivable polygons and of intersections.
class KindArguments {
 public:
  KindArguments(Arguments& take, Py_ssize_t words)
      : lanes_(take.next(), "lanes", 1), route_(take.next(), "route", 1), drivable_(take.next(), "drivable", 1),
        intersections_(take.next(), "intersections", 1) {
    lanes_.of(0, words, "lanes"), route_.of(0, words, "route");
    drivable_.of(0, words, "drivable"), intersections_.of(0, words, "intersections");
  }
  AreaKinds kinds() const { return {lanes_.data(), route_.data(), drivable_.data(), intersections_.data()}; }

 private:
  Array<const uint64_t> lanes_, route_, drivable_, intersections_;
};

KERNEL(polygons_around) {
  return call("polygons_around", values, count, [](Arguments& take) {
    const Doubles points(take.next(), "points", 2);
    const CellArguments index(take);
    const Array<uint64_t> sets(take.next(), "sets", 2);
    const Array<bool> uncertain(take.next(), "uncertain", 1);
    points.of(1, 2, "points"), sets.of(0, points.size(0), "sets").of(1, index.words(), "sets");
    uncertain.of(0, points.size(0), "uncertain");
    long long uncertain_count = 0;
    unlocked([&] {
      uncertain_count = polygons_around(index.cells(), points.data(), points.size(0), sets.data(), uncertain.data());
    });
    return uncertain_count;
  });
}

KERNEL(area_flags) {
  return call("area_flags", values, count, [](Arguments& take) {
    const Array<const uint64_t> sets(take.next(), "sets", 3);
    const Py_ssize_t words = sets.size(2);
    const KindArguments kinds(take, words);
    const bool road_known = take.integer();
    const Array<bool> flags(take.next(), "flags", 2);
    sets.of(1, 6, "sets"), flags.of(0, 5, "flags").of(1, sets.size(0), "flags");
    unlocked([&] {
      area_flags(sets.data(), sets.size(0), static_cast<int>(words), kinds.kinds(), road_known, flags.data());
    });
    return 0;
  });
}

KERNEL(area_flags_of_boxes) {
  return call("area_flags_of_boxes", values, count, [](Arguments& take) {
    const BoxArguments boxes(take);
    const CellArguments index(take);
    const KindArguments kinds(take, index.words());
    const bool road_known = take.integer();
    const Array<bool> flags(take.next(), "flags", 2), uncertain(take.next(), "uncertain", 1);
    const Py_ssize_t number = boxes.boxes().count;
    flags.of(0, 5, "flags").of(1, number, "flags"), uncertain.of(0, number, "uncertain");
    long long uncertain_count = 0;
    unlocked([&] {
      uncertain_count =
          area_flags_of_boxes(index.cells(), boxes.boxes(), kinds.kinds(), road_known, flags.data(), uncertain.data());
    });
    return uncertain_count;
  });
}

KERNEL(red_light_contacts) {
  return call("red_light_contacts", values, count, [](Arguments& take) {
    const Doubles centers(take.next(), "centers", 3);
    const double length_m = take.number(), width_m = take.number();
    const Doubles ring(take.next(), "ring", 2);
    const Flags red(take.next(), "red", 1);
    const Array<double> score(take.next(), "score", 1);
    centers.of(1, kInstants, "centers").of(2, 3, "centers"), ring.of(1, 2, "ring"), red.of(0, kInstants, "red");
    score.of(0, centers.size(0), "score");
    if (ring.size(0) < 3) throw std::invalid_argument("ring has fewer than 3 points");
    unlocked([&] {
      red_light_contacts(centers.data(), static_cast<int>(centers.size(0)), length_m, width_m, ring.data(),
                         static_cast<int>(ring.size(0)), red.data(), score.data());
    });
    return 0;
  });
}

KERNEL(driving_direction) {
  return call("driving_direction", values, count, [](Arguments& take) {
    const Doubles centers(take.next(), "centers", 3);
    const Flags wrong(take.next(), "wrong", 2);
    const Array<double> score(take.next(), "score", 1);
    centers.of(1, kInstants, "centers").of(2, 3, "centers");
    wrong.of(0, centers.size(0), "wrong").of(1, kInstants, "wrong"), score.of(0, centers.size(0), "score");
    unlocked([&] { driving_direction(centers.data(), static_cast<int>(centers.size(0)), wrong.data(), score.data()); });
    return 0;
  });
}

// Three arguments: distance_m (rows, columns), place (x, y, heading of the ego frame), resolution_m.
class GridArguments {
 public:
  explicit GridArguments(Arguments& take)
      : distance_(take.next(), "distance_m", 2), place_(take.next(), "place", 1), resolution_m_(take.number()) {
    place_.of(0, 3, "place");
    if (distance_.size(0) < 2 || distance_.size(1) < 2) throw std::invalid_argument("distance_m has fewer than 2 x 2 cells");
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

KERNEL(point_clearances) {
  return call("point_clearances", values, count, [](Arguments& take) {
    const GridArguments grid(take);
    const Doubles points(take.next(), "points", 2);
    const Array<double> clearances(take.next(), "clearances", 1);
    points.of(1, 2, "points"), clearances.of(0, points.size(0), "clearances");
    unlocked([&] { point_clearances(grid.grid(), points.data(), points.size(0), clearances.data()); });
    return 0;
  });
}

KERNEL(box_clearances) {
  return call("box_clearances", values, count, [](Arguments& take) {
    const GridArguments grid(take);
    const Doubles poses(take.next(), "poses", 2), outline(take.next(), "outline", 2);
    const bool is_likely = take.integer();
    const Array<double> found(take.next(), "clearances", 1);
    poses.of(1, 3, "poses"), outline.of(1, 2, "outline"), found.of(0, poses.size(0), "clearances");
    unlocked([&] {
      (is_likely ? likely_box_distances : box_clearances)(grid.grid(), poses.data(), poses.size(0), outline.data(),
                                                           static_cast<int>(outline.size(0)), found.data());
    });
    return 0;
  });
}

KERNEL(comfort_flags) {
  return call("comfort_flags", values, count, [](Arguments& take) {
    const Doubles states(take.next(), "states", 3), weights(take.next(), "weights", 3);
    const Array<const long long> ranges(take.next(), "ranges", 3);
    const long point = take.integer();
    const double ahead_m = take.number();
    const Doubles low(take.next(), "low", 1), high(take.next(), "high", 1);
    const Array<bool> flags(take.next(), "flags", 2);
    const Py_ssize_t samples = states.size(1), blocks = ranges.size(1);
    states.of(2, kStateSize, "states"), low.of(0, 6, "low"), high.of(0, 6, "high");
    weights.of(0, 5, "weights").of(1, samples, "weights").of(2, blocks * kBlock, "weights");
    ranges.of(0, 5, "ranges").of(2, 2, "ranges"), flags.of(0, states.size(0), "flags").of(1, 6, "flags");
    if (blocks * kBlock < samples) throw std::invalid_argument("ranges has too few blocks");
    for (Py_ssize_t i = 0; i < 10 * blocks; ++i)
      if (ranges.data()[i] < 0 || ranges.data()[i] > samples) throw std::invalid_argument("ranges leaves the samples");
    const ComfortFilters filters{static_cast<int>(samples), static_cast<int>(blocks), weights.data(), ranges.data()};
    unlocked([&] {
      comfort_flags(states.data(), static_cast<int>(states.size(0)), filters, static_cast<ComfortPoint>(point), ahead_m,
                    low.data(), high.data(), flags.data());
    });
    return 0;
  });
}

// One argument: the points (L >= 2, 2+) of a polyline, of which x and y count.
class LineOfPoints {
 public:
  LineOfPoints(Arguments& take, Py_ssize_t least) : line_(take.next(), "line", 2), along_(line_.size(0)) {
    const Py_ssize_t length = line_.size(0), columns = line_.size(1);
    if (length < least || columns < 2) throw std::invalid_argument("line has too few points or columns");
    points_ = line_.data();
    if (columns > 2) {
      kept_.resize(2 * length);
      for (Py_ssize_t k = 0; k < length; ++k)
        kept_[2 * k] = line_.data()[columns * k], kept_[2 * k + 1] = line_.data()[columns * k + 1];
      points_ = kept_.data();
    }
    arc_lengths(points_, static_cast<int>(length), along_.data());
  }
  Polyline line() const { return {points_, along_.data(), static_cast<int>(along_.size())}; }

 private:
  Doubles line_;
  std::vector<double> kept_, along_;
  const double* points_;
};

KERNEL(project) {
  return call("project", values, count, [](Arguments& take) {
    const LineOfPoints line(take, 2);
    const Doubles points(take.next(), "points", 2);
    const Array<double> along(take.next(), "along", 1), offsets(take.next(), "offsets", 1);
    const Py_ssize_t number = points.size(0);
    points.of(1, 2, "points"), along.of(0, number, "along"), offsets.of(0, number, "offsets");
    unlocked([&] { project(line.line(), points.data(), number, along.data(), offsets.data()); });
    return 0;
  });
}

KERNEL(sample) {
  return call("sample", values, count, [](Arguments& take) {
    const LineOfPoints line(take, 1);
    const Doubles along(take.next(), "along", 1);
    const Array<double> begins(take.next(), "begins", 2), headings(take.next(), "headings", 1), beyond(take.next(), "beyond", 1);
    const Py_ssize_t number = along.size(0);
    begins.of(0, 2, "begins").of(1, number, "begins"), headings.of(0, number, "headings"), beyond.of(0, number, "beyond");
    unlocked([&] {
      sample(line.line().points, line.line().count, along.data(), static_cast<int>(number), begins.data(), headings.data(),
             beyond.data());
    });
    return 0;
  });
}

KERNEL(lane_keeping) {
  return call("lane_keeping", values, count, [](Arguments& take) {
    const Doubles centers(take.next(), "centers", 3);
    const Flags spared(take.next(), "spared", 2);
    const LineOfPoints line(take, 2);
    const double offset_m = take.number();
    const long steps = take.integer();
    const Array<double> score(take.next(), "score", 1);
    const Py_ssize_t plans = centers.size(0), number = centers.size(1);
    centers.of(2, 3, "centers"), spared.of(0, plans, "spared").of(1, number, "spared"), score.of(0, plans, "score");
    if (steps < 1) throw std::invalid_argument("steps is not positive");
    unlocked([&] {
      for (Py_ssize_t n = 0; n < plans; ++n)
        score.data()[n] = stays_farther(line.line(), centers.data() + 3 * n * number, static_cast<int>(number), 3,
                                        spared.data() + n * number, offset_m, static_cast<int>(steps)) ? 0.0 : 1.0;
    });
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

RouteRule take_rule(Arguments& take) { return {take.number(), take.number(), take.number(), take.number()}; }

HeadingPrior take_prior(Arguments& take) {
  return {take.number(), take.number(), take.number(), take.number(), take.number(), take.number(), take.number()};
}

KERNEL(headings_on_road) {
  return call("headings_on_road", values, count, [](Arguments& take) {
    const RouteArguments road(take);
    const Doubles here(take.next(), "here", 1), points(take.next(), "points", 3);
    const RouteRule rule = take_rule(take);
    const HeadingPrior prior = take_prior(take);
    const Array<double> headings(take.next(), "headings", 2);
    const Py_ssize_t plans = points.size(0), number = points.size(1);
    here.of(0, 3, "here"), points.of(2, 2, "points"), headings.of(0, plans, "headings").of(1, number, "headings");
    if (road.route().count == 0) throw std::invalid_argument("at is empty");
    unlocked([&] {
      headings_on_road(road.route(), here.data(), points.data(), static_cast<int>(plans), static_cast<int>(number), rule,
                       prior, headings.data());
    });
    return 0;
  });
}

// Two arguments: weights (T, T) of points and (T, 2) of the start.
class SmoothingArguments {
 public:
  SmoothingArguments(Arguments& take, Py_ssize_t number)
      : of_points_(take.next(), "of_points", 2), of_start_(take.next(), "of_start", 2) {
    of_points_.of(0, number, "of_points").of(1, number, "of_points");
    of_start_.of(0, number, "of_start").of(1, 2, "of_start");
  }
  Smoothing weights() const { return {of_points_.data(), of_start_.data()}; }

 private:
  Doubles of_points_, of_start_;
};

KERNEL(smooth_points) {
  return call("smooth_points", values, count, [](Arguments& take) {
    const Doubles points(take.next(), "points", 3), start(take.next(), "start", 2);
    const double bin_m = take.number();
    const Py_ssize_t plans = points.size(0), number = points.size(1);
    const SmoothingArguments plain(take, number), on_road(take, number);
    const RouteArguments road(take);
    const RouteRule rule = take_rule(take);
    const Array<double> moved(take.next(), "moved", 3);
    points.of(2, 2, "points"), start.of(0, 2, "start").of(1, 2, "start");
    moved.of(0, plans, "moved").of(1, number, "moved").of(2, 2, "moved");
    unlocked([&] {
      smooth_points(points.data(), static_cast<int>(plans), static_cast<int>(number), start.data(), bin_m, plain.weights(),
                    on_road.weights(), road.route(), rule, moved.data());
    });
    return 0;
  });
}

KERNEL(limit_acceleration) {
  return call("limit_acceleration", values, count, [](Arguments& take) {
    const Array<double> points(take.next(), "points", 3);
    const Pace pace{take.number(), take.number(), take.number(), take.number()};
    points.of(2, 2, "points");
    int changed = 0;
    unlocked([&] {
      changed = limit_acceleration(points.data(), static_cast<int>(points.size(0)), static_cast<int>(points.size(1)), pace);
    });
    return changed;
  });
}

KERNEL(interpolate_paths) {
  return call("interpolate_paths", values, count, [](Arguments& take) {
    const Doubles ways(take.next(), "ways", 3), along(take.next(), "along", 2), reached(take.next(), "reached", 2);
    const Array<double> points(take.next(), "points", 3);
    const Py_ssize_t paths = ways.size(0), knots = ways.size(1), number = reached.size(1);
    ways.of(2, 2, "ways"), along.of(0, paths, "along").of(1, knots, "along"), reached.of(0, paths, "reached");
    points.of(0, paths, "points").of(1, number, "points").of(2, 2, "points");
    if (knots < 2) throw std::invalid_argument("ways has fewer than 2 knots");
    unlocked([&] {
      interpolate_paths(ways.data(), along.data(), static_cast<int>(paths), static_cast<int>(knots), reached.data(),
                        static_cast<int>(number), points.data());
    });
    return 0;
  });
}

// Two arguments: ends (K, 2, 2) and reach_m (K) of closed stop lines.
class LineArguments {
 public:
  explicit LineArguments(Arguments& take) : ends_(take.next(), "ends", 3), reach_m_(take.next(), "reach_m", 1) {
    ends_.of(0, reach_m_.size(0), "ends").of(1, 2, "ends").of(2, 2, "ends");
  }
  StopLines lines() const { return {ends_.data(), reach_m_.data(), static_cast<int>(reach_m_.size(0))}; }

 private:
  Doubles ends_, reach_m_;
};

KERNEL(first_crossings) {
  return call("first_crossings", values, count, [](Arguments& take) {
    const LineArguments lines(take);
    const Doubles poses(take.next(), "poses", 3);
    const Array<long long> found(take.next(), "found", 1);
    const Py_ssize_t plans = poses.size(0), number = poses.size(1);
    poses.of(2, 3, "poses"), found.of(0, plans, "found");
    unlocked([&] {
      first_crossings(lines.lines(), poses.data(), static_cast<int>(plans), static_cast<int>(number), 3, found.data());
    });
    return 0;
  });
}

KERNEL(plan_safety) {
  return call("plan_safety", values, count, [](Arguments& take) {
    const Doubles states(take.next(), "states", 3);
    const PlacedBox box{{take.number(), take.number()}, take.number()};
    const double ahead_m = take.number();  // of the car's centre
    const AgentArguments agents(take);
    const LineArguments lines(take);
    const GridArguments grid(take);
    const Doubles outline(take.next(), "outline", 2);
    const double margin_m = take.number();
    const Array<double> centers(take.next(), "centers", 3), clearances(take.next(), "clearances", 2);
    const Array<double> by_step(take.next(), "by_step", 2), excess(take.next(), "excess", 1);
    const Py_ssize_t plans = states.size(0);
    states.of(1, kInstants, "states").of(2, kStateSize, "states"), outline.of(1, 2, "outline");
    centers.of(0, plans, "centers").of(1, kInstants, "centers").of(2, 3, "centers");
    clearances.of(0, plans, "clearances").of(1, kInstants, "clearances");
    by_step.of(0, plans, "by_step").of(1, kInstants, "by_step"), excess.of(0, plans, "excess");
    unlocked([&] {
      const RoadCheck road{grid.grid(), outline.data(), static_cast<int>(outline.size(0)), margin_m};
      box_centers(states.data(), static_cast<int>(plans), ahead_m, centers.data());
      plan_safety(states.data(), centers.data(), static_cast<int>(plans), box, agents.agents(), road, lines.lines(),
                  clearances.data(), by_step.data(), excess.data());
    });
    return 0;
  });
}

KERNEL(vehicle_demands) {
  return call("vehicle_demands", values, count, [](Arguments& take) {
    const Doubles poses(take.next(), "poses", 3);
    const double dt_s = take.number(), speed_mps = take.number(), slowest_mps = take.number();
    const Array<double> demands(take.next(), "demands", 3);
    const Py_ssize_t plans = poses.size(0), number = poses.size(1);
    poses.of(2, 3, "poses"), demands.of(0, 6, "demands").of(1, plans, "demands").of(2, number, "demands");
    unlocked([&] {
      vehicle_demands(poses.data(), static_cast<int>(plans), static_cast<int>(number), dt_s, speed_mps, slowest_mps,
                      demands.data());
    });
    return 0;
  });
}

KERNEL(project_to_road) {
  return call("project_to_road", values, count, [](Arguments& take) {
    const RouteArguments road(take);
    const Doubles poses(take.next(), "poses", 2);
    const Array<double> at(take.next(), "at_m", 1), beside(take.next(), "beside_m", 1), facing(take.next(), "facing", 1);
    const Py_ssize_t agents = poses.size(0);
    poses.of(1, 3, "poses"), at.of(0, agents, "at_m"), beside.of(0, agents, "beside_m"), facing.of(0, agents, "facing");
    if (road.route().count == 0) throw std::invalid_argument("at is empty");
    unlocked([&] {
      project_to_road(road.route(), poses.data(), static_cast<int>(agents), at.data(), beside.data(), facing.data());
    });
    return 0;
  });
}

KERNEL(find_leads) {
  return call("find_leads", values, count, [](Arguments& take) {
    const Doubles poses(take.next(), "poses", 2), speeds(take.next(), "speeds", 1), sizes(take.next(), "sizes", 2);
    const Flags follows(take.next(), "follows", 1);
    const Doubles at(take.next(), "at_m", 1), beside(take.next(), "beside_m", 1), facing(take.next(), "facing", 1);
    const Flags on_road(take.next(), "on_road", 1);
    const LeadRule rule{take.number(), take.number(), take.number(), take.number()};
    const Array<long long> rows(take.next(), "rows", 1);
    const Array<double> gaps(take.next(), "gaps", 1);
    const Py_ssize_t agents = speeds.size(0);
    poses.of(0, agents, "poses").of(1, 3, "poses"), sizes.of(0, agents, "sizes").of(1, 2, "sizes");
    follows.of(0, agents, "follows"), at.of(0, agents, "at_m"), beside.of(0, agents, "beside_m");
    facing.of(0, agents, "facing"), on_road.of(0, agents, "on_road"), rows.of(0, agents, "rows"), gaps.of(0, agents, "gaps");
    const RoadUsers users{static_cast<int>(agents), poses.data(), speeds.data(), sizes.data(), follows.data(),
                          at.data(),                beside.data(), facing.data(), on_road.data()};
    unlocked([&] { find_leads(users, rule, rows.data(), gaps.data()); });
    return 0;
  });
}

KERNEL(along_arcs) {
  return call("along_arcs", values, count, [](Arguments& take) {
    const Doubles poses(take.next(), "poses", 2), velocities(take.next(), "velocities", 2), rates(take.next(), "yaw_rates", 1);
    const Doubles driven(take.next(), "driven", 2);
    const double decay_s = take.number(), least_mps = take.number();
    const Array<double> found(take.next(), "found", 3);
    const Py_ssize_t agents = rates.size(0), number = driven.size(1);
    poses.of(0, agents, "poses").of(1, 3, "poses"), velocities.of(0, agents, "velocities").of(1, 2, "velocities");
    driven.of(0, agents, "driven"), found.of(0, agents, "found").of(1, number, "found").of(2, 3, "found");
    unlocked([&] {
      along_arcs(poses.data(), velocities.data(), rates.data(), static_cast<int>(agents), driven.data(),
                 static_cast<int>(number), decay_s, least_mps, found.data());
    });
    return 0;
  });
}

KERNEL(along_road) {
  return call("along_road", values, count, [](Arguments& take) {
    const RouteArguments road(take);
    const Doubles at(take.next(), "at_m", 1), beside(take.next(), "beside_m", 1), poses(take.next(), "poses", 2);
    const Doubles speeds(take.next(), "speeds", 1), driven(take.next(), "driven", 2);
    const double decay_s = take.number(), least_mps = take.number();
    const Array<double> found(take.next(), "found", 3);
    const Py_ssize_t agents = speeds.size(0), number = driven.size(1);
    at.of(0, agents, "at_m"), beside.of(0, agents, "beside_m"), poses.of(0, agents, "poses").of(1, 3, "poses");
    driven.of(0, agents, "driven"), found.of(0, agents, "found").of(1, number, "found").of(2, 3, "found");
    if (road.route().count == 0 || number == 0) throw std::invalid_argument("at or driven is empty");
    unlocked([&] {
      along_road(road.route(), at.data(), beside.data(), poses.data(), speeds.data(), static_cast<int>(agents), driven.data(),
                 static_cast<int>(number), decay_s, least_mps, found.data());
    });
    return 0;
  });
}

KERNEL(continue_tracks) {
  return call("continue_tracks", values, count, [](Arguments& take) {
    const Doubles poses(take.next(), "poses", 3);
    const double dt_s = take.number();
    const Array<double> found(take.next(), "found", 3), speeds(take.next(), "speeds", 2);
    const Py_ssize_t agents = poses.size(0);
    poses.of(2, 3, "poses"), found.of(0, agents, "found").of(1, kSamples, "found").of(2, 3, "found");
    speeds.of(0, agents, "speeds").of(1, kSamples, "speeds");
    if (poses.size(1) < 1 || !(dt_s > 0.0)) throw std::invalid_argument("poses has no instant, or dt is not positive");
    unlocked([&] {
      continue_tracks(poses.data(), static_cast<int>(agents), static_cast<int>(poses.size(1)), dt_s, found.data(), speeds.data());
    });
    return 0;
  });
}

#define ENTRY(name) {#name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(py_##name)), METH_FASTCALL, nullptr}

PyMethodDef kMethods[] = {
    ENTRY(interpolate_plans), ENTRY(follow),          ENTRY(fit_curvatures),     ENTRY(no_collision),
    ENTRY(time_to_collision), ENTRY(agent_gaps),      ENTRY(box_points),         ENTRY(polygons_around),
    ENTRY(area_flags),         ENTRY(area_flags_of_boxes),        ENTRY(red_light_contacts), ENTRY(driving_direction), ENTRY(point_clearances),
    ENTRY(box_clearances),    ENTRY(comfort_flags),   ENTRY(project),         ENTRY(sample),      ENTRY(lane_keeping),
    ENTRY(first_fault),       ENTRY(to_frenet),       ENTRY(headings_of_points), ENTRY(resample),
    ENTRY(bends_too_sharply), ENTRY(pursue),
    ENTRY(drop_reversals), ENTRY(hold_distances),    ENTRY(follow_waypoints), ENTRY(follow_leads),
    ENTRY(headings_on_road), ENTRY(smooth_points),   ENTRY(limit_acceleration), ENTRY(interpolate_paths),
    ENTRY(first_crossings), ENTRY(plan_safety),     ENTRY(vehicle_demands),
    ENTRY(project_to_road), ENTRY(find_leads),       ENTRY(along_arcs),         ENTRY(along_road),
    ENTRY(continue_tracks),
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
