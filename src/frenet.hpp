// Frenet coordinates along a route, and headings of plans of points (see reflectdrive_ros/scoring/frenet.py,
// core/tokens.py).
#pragma once

namespace reflectdrive {

// A route as places (R, 2) with headings (R), unwrapped, at ascending metres along it (R).
struct Route {
  const double *places, *headings, *at;
  int count;
};

// `values` (count) at `x`, linear between ascending `at`, constant beyond them.
double interpolate(const double* at, const double* values, int count, double x);

// The heading of a route at metres along it.
inline double heading_at(const Route& route, double along) {
  return interpolate(route.at, route.headings, route.count, along);
}

// Points (N, T, 2) as a straight road has them: metres along and to the left (N, T, 2), and the route's heading (N, T).
// Each is found near where its step from the one before leads, up to `tolerance_m` away.
void to_frenet(const Route& route, const double* points, int plans, int count, double tolerance_m, double* straight,
               double* headings);

// What is known of the headings of a plan of points, see tokens.poses_from_points.
struct HeadingPrior {
  double rounding_m, curvature_per_m, curvature_change, standing_rad, first_noise, shortest_m, direction_m;
};

// Headings (N, T) of plans of points (N, T, 2) that begin at the origin with heading 0.
void headings_of_points(const double* points, int plans, int count, const HeadingPrior& prior, double* headings);

// When a plan follows a route, and how near it its points are looked for.
struct RouteRule {
  double tolerance_m, astray, beside_m, telling_m;
};

// Whether points (T, 2) of a straight road follow it from its origin on: no step longer than `telling_m` has a smaller
// cosine than `astray` to the road, no point is more than `beside_m` to its side.
bool follows(const double* straight, int count, const RouteRule& rule);

// Headings (N, T) of plans of points (N, T, 2), estimated against the route where a plan follows it. The car is at
// `here`, x and y of the straight road and the route's heading.
void headings_on_road(const Route& route, const double* here, const double* points, int plans, int count,
                      const RouteRule& rule, const HeadingPrior& prior, double* headings);

// Points (T, 2) of the ego frame from those of the straight road; the road goes straight on beyond its ends.
void to_cartesian(const Route& route, const double* straight, int count, double* points);

}  // namespace reflectdrive
