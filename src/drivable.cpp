#include "drivable.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

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
    const double row = at_least_0(std::floor(at_x), grid.rows - 2.0),
                 column = at_least_0(std::floor(at_y), grid.columns - 2.0);
    cell = grid.distance_m + static_cast<long long>(row) * grid.columns + static_cast<long long>(column);
    down = at_x - row, right = at_y - column;
  }
};

double likely(const DistanceGrid& grid, double x, double y) {
  const Between at(grid, x, y);
  const double down = std::clamp(at.down, 0.0, 1.0), right = std::clamp(at.right, 0.0, 1.0);
  const float* next = at.cell + grid.columns;
  const double near = at.cell[0] * (1.0 - right) + at.cell[1] * right;
  const double far = next[0] * (1.0 - right) + next[1] * right;
  return near + down * (far - near);
}

// Points at a time, padded to whole vectors.
constexpr int kLanes = 8, kBlock = 96;

// Signed distance is 1-Lipschitz: the best of the bounds from the four cells around each of `count` points, a multiple
// of kLanes, in the frame of the grid. Float is exact enough within a cell. Each loop has no branches and is
// vectorised.
void bounds(const DistanceGrid& grid, const double* x, const double* y, int count, float* found) {
  float down[kBlock], right[kBlock], cells[4][kBlock];
  int first[kBlock];
  const double most_row = grid.rows - 2.0, most_column = grid.columns - 2.0;
  const int columns = static_cast<int>(grid.columns);
  for (int p = 0; p < count; ++p) {
    const double at_x = x[p] / grid.resolution_m, at_y = y[p] / grid.resolution_m;
    const double row = at_least_0(std::floor(at_x), most_row), column = at_least_0(std::floor(at_y), most_column);
    first[p] = static_cast<int>(row) * columns + static_cast<int>(column);
    down[p] = static_cast<float>(at_x - row), right[p] = static_cast<float>(at_y - column);
  }
  for (int p = 0; p < count; ++p) {
    const float* cell = grid.distance_m + first[p];
    cells[0][p] = cell[0], cells[1][p] = cell[1], cells[2][p] = cell[columns], cells[3][p] = cell[columns + 1];
  }
  const float resolution = static_cast<float>(grid.resolution_m);
  for (int p = 0; p < count; ++p) {
    const float up = down[p] - 1, left = right[p] - 1;
    const float below = down[p] * down[p], above = up * up, beside = right[p] * right[p], beyond = left * left;
    const float here = cells[0][p] - resolution * std::sqrt(below + beside);
    const float one = cells[1][p] - resolution * std::sqrt(below + beyond);
    const float two = cells[2][p] - resolution * std::sqrt(above + beside);
    const float three = cells[3][p] - resolution * std::sqrt(above + beyond);
    found[p] = std::max(std::max(here, one), std::max(two, three));
  }
}

// A box's centre and directions in the frame of the grid.
struct Placed {
  double x, y, cos, sin;
};

// distances[b] = `judge(placed)` for boxes at poses (B, 3). A box that stands where the one before it does, as in a
// plan that has stopped, is judged like it.
template <class Judge>
void for_boxes(const DistanceGrid& grid, const double* poses, long long boxes, double* distances, Judge judge) {
  const double grid_cos = std::cos(grid.heading), grid_sin = std::sin(grid.heading);
  for (long long b = 0; b < boxes; ++b) {
    const double* pose = poses + 3 * b;
    distances[b] = b > 0 && std::equal(pose, pose + 3, pose - 3)
                       ? distances[b - 1]
                       : judge(Placed{grid.x + grid_cos * pose[0] - grid_sin * pose[1],
                                      grid.y + grid_sin * pose[0] + grid_cos * pose[1],
                                      std::cos(grid.heading + pose[2]), std::sin(grid.heading + pose[2])});
  }
}

}  // namespace

