// The nearest places on a polyline.
#pragma once

namespace reflectdrive {

// A polyline of points (L, 2), L >= 2, with the arc length (L) of each.
struct Polyline {
  const double *points, *along;
  int count;
};

// The nearest place for each of points (P, 2): the segment's index, the first of equals, the share of it, and the
// distance.
void nearest_places(const Polyline& line, const double* points, long long count, long long* segments, double* shares, double* distances);

// Whether points (P, 2) are further from the polyline than a distance.
void farther_than(const Polyline& line, const double* points, long long count, double distance, bool* farther);

}  // namespace reflectdrive
