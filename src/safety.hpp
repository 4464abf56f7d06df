// Safety of N plans at 0, 0.1, .. 4 s, and their demands on the vehicle (see reflectdrive_ros/scoring/safety.py).
#pragma once

#include "contacts.hpp"
#include "drivable.hpp"

namespace reflectdrive {

// Closed stop lines: ends (K, 2, 2), left and right in driving direction, and the distances (K) from the rear axle to
// the point of the car that must not cross them. Lines may be drawn shorter than their lane is wide: up to
// `beside_m` beside a line counts.
struct StopLines {
  const double *ends, *reach_m;
  int count;
  double beside_m;
};

// The first step (N) at which the rear axle's poses (N, T, 3), `stride` numbers apart, have crossed a line; T where
// none.
void first_crossings(const StopLines& lines, const double* poses, int plans, int count, int stride, long long* found);

// Points (P, 2) of the car's outline, and how much the edge of the road must be further away than the nearest; no grid
// if there are no points.
struct RoadCheck {
  DistanceGrid grid;
  const double* outline;
  int points;
  double margin_m;
};

// A box whose centre is `ahead_m` before the rear axle.
struct PlacedBox {
  EgoBox box;
  double ahead_m;
};

// Of states (N, 41, 11): poses of the car's centres (N, 41, 3), which are `ahead_m` before the rear axle; distances to
// the edge of the road (N, 41), safety (N, 41) of 1, 0.5 or 0, and excess (N): instants of collision and beyond a line,
// and metres off the road summed over instants. Collisions are those of `box`, which may be longer than the car.
void plan_safety(const double* states, int plans, double ahead_m, const PlacedBox& box, const Agents& agents,
                 const RoadCheck& road, const StopLines& lines, FaultRule rule, double* centers, double* clearances_m,
                 double* by_step, double* excess);

// Demands (6, N, T) of plans (N, T, 3) on a vehicle: speed backwards, speed, acceleration, deceleration, lateral
// acceleration, curvature.
void vehicle_demands(const double* poses, int plans, int count, double dt_s, double speed_mps, double slowest_mps,
                     double* demands);

}  // namespace reflectdrive