void edge_distances(const double* x, int rows, const double* y, int columns, const double* edges, int pieces,
                    double reach_m, double* distances) {
  const auto first_at_least = [](const double* values, int count, double low) {
    return std::lower_bound(values, values + count, low) - values;
  };
  const long long cells = static_cast<long long>(rows) * columns;
  std::fill(distances, distances + cells, reach_m * reach_m);  // squared, until all pieces are seen
  for (int e = 0; e < pieces; ++e) {
    const double *start = edges + 4 * e, *stop = start + 2, along_x = stop[0] - start[0], along_y = stop[1] - start[1];
    const double length2 = along_x * along_x + along_y * along_y;
    // Only cells in reach of this piece can be nearer to it than to any other.
    const long long first_row = first_at_least(x, rows, std::min(start[0], stop[0]) - reach_m);
    const long long last_row = first_at_least(x, rows, std::max(start[0], stop[0]) + reach_m);
    const long long first_column = first_at_least(y, columns, std::min(start[1], stop[1]) - reach_m);
    const long long last_column = first_at_least(y, columns, std::max(start[1], stop[1]) + reach_m);
    for (long long row = first_row; row < last_row; ++row) {
      const double dx = x[row] - start[0];
      double* of_row = distances + row * columns;
      for (long long column = first_column; column < last_column; ++column) {
        const double dy = y[column] - start[1], share = std::clamp((dx * along_x + dy * along_y) / length2, 0.0, 1.0);
        const double off_x = dx - share * along_x, off_y = dy - share * along_y;
        of_row[column] = std::min(of_row[column], off_x * off_x + off_y * off_y);
      }
    }
  }
  for (long long cell = 0; cell < cells; ++cell) distances[cell] = std::sqrt(distances[cell]);
}

void point_clearances(const DistanceGrid& grid, const double* points, long long count, double* clearances) {
  const double cos = std::cos(grid.heading), sin = std::sin(grid.heading);
  double x[kBlock] = {}, y[kBlock] = {};
  float found[kBlock];
  for (long long first = 0; first < count; first += kBlock) {
    const int number = static_cast<int>(std::min<long long>(kBlock, count - first));
    for (int p = 0; p < number; ++p) {
      const double *point = points + 2 * (first + p), ahead = point[0], left = point[1];
      x[p] = grid.x + cos * ahead - sin * left, y[p] = grid.y + sin * ahead + cos * left;
    }
    bounds(grid, x, y, (number + kLanes - 1) / kLanes * kLanes, found);
    std::copy(found, found + number, clearances + first);
  }
}

void box_clearances(const DistanceGrid& grid, const double* poses, long long boxes, const double* outline, int points,
                    double* clearances) {
  const int padded = (points + kLanes - 1) / kLanes * kLanes;
  std::vector<double> ahead(padded), left(padded);  // the last point is repeated
  for (int p = 0; p < padded; ++p)
    ahead[p] = outline[2 * std::min(p, points - 1)], left[p] = outline[2 * std::min(p, points - 1) + 1];
  for_boxes(grid, poses, boxes, clearances, [&](const Placed& at) -> double {
    double x[kBlock], y[kBlock];
    float found[kBlock], least[kLanes];
    std::fill(least, least + kLanes, INFINITY);
    for (int first = 0; first < padded; first += kBlock) {
      const int number = std::min(kBlock, padded - first);
      for (int p = 0; p < number; ++p) {
        x[p] = at.x + ahead[first + p] * at.cos - left[first + p] * at.sin;
        y[p] = at.y + ahead[first + p] * at.sin + left[first + p] * at.cos;
      }
      bounds(grid, x, y, number, found);
      for (int p = 0; p < number; p += kLanes)
        for (int lane = 0; lane < kLanes; ++lane) least[lane] = std::min(least[lane], found[p + lane]);
    }
    return *std::min_element(least, least + kLanes);
  });
}

void likely_box_distances(const DistanceGrid& grid, const double* poses, long long boxes, const double* outline,
                          int points, double* distances) {
  for_boxes(grid, poses, boxes, distances, [&](const Placed& at) {
    double value = INFINITY;
    for (int p = 0; p < points; ++p) {
      const double ahead = outline[2 * p], left = outline[2 * p + 1];
      value =
          std::min(value, likely(grid, at.x + ahead * at.cos - left * at.sin, at.y + ahead * at.sin + left * at.cos));
    }
    return value;
  });
}

}  // namespace reflectdrive
