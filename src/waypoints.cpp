#include "waypoints.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

namespace reflectdrive {
namespace {

constexpr double kRepeated = 1e-6;  // m, a smaller step along both axes is none

// The likeliest motion (T, 2) through points (T, 2) after `start` (2, 2).
void likeliest(const Smoothing& weights, const double* points, const double* start, int count, double* found) {
  for (int t = 0; t < count; ++t)
    for (int axis = 0; axis < 2; ++axis) {
      double sum = 0.0;
      for (int k = 0; k < count; ++k) sum += weights.of_points[t * count + k] * points[2 * k + axis];
      found[2 * t + axis] =
          sum + (weights.of_start[2 * t] * start[axis] + weights.of_start[2 * t + 1] * start[2 + axis]);
    }
}

// Distances (T) of a car that follows planned ones (T), is never ahead of them and never faster than they ever are.
void reachable_distances(const double* planned, int count, const Pace& pace, double* found) {
  double place = 0.0, most = std::max(pace.speed_mps, 0.0) + 0.5 * pace.most_mps2 * pace.dt_s, fastest = 0.0;
  for (int now = 0; now < count; ++now)
    fastest = std::max(fastest, (planned[now] - (now ? planned[now - 1] : 0.0)) / pace.dt_s);
  for (int now = 0; now < count; ++now) {
    double speed = std::min(most, fastest);
    for (int step = 1; step <= count - now; ++step)  // at this speed, then braking, it is still behind the plan then
      speed = std::min(speed, (planned[now + step - 1] - place) / (step * pace.dt_s) +
                                  0.5 * pace.braking_mps2 * pace.dt_s * (step - 1));
    speed = std::max(speed, 0.0);
    found[now] = place += pace.dt_s * speed;
    most = speed + pace.most_mps2 * pace.dt_s;
  }
}

}  // namespace

void smooth_points(const double* points, int plans, int count, const double* start, double bin_m,
                   const Smoothing& plain, const Smoothing& on_road, const Route& route, const RouteRule& rule,
                   double* moved) {
  std::vector<double> straight(2 * count), headings(std::max(count, 2)), of_road(2 * count);
  double straight_start[4];  // one interval ago, now
  if (route.count > 0) {
    const double now_first[] = {start[2], start[3], start[0], start[1]};
    double found[4];
    to_frenet(route, now_first, 1, 2, rule.tolerance_m, found, headings.data());
    straight_start[0] = found[2], straight_start[1] = found[3], straight_start[2] = found[0],
    straight_start[3] = found[1];
  }
  for (int n = 0; n < plans; ++n) {
    const double* plan = points + 2 * n * count;
    double* found = moved + 2 * n * count;
    bool follows_road = false;
    if (route.count > 0) {
      to_frenet(route, plan, 1, count, rule.tolerance_m, straight.data(), headings.data());
      likeliest(on_road, straight.data(), straight_start, count, of_road.data());
      for (int t = 0; t < count; ++t) straight[2 * t] -= straight_start[2], straight[2 * t + 1] -= straight_start[3];
      follows_road = follows(straight.data(), count, rule);
    }
    if (follows_road)
      to_cartesian(route, of_road.data(), count, found);
    else
      likeliest(plain, plan, start, count, found);
    for (int i = 0; i < 2 * count; ++i)
      found[i] = std::min(std::max(found[i], plan[i] - 0.5 * bin_m), plan[i] + 0.5 * bin_m);
    for (int t = 0; t < count; ++t) {
      const double x = t ? plan[2 * t - 2] : 0.0, y = t ? plan[2 * t - 1] : 0.0;
      if (std::abs(plan[2 * t] - x) >= kRepeated || std::abs(plan[2 * t + 1] - y) >= kRepeated) continue;
      found[2 * t] = t ? found[2 * t - 2] : 0.0, found[2 * t + 1] = t ? found[2 * t - 1] : 0.0;
    }
  }
}

int limit_acceleration(double* points, int plans, int count, const Pace& pace) {
  std::vector<double> way(2 * count + 2, 0.0), along(count + 1, 0.0), reached(count);
  int changed = 0;
  for (int n = 0; n < plans; ++n) {
    double *plan = points + 2 * n * count, before_mps = pace.speed_mps;
    bool hasty = false;
    for (int t = 0; t < count; ++t) {
      const double x = t ? plan[2 * t - 2] : 0.0, y = t ? plan[2 * t - 1] : 0.0;
      const double step = std::hypot(plan[2 * t] - x, plan[2 * t + 1] - y), mps = step / pace.dt_s;
      along[t + 1] = along[t] + step;
      hasty |= (t ? mps - before_mps : 2.0 * (mps - before_mps)) / pace.dt_s > pace.most_mps2;
      before_mps = mps;
    }
    if (!hasty) continue;
    ++changed;
    std::copy(plan, plan + 2 * count, way.begin() + 2);
    reachable_distances(along.data() + 1, count, pace, reached.data());
    interpolate_paths(way.data(), along.data(), 1, count + 1, reached.data(), count, plan);
  }
  return changed;
}

void interpolate_paths(const double* ways, const double* along, int paths, int knots, const double* reached, int count,
                       double* points) {
  for (int n = 0; n < paths; ++n) {
    const double *way = ways + 2 * n * knots, *at = along + n * knots;
    for (int t = 0; t < count; ++t) {
      const double here = reached[n * count + t];
      int piece = 0;
      while (piece < knots - 2 && here >= at[piece + 1]) ++piece;
      const double length = at[piece + 1] - at[piece];
      const double share = std::clamp((here - at[piece]) / (length > 0.0 ? length : 1.0), 0.0, 1.0);
      for (int axis = 0; axis < 2; ++axis) {
        const double begin = way[2 * piece + axis];
        points[2 * (n * count + t) + axis] = begin + share * (way[2 * piece + 2 + axis] - begin);
      }
    }
  }
}

}  // namespace reflectdrive
