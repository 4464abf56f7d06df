// Bindings of plans: polylines, the Frenet frame of the route, postprocessing, and safety of N plans.

#include "kernels.hpp"
#include "motion.hpp"
#include "polylines.hpp"
#include "safety.hpp"
#include "simulate.hpp"
#include "waypoints.hpp"

namespace reflectdrive {

namespace {

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

}  // namespace

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
    const Array<double> begins(take.next(), "begins", 2), headings(take.next(), "headings", 1),
        beyond(take.next(), "beyond", 1);
    const Py_ssize_t number = along.size(0);
    begins.of(0, 2, "begins").of(1, number, "begins"), headings.of(0, number, "headings"),
        beyond.of(0, number, "beyond");
    unlocked([&] {
      sample(line.line().points, line.line().count, along.data(), static_cast<int>(number), begins.data(),
             headings.data(), beyond.data());
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
                                        spared.data() + n * number, offset_m, static_cast<int>(steps))
                              ? 0.0
                              : 1.0;
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
      found = first_fault(centers.data(), rear_axles.data(), moving.data(), static_cast<int>(samples), box,
                          others.data(), sizes.data(), static_cast<int>(agents));
    });
    return found;
  });
}

KERNEL(to_frenet) {
  return call("to_frenet", values, count, [](Arguments& take) {
    const Doubles places(take.next(), "places", 2), route_headings(take.next(), "route_headings", 1),
        at(take.next(), "at", 1);
    const Doubles points(take.next(), "points", 3);
    const double tolerance_m = take.number();
    const Array<double> straight(take.next(), "straight", 3), headings(take.next(), "headings", 2);
    const Py_ssize_t plans = points.size(0), number = points.size(1), length = at.size(0);
    places.of(0, length, "places").of(1, 2, "places"), route_headings.of(0, length, "route_headings"),
        points.of(2, 2, "points");
    straight.of(0, plans, "straight").of(1, number, "straight").of(2, 2, "straight");
    headings.of(0, plans, "headings").of(1, number, "headings");
    if (length == 0) throw std::invalid_argument("at is empty");
    const Route route{places.data(), route_headings.data(), at.data(), static_cast<int>(length)};
    unlocked([&] {
      to_frenet(route, points.data(), static_cast<int>(plans), static_cast<int>(number), tolerance_m, straight.data(),
                headings.data());
    });
    return 0;
  });
}

KERNEL(headings_of_points) {
  return call("headings_of_points", values, count, [](Arguments& take) {
    const Doubles points(take.next(), "points", 3);
    const HeadingPrior prior{take.number(), take.number(), take.number(), take.number(),
                             take.number(), take.number(), take.number()};
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
      resample(poses.data(), knots.data(), static_cast<int>(poses.size(0)), times.data(),
               static_cast<int>(times.size(0)), same_place_m, found.data());
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
      found.data()[n] =
          bends_too_sharply(knots.data() + 2 * n * number, static_cast<int>(number), tightest_per_m, telling_m);
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

namespace {

RouteRule take_rule(Arguments& take) { return {take.number(), take.number(), take.number(), take.number()}; }

HeadingPrior take_prior(Arguments& take) {
  return {take.number(), take.number(), take.number(), take.number(), take.number(), take.number(), take.number()};
}

}  // namespace

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
      headings_on_road(road.route(), here.data(), points.data(), static_cast<int>(plans), static_cast<int>(number),
                       rule, prior, headings.data());
    });
    return 0;
  });
}

namespace {

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

}  // namespace

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
      smooth_points(points.data(), static_cast<int>(plans), static_cast<int>(number), start.data(), bin_m,
                    plain.weights(), on_road.weights(), road.route(), rule, moved.data());
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
      changed =
          limit_acceleration(points.data(), static_cast<int>(points.size(0)), static_cast<int>(points.size(1)), pace);
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

namespace {

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

}  // namespace

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
      plan_safety(states.data(), static_cast<int>(plans), ahead_m, box, agents.agents(), road, lines.lines(),
                  centers.data(), clearances.data(), by_step.data(), excess.data());
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

}  // namespace reflectdrive
