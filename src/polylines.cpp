#include "polylines.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

namespace reflectdrive {
namespace {

constexpr double kSlack = 1e-6;  // m, against rounding where segments are skipped

struct Place {
  double share, gap2;
};

Place on_segment(const Polyline& line, int segment, double x, double y) {
  const double* start = line.points + 2 * segment;
  const double step_x = start[2] - start[0], step_y = start[3] - start[1];
  const double length2 = std::max(step_x * step_x + step_y * step_y, 1e-18);
  const double dx = x - start[0], dy = y - start[1];
  const double share = std::clamp((dx * step_x + dy * step_y) / length2, 0.0, 1.0);
  const double off_x = dx - share * step_x, off_y = dy - share * step_y;
  return {share, off_x * off_x + off_y * off_y};
}

// The next segment that may come within `best` of a point at distance `away` from this segment: distances change by at
// most the way along the polyline, so that all of `away` less `best` is skipped.
int next_segment(const Polyline& line, int segment, double away, double best) {
  const double skipped = away - best - kSlack;
  const int next = segment + 1;
  if (!(skipped > 0.0) || next >= line.count - 1) return next;
  const double *ends = line.along + next + 1, *last = line.along + line.count;
  const double until = line.along[next] + skipped;                      // segments that end before are too far away
  for (int near = 0; near < 4 && next + near < line.count - 1; ++near)  // mostly it is one of the next ones
    if (ends[near] >= until) return next + near;
  return static_cast<int>(std::lower_bound(ends, last, until) - line.along) - 1;
}

// The heading of a segment: that of the last one before it that moves, else of the first that does.
double heading_of(const Polyline& line, int segment, double repeated_m) {
  const auto moves = [&](int k) { return line.along[k + 1] - line.along[k] > repeated_m; };
  int k = segment;
  while (k >= 0 && !moves(k)) --k;
  for (k = std::max(k, 0); k < line.count - 1; ++k)
    if (moves(k))
      return std::atan2(line.points[2 * k + 3] - line.points[2 * k + 1], line.points[2 * k + 2] - line.points[2 * k]);
  return 0.0;
}

}  // namespace

void arc_lengths(const double* points, int count, double* along) {
  if (count > 0) along[0] = 0.0;
  for (int k = 1; k < count; ++k)
    along[k] = along[k - 1] + std::hypot(points[2 * k] - points[2 * k - 2], points[2 * k + 1] - points[2 * k - 1]);
}

void project(const Polyline& line, const double* points, long long count, double repeated_m, double* along,
             double* offsets) {
  int near = 0;  // where the point before is: the next one is often close to it
  for (long long p = 0; p < count; ++p) {
    const double x = points[2 * p], y = points[2 * p + 1];
    const double at_most = std::sqrt(on_segment(line, near, x, y).gap2);
    double best = INFINITY, best2 = INFINITY, share = 0.0;
    int nearest = 0;
    for (int segment = 0; segment < line.count - 1;) {
      const Place place = on_segment(line, segment, x, y);
      const double away = std::sqrt(place.gap2);
      if (place.gap2 < best2) {
        best = away, best2 = place.gap2, share = place.share;
        nearest = near = segment;
      }
      segment = next_segment(line, segment, away, std::min(best, at_most));
    }
    const double* begin = line.points + 2 * nearest;
    double ahead_x = begin[2] - begin[0], ahead_y = begin[3] - begin[1];
    if (ahead_x * ahead_x + ahead_y * ahead_y <= repeated_m * repeated_m) {  // a repeated point has no step
      const double heading = heading_of(line, nearest, repeated_m);
      ahead_x = std::cos(heading), ahead_y = std::sin(heading);
    }
    const double side = ahead_x * (y - begin[1]) - ahead_y * (x - begin[0]);
    along[p] = line.along[nearest] + share * (line.along[nearest + 1] - line.along[nearest]);
    offsets[p] = std::copysign(best, side);
  }
}

void sample(const double* points, int length, const double* along, int count, double repeated_m, double* begins,
            double* headings, double* beyond) {
  std::vector<double> kept(points, points + 2), at(length), of_segments(length, 0.0);
  for (int k = 1; k < length; ++k) {
    const double *point = points + 2 * k, *before = point - 2;
    if (std::hypot(point[0] - before[0], point[1] - before[1]) > repeated_m) kept.insert(kept.end(), point, point + 2);
  }
  const int number = static_cast<int>(kept.size() / 2);
  arc_lengths(kept.data(), number, at.data());
  for (int k = 0; k < number - 1; ++k)
    of_segments[k] = std::atan2(kept[2 * k + 3] - kept[2 * k + 1], kept[2 * k + 2] - kept[2 * k]);
  for (int n = 0; n < count; ++n) {
    const int after = static_cast<int>(std::upper_bound(at.data(), at.data() + number, along[n]) - at.data());
    const int piece = std::max(std::min(after - 1, number - 2), 0);
    begins[n] = kept[2 * piece], begins[count + n] = kept[2 * piece + 1];
    headings[n] = of_segments[piece], beyond[n] = along[n] - at[piece];
  }
}

bool stays_farther(const Polyline& line, const double* points, int count, int stride, const bool* spared,
                   double distance, int steps) {
  std::vector<int> counted;
  for (int t = 0; t < count; ++t)
    if (!spared[t]) counted.push_back(t);
  const int number = static_cast<int>(counted.size());
  int near = 0;  // as in `project`
  const auto is_farther = [&](int k) {
    const double *point = points + stride * counted[k], x = point[0], y = point[1];
    bool far = std::sqrt(on_segment(line, near, x, y).gap2) > distance;
    for (int segment = 0; far && segment < line.count - 1;) {
      const double away = std::sqrt(on_segment(line, segment, x, y).gap2);
      far = away > distance;
      near = segment;
      segment = next_segment(line, segment, away, distance);
    }
    return far;
  };
  for (int middle = steps - 1; middle < number; middle += steps) {  // every run holds one of these
    if (!is_farther(middle)) continue;
    int first = middle, end = middle + 1;
    while (end - first < steps && first > 0 && is_farther(first - 1)) --first;
    while (end - first < steps && end < number && is_farther(end)) ++end;
    if (end - first >= steps) return true;
  }
  return false;
}

}  // namespace reflectdrive
