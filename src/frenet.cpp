#include "frenet.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "angles.hpp"

namespace reflectdrive {
namespace {

// The place at metres along a route, on it.
void place_at(const Route& route, double along, double* place) {
  const int after = static_cast<int>(std::upper_bound(route.at, route.at + route.count, along) - route.at);
  const int begin = std::clamp(after - 1, 0, route.count - 1), end = std::min(after, route.count - 1);
  const double share = begin == end ? 0.0 : (along - route.at[begin]) / (route.at[end] - route.at[begin]);
  for (int axis = 0; axis < 2; ++axis) {
    const double from = route.places[2 * begin + axis];
    place[axis] = from + share * (route.places[2 * end + axis] - from);
  }
}

}  // namespace

double interpolate(const double* at, const double* values, int count, double x) {
  const int after = static_cast<int>(std::upper_bound(at, at + count, x) - at);
  if (after == 0) return values[0];
  if (after == count) return values[count - 1];
  const double share = (x - at[after - 1]) / (at[after] - at[after - 1]);
  return values[after - 1] + share * (values[after] - values[after - 1]);
}

void to_frenet(const Route& route, const double* points, int plans, int count, double tolerance_m, double* straight,
               double* headings) {
  for (int n = 0; n < plans; ++n) {
    double before_x = points[2 * n * count], before_y = points[2 * n * count + 1], at = 0.0;
    for (int t = 0; t < count; ++t) {
      const double *point = points + 2 * (n * count + t), x = point[0], y = point[1];
      const double within = std::hypot(x - before_x, y - before_y) + tolerance_m;
      before_x = x, before_y = y;
      int nearest = 0;
      double nearest2 = INFINITY;
      const int first = static_cast<int>(std::lower_bound(route.at, route.at + route.count, at - within) - route.at);
      for (int r = first; r < route.count && route.at[r] - at <= within; ++r) {
        const double dx = x - route.places[2 * r], dy = y - route.places[2 * r + 1];
        if (dx * dx + dy * dy < nearest2) nearest2 = dx * dx + dy * dy, nearest = r;
      }
      at = route.at[nearest];
      const double dx = x - route.places[2 * nearest], dy = y - route.places[2 * nearest + 1];
      const double forward = std::cos(route.headings[nearest]), left = std::sin(route.headings[nearest]);
      const double along = at + dx * forward + dy * left;
      straight[2 * (n * count + t)] = along;
      straight[2 * (n * count + t) + 1] = dy * forward - dx * left;
      headings[n * count + t] = heading_at(route, along);
    }
  }
}

// Least squares in the headings h: the mean heading of each step's ends is measured by its direction; turns are small;
// curvatures, turns per metre, change slowly. The normal matrix has five diagonals and is factored as L D L^T.
void headings_of_points(const double* points, int plans, int count, const HeadingPrior& prior, double* headings) {
  std::vector<double> diagonal(count), first(count), second(count), reach(count);  // (k, k), (k, k + 1), (k, k + 2)
  for (int n = 0; n < plans; ++n) {
    const double* plan = points + 2 * n * count;
    double* h = headings + n * count;  // the right-hand side, then the solution
    std::fill(h, h + count, 0.0);
    std::fill(diagonal.begin(), diagonal.end(), 0.0);
    std::fill(first.begin(), first.end(), 0.0);
    std::fill(second.begin(), second.end(), 0.0);
    double x = 0.0, y = 0.0, facing = 0.0;
    for (int k = 0; k < count; ++k) {
      const double dx = plan[2 * k] - x, dy = plan[2 * k + 1] - y, length = std::hypot(dx, dy);
      x = plan[2 * k], y = plan[2 * k + 1];
      double turn = wrap(std::atan2(dy, dx) - facing);  // a step backwards is reversing
      if (std::abs(turn) > 0.5 * kPi) turn -= std::copysign(kPi, turn);
      const double direction = facing + turn;
      if (length > prior.direction_m) facing = direction;
      double certainty = 0.5 * (length / prior.rounding_m) * (length / prior.rounding_m);
      if (k == 0) certainty /= prior.first_noise * prior.first_noise;
      const double bend = prior.curvature_per_m * length;
      const double stiffness = 1.0 / (bend * bend + prior.standing_rad * prior.standing_rad);
      reach[k] = std::max(length, prior.shortest_m);
      diagonal[k] += 0.25 * certainty + stiffness, h[k] += 0.5 * certainty * direction;
      if (k == 0) continue;
      diagonal[k - 1] += 0.25 * certainty + stiffness, h[k - 1] += 0.5 * certainty * direction;
      first[k - 1] += 0.25 * certainty - stiffness;
      // The change of curvature from step k - 1 to step k: h_k / r_k - h_k-1 (1 / r_k + 1 / r_k-1) + h_k-2 / r_k-1.
      const double slowness = 2.0 / (prior.curvature_change * prior.curvature_change * (reach[k] + reach[k - 1]));
      const double last = 1.0 / reach[k], begin = 1.0 / reach[k - 1], middle = -(last + begin);
      diagonal[k] += slowness * last * last;
      diagonal[k - 1] += slowness * middle * middle;
      first[k - 1] += slowness * last * middle;
      if (k == 1) continue;
      diagonal[k - 2] += slowness * begin * begin;
      first[k - 2] += slowness * begin * middle;
      second[k - 2] += slowness * begin * last;
    }
    for (int k = 0; k < count; ++k) {
      const double one = first[k] / diagonal[k], two = second[k] / diagonal[k];
      if (k + 1 < count) {
        diagonal[k + 1] -= one * first[k], h[k + 1] -= one * h[k];
        if (k + 2 < count) first[k + 1] -= one * second[k];
      }
      if (k + 2 < count) diagonal[k + 2] -= two * second[k], h[k + 2] -= two * h[k];
      first[k] = one, second[k] = two;
    }
    for (int k = count - 1; k >= 0; --k) {
      h[k] /= diagonal[k];
      if (k + 1 < count) h[k] -= first[k] * h[k + 1];
      if (k + 2 < count) h[k] -= second[k] * h[k + 2];
    }
    for (int k = 0; k < count; ++k) h[k] = wrap(h[k]);
  }
}

bool follows(const double* straight, int count, const RouteRule& rule) {
  double x = 0.0, y = 0.0;
  for (int t = 0; t < count; ++t) {
    const double dx = straight[2 * t] - x, dy = straight[2 * t + 1] - y, length = std::hypot(dx, dy);
    x = straight[2 * t], y = straight[2 * t + 1];
    if (!(dx >= rule.astray * length || length < rule.telling_m) || !(std::abs(y) <= rule.beside_m)) return false;
  }
  return true;
}

void headings_on_road(const Route& route, const double* here, const double* points, int plans, int count,
                      const RouteRule& rule, const HeadingPrior& prior, double* headings) {
  const double cos = std::cos(here[2]), sin = std::sin(here[2]);
  std::vector<double> straight(2 * count), turned(2 * count), of_route(count);
  for (int n = 0; n < plans; ++n) {
    const double* plan = points + 2 * n * count;
    double* found = headings + n * count;
    to_frenet(route, plan, 1, count, rule.tolerance_m, straight.data(), of_route.data());
    for (int t = 0; t < count; ++t) {  // the car faces along x, as without a road
      const double x = straight[2 * t] -= here[0], y = straight[2 * t + 1] -= here[1];
      turned[2 * t] = cos * x - sin * y, turned[2 * t + 1] = sin * x + cos * y;
    }
    const bool on_road = follows(straight.data(), count, rule);
    headings_of_points(on_road ? turned.data() : plan, 1, count, prior, found);
    if (on_road)
      for (int t = 0; t < count; ++t) found[t] = wrap(found[t] - here[2] + of_route[t]);
  }
}

void to_cartesian(const Route& route, const double* straight, int count, double* points) {
  for (int t = 0; t < count; ++t) {
    const double along = straight[2 * t], beside = straight[2 * t + 1];
    const double heading = heading_at(route, along);
    const double beyond = along - std::clamp(along, route.at[0], route.at[route.count - 1]);
    const double forward = std::cos(heading), left = std::sin(heading);
    place_at(route, along, points + 2 * t);
    points[2 * t] += beyond * forward - beside * left;
    points[2 * t + 1] += beyond * left + beside * forward;
  }
}

}  // namespace reflectdrive
