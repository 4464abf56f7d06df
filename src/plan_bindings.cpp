// Bindings of plans: polylines, the Frenet frame of the route, postprocessing, and safety of N plans.

#include <vector>

#include "bindings.hpp"
#include "motion.hpp"
#include "polylines.hpp"
#include "safety.hpp"
#include "simulate.hpp"
#include "waypoints.hpp"

namespace reflectdrive {
namespace {

using RouteNumbers = std::array<double, 4>;  // of a RouteRule
using PriorNumbers = std::array<double, 7>;  // of a HeadingPrior

// A polyline of the first two columns of points (L, 2+), with its arc lengths.
class Line {
 public:
  Line(const Doubles& line, int least)
      : along_(static_cast<std::size_t>(line.check("line", {kAny, kAny}).size(0))), points_(line.data()) {
    const int length = line.size(0), columns = line.size(1);
    if (length < least || columns < 2) throw std::invalid_argument("line has too few points or columns");
    if (columns > 2) {
      for (const double* point = line.data(); point != line.data() + Py_ssize_t{length} * columns; point += columns)
        copy_.insert(copy_.end(), point, point + 2);
      points_ = copy_.data();
    }
    arc_lengths(points_, length, along_.data());
  }
  Polyline polyline() const { return {points_, along_.data(), static_cast<int>(along_.size())}; }

