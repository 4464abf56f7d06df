// A car that follows a plan: NAVSIM's tracker and kinematic bicycle (see reflectdrive_ros/scoring/simulate.py).
#pragma once

#include "states.hpp"

namespace reflectdrive {

struct Bicycle {
  double wheel_base_m, max_steering_rad;
};

// Poses (41, 3) at `times` (41) of a plan of poses (T, 3), linear between poses; `knot_times` (T + 1) start at 0, where
// the car is at the origin. Headings are unwrapped.
void interpolate_plan(const double* plan, int poses, const double* knot_times, const double* times, double* reference);

// Curvatures c (40) with c * distance = turn, smooth in time.
void fit_curvatures(const double* turns, const double* distances, double* curvatures);

// States (41, 11) of a car with present motion (8) that tracks poses (41, 3). `speed_fit` (40, 40) is transposed: row k
// has the weights of displacement k in the fitted speeds.
void follow(const double* reference, const double* motion, const double* speed_fit, Bicycle car, double* states);

}  // namespace reflectdrive
