// Post-processing of N plans of T waypoints (see reflectdrive_ros/planning/postprocess).
#pragma once

#include "frenet.hpp"

namespace reflectdrive {

// Weights of T waypoints (T, T), and of the positions one interval ago and now (T, 2), in the likeliest motion.
struct Smoothing {
  const double *of_points, *of_start;
};

// Plans (N, T, 2) of rounded points (N, T, 2), each moved by at most half a bin towards the likeliest motion after
// `start` (2, 2), the positions one interval ago and now. It is estimated in the ego frame or, of a plan that follows
// the route, against it. A repeated point stays equal to the one before. A route without places is none.
void smooth_points(const double* points, int plans, int count, const double* start, double bin_m,
                   const Smoothing& plain, const Smoothing& on_road, const Route& route, const RouteRule& rule,
                   double* moved);

// Limits of the way from the present speed through waypoints.
struct Pace {
  double speed_mps, dt_s, most_mps2, braking_mps2;
};

// Delays plans (N, T, 2) that speed up more than `most_mps2`, along their paths, and never ahead of themselves: they
// could still brake with `braking_mps2` behind all later points. A delayed plan is never faster than the plan ever is.
// Returns the number of changed plans.
int limit_acceleration(double* points, int plans, int count, const Pace& pace);

// Points (N, T, 2) at distances (N, T) along paths (N, K, 2) with arc lengths (N, K).
void interpolate_paths(const double* ways, const double* along, int paths, int knots, const double* reached, int count,
                       double* points);

}  // namespace reflectdrive