 private:
  std::vector<double> along_, copy_;
  const double* points_;
};

// Weights (T, T) of points and (T, 2) of the start.
using SmoothingArrays = std::tuple<Doubles, Doubles>;

Smoothing smoothing_of(const SmoothingArrays& arrays, int count) {
  const auto& [of_points, of_start] = arrays;
  of_points.check("of_points", {count, count}), of_start.check("of_start", {count, 2});
  return {of_points.data(), of_start.data()};
}

// Ends (K, 2, 2) and reach_m (K) of closed stop lines, and how far beside them they still count.
using LineArrays = std::tuple<Doubles, Doubles, double>;

StopLines lines_of(const LineArrays& arrays) {
  const auto& [ends, reach_m, beside_m] = arrays;
  const int count = reach_m.check("reach_m", {kAny}).size(0);
  ends.check("ends", {count, 2, 2});
  return {ends.data(), reach_m.data(), count, beside_m};
}

void bind_lines(nanobind::module_& module) {
  bind(module, "project", [](Doubles line, Doubles points, double repeated_m, DoublesOut along, DoublesOut offsets) {
    const Line given(line, 2);
    const int count = points.check("points", {kAny, 2}).size(0);
    along.check("along", {count}), offsets.check("offsets", {count});
    project(given.polyline(), points.data(), count, repeated_m, along.data(), offsets.data());
  });

  bind(module, "sample",
       [](Doubles line, Doubles along, double repeated_m, DoublesOut begins, DoublesOut headings, DoublesOut beyond) {
         const Line given(line, 1);
         const int count = along.check("along", {kAny}).size(0);
         begins.check("begins", {2, count}), headings.check("headings", {count}), beyond.check("beyond", {count});
         const Polyline polyline = given.polyline();
         sample(polyline.points, polyline.count, along.data(), count, repeated_m, begins.data(), headings.data(),
                beyond.data());
       });

  bind(module, "lane_keeping",
       [](Doubles centers, Flags spared, Doubles line, double offset_m, int steps, DoublesOut score) {
         const int plans = centers.check("centers", {kAny, kAny, 3}).size(0), count = centers.size(1);
         spared.check("spared", {plans, count}), score.check("score", {plans});
         if (steps < 1) throw std::invalid_argument("steps is not positive");
         const Line given(line, 2);
         for (int n = 0; n < plans; ++n)
           score.data()[n] = stays_farther(given.polyline(), centers.data() + Py_ssize_t{3} * n * count, count, 3,
                                           spared.data() + Py_ssize_t{n} * count, offset_m, steps)
                                 ? 0.0
                                 : 1.0;
       });

  bind(module, "interpolate_paths", [](Doubles paths, Doubles along, Doubles reached, DoublesOut points) {
    paths.check("paths", {kAny, kAny, 2});
    const int count = paths.size(0), knots = paths.size(1), samples = reached.check("reached", {count, kAny}).size(1);
    along.check("along", {count, knots}), points.check("points", {count, samples, 2});
    if (knots < 2) throw std::invalid_argument("paths has fewer than 2 knots");
    interpolate_paths(paths.data(), along.data(), count, knots, reached.data(), samples, points.data());
  });

  bind(module, "to_frenet",
       [](const RouteArrays& road, Doubles points, double tolerance_m, DoublesOut straight, DoublesOut headings) {
         points.check("points", {kAny, kAny, 2});
         const int plans = points.size(0), count = points.size(1);
         straight.check("straight", {plans, count, 2}), headings.check("headings", {plans, count});
         to_frenet(road_of(road), points.data(), plans, count, tolerance_m, straight.data(), headings.data());
       });
}

void bind_headings(nanobind::module_& module) {
  bind(module, "headings_of_points", [](Doubles points, const PriorNumbers& prior, DoublesOut headings) {
    points.check("points", {kAny, kAny, 2});
    const int plans = points.size(0), count = points.size(1);
    headings.check("headings", {plans, count});
    headings_of_points(points.data(), plans, count, as<HeadingPrior>(prior), headings.data());
  });

  bind(module, "headings_on_road",
       [](const RouteArrays& road, Doubles here, Doubles points, const RouteNumbers& rule, const PriorNumbers& prior,
          DoublesOut headings) {
         here.check("here", {3}), points.check("points", {kAny, kAny, 2});
         const int plans = points.size(0), count = points.size(1);
         headings.check("headings", {plans, count});
         headings_on_road(road_of(road), here.data(), points.data(), plans, count, as<RouteRule>(rule),
                          as<HeadingPrior>(prior), headings.data());
       });
}

void bind_motion(nanobind::module_& module) {
  bind(module, "resample", [](Doubles poses, Doubles knots, Doubles times, double same_place_m, DoublesOut poses_then) {
    const int count = poses.check("poses", {kAny, 3}).size(0), samples = times.check("times", {kAny}).size(0);
    knots.check("knots", {count}), poses_then.check("poses_then", {samples, 3});
    if (count < 2) throw std::invalid_argument("poses has fewer than 2");
    resample(poses.data(), knots.data(), count, times.data(), samples, same_place_m, poses_then.data());
  });

  bind<KeepLock>(module, "drop_reversals", [](DoublesOut points, double ahead, double telling_m) {
    const int plans = points.check("points", {kAny, kAny, 2}).size(0), count = points.size(1);
    for (int n = 0; n < plans; ++n) drop_reversals(points.data() + Py_ssize_t{2} * n * count, count, ahead, telling_m);
  });

  bind(module, "hold_distances",
       [](DoublesOut distances, Doubles room, double start_mps, double fine_s, const std::array<double, 4>& limits) {
         const int cars = distances.check("distances", {kAny, kAny}).size(0), count = distances.size(1);
         room.check("room", {cars});
         hold_distances(distances.data(), room.data(), cars, count, start_mps, fine_s, as<SpeedLimits>(limits));
       });

  bind(module, "follow_waypoints", [](Doubles knots, Doubles distances, double same_place_m, DoublesOut poses) {
    const int plans = knots.check("knots", {kAny, kAny, 3}).size(0), count = knots.size(1);
    const int samples = distances.check("distances", {plans, kAny}).size(1);
    poses.check("poses", {plans, samples, 3});
    if (count < 2 || samples < 1) throw std::invalid_argument("knots has fewer than 2, or distances is empty");
    follow_waypoints(knots.data(), plans, count, distances.data(), samples, same_place_m, poses.data());
  });

  bind<KeepLock>(module, "bends_too_sharply",
                 [](Doubles knots, double tightest_per_m, double telling_m, FlagsOut bends) {
                   const int plans = knots.check("knots", {kAny, kAny, 2}).size(0), count = knots.size(1);
                   bends.check("bends", {plans});
                   for (int n = 0; n < plans; ++n)
                     bends.data()[n] =
                         bends_too_sharply(knots.data() + Py_ssize_t{2} * n * count, count, tightest_per_m, telling_m);
                 });

  bind<KeepLock>(module, "pursue",
                 [](Doubles poses, Doubles distances, double tightest_per_m, double look_ahead_m, DoublesOut driven) {
                   const int plans = poses.check("poses", {kAny, kAny, 3}).size(0), samples = poses.size(1);
                   distances.check("distances", {plans, samples}), driven.check("driven", {plans, samples, 3});
                   if (samples < 1) throw std::invalid_argument("poses is empty");
                   for (int n = 0; n < plans; ++n) {
                     const Py_ssize_t row = Py_ssize_t{n} * samples;
                     pursue(poses.data() + 3 * row, distances.data() + row, samples, tightest_per_m, look_ahead_m,
                            driven.data() + 3 * row);
                   }
                 });

  bind(module, "smooth_points",
       [](Doubles points, Doubles start, double bin_m, const SmoothingArrays& plain, const SmoothingArrays& on_road,
          const RouteArrays& route, const RouteNumbers& rule, DoublesOut moved) {
         const int plans = points.check("points", {kAny, kAny, 2}).size(0), count = points.size(1);
         start.check("start", {2, 2}), moved.check("moved", {plans, count, 2});
         smooth_points(points.data(), plans, count, start.data(), bin_m, smoothing_of(plain, count),
                       smoothing_of(on_road, count), route_of(route), as<RouteRule>(rule), moved.data());
       });

  bind(module, "limit_acceleration", [](DoublesOut points, const std::array<double, 4>& pace) {
    const int plans = points.check("points", {kAny, kAny, 2}).size(0);
    return limit_acceleration(points.data(), plans, points.size(1), as<Pace>(pace));
  });
}

void bind_safety(nanobind::module_& module) {
  bind(module, "first_crossings", [](const LineArrays& lines, Doubles poses, IntegersOut steps) {
    const int plans = poses.check("poses", {kAny, kAny, 3}).size(0), count = poses.size(1);
    steps.check("steps", {plans});
    first_crossings(lines_of(lines), poses.data(), plans, count, 3, steps.data());
  });

  bind(module, "first_fault",
       [](Doubles centers, Doubles rear_axles, Flags moving, const BoxNumbers& box, Doubles others, Doubles sizes,
          double behind_rad) {
         const int samples = centers.check("centers", {kAny, 3}).size(0);
         const int agents = others.check("others", {kAny, samples, 3}).size(0);
         rear_axles.check("rear_axles", {samples, 3}), moving.check("moving", {samples});
         sizes.check("sizes", {agents, 2});
         return first_fault(centers.data(), rear_axles.data(), moving.data(), samples, as<EgoBox>(box), others.data(),
                            sizes.data(), agents, behind_rad);
       });

  bind(module, "plan_safety",
       [](Doubles states, const BoxNumbers& box, double box_ahead_m, double ahead_m, const AgentArrays& agents,
          const LineArrays& lines, const GridArrays& grid, Doubles outline, double margin_m, const FaultNumbers& rule,
          DoublesOut centers, DoublesOut clearances, DoublesOut by_step, DoublesOut excess) {
         const int plans = states.check("states", {kAny, kInstants, kStateSize}).size(0);
         const int points = outline.check("outline", {kAny, 2}).size(0);
         centers.check("centers", {plans, kInstants, 3}), clearances.check("clearances", {plans, kInstants});
         by_step.check("by_step", {plans, kInstants}), excess.check("excess", {plans});
         const RoadCheck road{grid_of(grid), outline.data(), points, margin_m};
         plan_safety(states.data(), plans, ahead_m, {as<EgoBox>(box), box_ahead_m}, agents_of(agents), road,
                     lines_of(lines), as<FaultRule>(rule), centers.data(), clearances.data(), by_step.data(),
                     excess.data());
       });

  bind(module, "vehicle_demands",
       [](Doubles poses, double dt_s, double speed_mps, double slowest_mps, DoublesOut demands) {
         const int plans = poses.check("poses", {kAny, kAny, 3}).size(0), count = poses.size(1);
         demands.check("demands", {6, plans, count});
         vehicle_demands(poses.data(), plans, count, dt_s, speed_mps, slowest_mps, demands.data());
       });
}

}  // namespace

void bind_plans(nanobind::module_& module) {
  bind_lines(module);
  bind_headings(module);
  bind_motion(module);
  bind_safety(module);
}

}  // namespace reflectdrive
