#include "drivable.hpp"

#include <algorithm>
#include <cmath>

namespace reflectdrive {
namespace {

// Between 0 and `most`, also of a value that is none.
double at_least_0(double value, double most) { return value > 0.0 ? std::min(value, most) : 0.0; }

// The first of the four cells around a point along the grid's axes, and how far the point is from it, in cells: 0 to 1
// within the grid.
struct Between {
  const float* cell;
  double down, right;
  Between(const DistanceGrid& grid, double x, double y) {
    const double at_x = x / grid.resolution_m, at_y = y / grid.resolution_m;
    const double row = at_least_0(std::floor(at_x), grid.rows - 2.0), column = at_least_0(std::floor(at_y), grid.columns - 2.0);
    cell = grid.distance_m + static_cast<long long>(row) * grid.columns + static_cast<long long>(column);
    down = at_x - row, right = at_y - column;
  }
};

// Signed distance is 1-Lipschitz: the best of the bounds from four cells. Float is exact enough within a cell.
double bound(const DistanceGrid& grid, double x, double y) {
  const Between at(grid, x, y);
  const float resolution = static_cast<float>(grid.resolution_m);
  const float down = static_cast<float>(at.down), right = static_cast<float>(at.right), up = down - 1, left = right - 1;
  const float below = down * down, above = up * up, beside = right * right, beyond = left * left;
  const float* next = at.cell + grid.columns;
  const float here = at.cell[0] - resolution * std::sqrt(below + beside);
  const float one = at.cell[1] - resolution * std::sqrt(below + beyond);
  const float two = next[0] - resolution * std::sqrt(above + beside);
  const float three = next[1] - resolution * std::sqrt(above + beyond);
  return std::max(std::max(here, one), std::max(two, three));
}

double likely(const DistanceGrid& grid, double x, double y) {
  const Between at(grid, x, y);
  const double down = std::clamp(at.down, 0.0, 1.0), right = std::clamp(at.right, 0.0, 1.0);
  const float* next = at.cell + grid.columns;
  const double near = at.cell[0] * (1.0 - right) + at.cell[1] * right;
  const double far = next[0] * (1.0 - right) + next[1] * right;
  return near + down * (far - near);
}

template <double (*LookUp)(const DistanceGrid&, double, double)>
void least(const DistanceGrid& grid, const double* poses, long long boxes, const double* outline, int points, double* found) {
  const double grid_cos = std::cos(grid.heading), grid_sin = std::sin(grid.heading);
  for (long long b = 0; b < boxes; ++b) {
    const double* pose = poses + 3 * b;
    const double x = grid.x + grid_cos * pose[0] - grid_sin * pose[1], y = grid.y + grid_sin * pose[0] + grid_cos * pose[1];
    const double cos = std::cos(grid.heading + pose[2]), sin = std::sin(grid.heading + pose[2]);
    double value = INFINITY;
    for (int p = 0; p < points; ++p) {
      const double ahead = outline[2 * p], left = outline[2 * p + 1];
      value = std::min(value, LookUp(grid, x + ahead * cos - left * sin, y + ahead * sin + left * cos));
    }
    found[b] = value;
  }
}

}  // namespace

void point_clearances(const DistanceGrid& grid, const double* points, long long count, double* clearances) {
  const double cos = std::cos(grid.heading), sin = std::sin(grid.heading);
  for (long long p = 0; p < count; ++p) {
    const double x = points[2 * p], y = points[2 * p + 1];
    clearances[p] = bound(grid, grid.x + cos * x - sin * y, grid.y + sin * x + cos * y);
  }
}

void box_clearances(const DistanceGrid& grid, const double* poses, long long boxes, const double* outline, int points, double* clearances) {
  least<bound>(grid, poses, boxes, outline, points, clearances);
}

void likely_box_distances(const DistanceGrid& grid, const double* poses, long long boxes, const double* outline, int points, double* distances) {
  least<likely>(grid, poses, boxes, outline, points, distances);
}

}  // namespace reflectdrive
