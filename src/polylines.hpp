// The nearest places on a polyline.
#pragma once

namespace reflectdrive {

// A polyline of points (L, 2), L >= 2, with the arc length (L) of each.
struct Polyline {
  const double *points, *along;
  int count;
};

// Distances (L) travelled along points (L, 2) up to each of them.
void arc_lengths(const double* points, int count, double* along);

// A step of at most `repeated_m` repeats the point before it.

// The nearest place for each of points (P, 2): arc length along the polyline, within its ends, and lateral offset, left
// positive. Of equally near segments the first counts.
void project(const Polyline& line, const double* points, long long count, double repeated_m, double* along,
             double* offsets);

// Of arc lengths (N) along points (L, 2), L >= 1: the segments' first points (2, N) and headings (N), and how far
// beyond (N) these points they are, the last segment being extended. Points that repeat the one before are left out.
void sample(const double* points, int length, const double* along, int count, double repeated_m, double* begins,
            double* headings, double* beyond);

// Whether a run of `steps` of the points (T, 2), `stride` numbers apart, is further from the polyline than a distance;
// those that are `spared` (T) neither count nor interrupt it.
bool stays_farther(const Polyline& line, const double* points, int count, int stride, const bool* spared,
                   double distance, int steps);

}  // namespace reflectdrive
