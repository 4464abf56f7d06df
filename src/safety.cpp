#include "safety.hpp"

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "angles.hpp"

namespace reflectdrive {

void first_crossings(const StopLines& lines, const double* poses, int plans, int count, int stride, long long* found) {
  std::fill(found, found + plans, count);
  for (int line = 0; line < lines.count; ++line) {
    const double *left = lines.ends + 4 * line, *right = left + 2, reach_m = lines.reach_m[line];
    const double across_x = left[0] - right[0], across_y = left[1] - right[1], width_m = std::hypot(across_x, across_y);
    for (int n = 0; n < plans; ++n) {
      bool was_before = false, was_on_line = false;
      for (int t = 0; t < found[n]; ++t) {
        const double* pose = poses + (static_cast<long long>(n) * count + t) * stride;
        const double x = pose[X] + reach_m * std::cos(pose[HEADING]) - right[0];
        const double y = pose[Y] + reach_m * std::sin(pose[HEADING]) - right[1];
        const double beyond = (x * across_y - y * across_x) / width_m;  // m, positive after the line
        const double beside = (x * across_x + y * across_y) / width_m;
        const bool on_line = beside > -lines.beside_m && beside < width_m + lines.beside_m;
        if (t > 0 && was_before && beyond >= 0.0 && (was_on_line || on_line)) found[n] = t;
        was_before = beyond < 0.0, was_on_line = on_line;
      }
    }
  }
}

void plan_safety(const double* states, int plans, double ahead_m, const PlacedBox& box, const Agents& agents,
                 const RoadCheck& road, const StopLines& lines, FaultRule rule, double* centers, double* clearances_m,
                 double* by_step, double* excess) {
  const int instants = plans * kInstants;
  std::vector<double> of_box(3 * instants);
  for (int i = 0; i < instants; ++i) {
    const double *state = states + static_cast<long long>(kStateSize) * i, heading = state[HEADING];
    const double cos = std::cos(heading), sin = std::sin(heading);
    centers[3 * i] = state[X] + ahead_m * cos, centers[3 * i + 1] = state[Y] + ahead_m * sin,
                centers[3 * i + 2] = heading;
    of_box[3 * i] = state[X] + box.ahead_m * cos, of_box[3 * i + 1] = state[Y] + box.ahead_m * sin,
               of_box[3 * i + 2] = heading;
  }
  std::fill(by_step, by_step + instants, 1.0);
  std::fill(excess, excess + plans, 0.0);
  if (agents.count > 0) {
    const std::unique_ptr<bool[]> anywhere(new bool[instants]);  // a lateral collision counts everywhere
    std::fill(anywhere.get(), anywhere.get() + instants, true);
    no_collision({plans, states, of_box.data(), anywhere.get()}, box.box, agents, rule, false, true, by_step);
    for (int i = 0; i < instants; ++i) excess[i / kInstants] += by_step[i] < 1.0;
  }
  if (road.points > 0) {
    box_clearances(road.grid, centers, instants, road.outline, road.points, clearances_m);
    for (int i = 0; i < instants; ++i) clearances_m[i] -= road.margin_m;
    for (int n = 0; n < plans; ++n) {
      double off_m = 0.0, best_m = clearances_m[n * kInstants];  // until the instant before
      for (int t = 1; t < kInstants; ++t) {
        const int i = n * kInstants + t;
        const bool moving = std::abs(states[static_cast<long long>(kStateSize) * i + VX]) > rule.stopped_mps;
        // A car that is off the road already may drive back: only movement further out counts.
        if (clearances_m[i] <= 0.0 && moving && (best_m > 0.0 || clearances_m[i] < best_m - road.grid.resolution_m))
          by_step[i] = 0.0, off_m -= clearances_m[i];
        best_m = std::max(best_m, clearances_m[i]);
      }
      excess[n] += off_m;
    }
  }
  if (lines.count > 0) {
    const std::unique_ptr<long long[]> crossings(new long long[plans]);
    first_crossings(lines, states, plans, kInstants, kStateSize, crossings.get());
    for (int n = 0; n < plans; ++n) {
      for (long long t = crossings[n]; t < kInstants; ++t) by_step[n * kInstants + t] = 0.0;
      excess[n] += static_cast<double>(kInstants - crossings[n]);
    }
  }
}

void vehicle_demands(const double* poses, int plans, int count, double dt_s, double speed_mps, double slowest_mps,
                     double* demands) {
  const long long size = static_cast<long long>(plans) * count;
  for (int n = 0; n < plans; ++n) {
    double here[3] = {0.0, 0.0, 0.0}, before_x = 0.0, before_y = 0.0, before_mps = speed_mps;
    for (int t = 0; t < count; ++t) {
      const long long i = static_cast<long long>(n) * count + t;
      const double* next = poses + 3 * i;
      const double x = next[0] - here[0], y = next[1] - here[1], turn = wrap(next[2] - here[2]),
                   middle = here[2] + 0.5 * turn;
      const double length = std::hypot(x, y),
                   mps = std::copysign(length, x * std::cos(middle) + y * std::sin(middle)) / dt_s;
      // from the present speed to the mean of the first interval is half an interval
      const double change = (t ? mps - before_mps : 2.0 * (mps - before_mps)) / dt_s, rate = turn / dt_s;
      double aside = 0.0;  // from the change of direction: a path may bend more than its headings
      if (t > 0) {
        const double longer = std::max(std::hypot(before_x, before_y), length);
        if (longer > slowest_mps * dt_s) aside = std::abs(before_x * y - before_y * x) / longer / (dt_s * dt_s);
      }
      demands[i] = -mps, demands[size + i] = mps, demands[2 * size + i] = change, demands[3 * size + i] = -change;
      demands[4 * size + i] = std::max(std::abs(mps * rate), aside);
      demands[5 * size + i] = std::abs(mps) > slowest_mps ? std::abs(rate) / std::abs(mps) : 0.0;
      std::copy(next, next + 3, here);
      before_x = x, before_y = y, before_mps = mps;
    }
  }
}

}  // namespace reflectdrive
