#include "polylines.hpp"

#include <algorithm>
#include <cmath>

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
  const double share = std::clamp(dx * (step_x / length2) + dy * (step_y / length2), 0.0, 1.0);
  const double off_x = dx - share * step_x, off_y = dy - share * step_y;
  return {share, off_x * off_x + off_y * off_y};
}

// The next segment that may come within `best` of a point at distance `away` from this segment: distances change by at
// most the way along the polyline, so that all of `away` less `best` is skipped.
int next_segment(const Polyline& line, int segment, double away, double best) {
  const double skipped = away - best - kSlack;
  int next = segment + 1;
  if (skipped <= 0.0 || next >= line.count - 1) return next;
  const double until = line.along[next] + skipped;  // segments that end before are too far away
  while (next < line.count - 1 && line.along[next + 1] < until) ++next;
  return next;
}

}  // namespace

void nearest_places(const Polyline& line, const double* points, long long count, long long* segments, double* shares, double* distances) {
  for (long long p = 0; p < count; ++p) {
    double best = INFINITY, best2 = INFINITY;
    segments[p] = 0, shares[p] = 0.0;
    for (int segment = 0; segment < line.count - 1;) {
      const Place place = on_segment(line, segment, points[2 * p], points[2 * p + 1]);
      const double away = std::sqrt(place.gap2);
      if (place.gap2 < best2) {
        best = away, best2 = place.gap2;
        segments[p] = segment, shares[p] = place.share;
      }
      segment = next_segment(line, segment, away, best);
    }
    distances[p] = best;
  }
}

void farther_than(const Polyline& line, const double* points, long long count, double distance, bool* farther) {
  for (long long p = 0; p < count; ++p) {
    bool far = true;
    for (int segment = 0; far && segment < line.count - 1;) {
      const double away = std::sqrt(on_segment(line, segment, points[2 * p], points[2 * p + 1]).gap2);
      far = away > distance;
      segment = next_segment(line, segment, away, distance);
    }
    farther[p] = far;
  }
}

}  // namespace reflectdrive
