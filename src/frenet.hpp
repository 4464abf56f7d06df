// Frenet coordinates along a route, and headings of plans of points (see reflectdrive_ros/scoring/frenet.py, tokens.py).
#pragma once

namespace reflectdrive {

// A route as places (R, 2) with headings (R), unwrapped, at ascending metres along it (R).
struct Route {
  const double *places, *headings, *at;
  int count;
};

// Points (N, T, 2) as a straight road has them: metres along and to the left (N, T, 2), and the route's heading (N, T).
// Each is found near where its step from the one before leads, up to `tolerance_m` away.
void to_frenet(const Route& route, const double* points, int plans, int count, double tolerance_m, double* straight, double* headings);

// What is known of the headings of a plan of points, see tokens.poses_from_points.
struct HeadingPrior {
  double rounding_m, curvature_per_m, curvature_change, standing_rad, first_noise, shortest_m, direction_m;
};

// Headings (N, T) of plans of points (N, T, 2) that begin at the origin with heading 0.
void headings_of_points(const double* points, int plans, int count, const HeadingPrior& prior, double* headings);

}  // namespace reflectdrive
