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
  const double until = line.along[next] + skipped;  // segments that end before are too far away
  if (*ends >= until) return next;
  return static_cast<int>(std::lower_bound(ends, last, until) - line.along) - 1;
}

}  // namespace

void nearest_places(const Polyline& line, const double* points, long long count, long long* segments, double* shares, double* distances) {
  int near = 0;  // where the point before is: the next one is often close to it
  for (long long p = 0; p < count; ++p) {
    const double x = points[2 * p], y = points[2 * p + 1];
    const double at_most = std::sqrt(on_segment(line, near, x, y).gap2);
    double best = INFINITY, best2 = INFINITY;
    segments[p] = 0, shares[p] = 0.0;
    for (int segment = 0; segment < line.count - 1;) {
      const Place place = on_segment(line, segment, x, y);
      const double away = std::sqrt(place.gap2);
      if (place.gap2 < best2) {
        best = away, best2 = place.gap2;
        segments[p] = near = segment, shares[p] = place.share;
      }
      segment = next_segment(line, segment, away, std::min(best, at_most));
    }
    distances[p] = best;
  }
}

void farther_than(const Polyline& line, const double* points, long long count, double distance, bool* farther) {
  int near = 0;  // as in `nearest_places`
  for (long long p = 0; p < count; ++p) {
    const double x = points[2 * p], y = points[2 * p + 1];
    bool far = std::sqrt(on_segment(line, near, x, y).gap2) > distance;
    for (int segment = 0; far && segment < line.count - 1;) {
      const double away = std::sqrt(on_segment(line, segment, x, y).gap2);
      far = away > distance;
      near = segment;
      segment = next_segment(line, segment, away, distance);
    }
    farther[p] = far;
  }
}

}  // namespace reflectdrive
