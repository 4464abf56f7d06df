#include "areas.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "contacts.hpp"

namespace reflectdrive {
namespace {

constexpr double kWrongWay[] = {2.0, 6.0};  // m: less is 1, less is 0.5, else 0
constexpr int kWrongWaySteps = 10;
constexpr double kSlackM = 1e-6;  // by which cells are enlarged when edges are sorted into them
constexpr double kLevelM = 1e-9;  // of an edge's rise, below which it has no slope
constexpr double kCloseM = 1e-7;  // a point nearer than this to an edge is put to shapely

// Between 0 and `most`, also of a value that is none.
double at_least_0(double value, double most) { return value > 0.0 ? std::min(value, most) : 0.0; }

bool any(const uint64_t* set, const uint64_t* mask, int words) {
  uint64_t found = 0;
  for (int word = 0; word < words; ++word) found |= set[word] & mask[word];
  return found != 0;
}

int clamp(double value, int most) {
  return static_cast<int>(std::min(std::max(value, 0.0), static_cast<double>(most)));
}

// Calls visit(edge, cell) for the cells that each edge meets, edges in their order. Within a row of cells, an edge
// covers one stretch of columns.
template <class Visit>
void visit_cells(const AreaEdges& edges, const AreaGrid& grid, Visit visit) {
  const double cell_m = grid.cell_m;
  for (long long e = 0; e < edges.count; ++e) {
    const double ax = edges.starts[2 * e] - grid.low_x, ay = edges.starts[2 * e + 1] - grid.low_y;
    const double bx = edges.stops[2 * e] - grid.low_x, by = edges.stops[2 * e + 1] - grid.low_y;
    const double low = std::min(ay, by), high = std::max(ay, by), rise = by - ay;
    const bool is_level = std::abs(rise) < kLevelM;
    const double slope = is_level ? 0.0 : (bx - ax) / rise;
    const int first = clamp(std::floor((low - kSlackM) / cell_m), grid.rows);
    const int end = clamp(std::floor((high + kSlackM) / cell_m) + 1.0, grid.rows);
    for (int row = first; row < end; ++row) {
      const double at = std::clamp(row * cell_m - kSlackM, low, high),
                   to = std::clamp((row + 1) * cell_m + kSlackM, low, high);
      const double one = is_level ? ax : ax + slope * (at - ay), other = is_level ? bx : ax + slope * (to - ay);
      const int left = clamp(std::floor((std::min(one, other) - kSlackM) / cell_m), grid.columns);
      const int right = clamp(std::floor((std::max(one, other) + kSlackM) / cell_m) + 1.0, grid.columns);
      for (int column = left; column < right; ++column) visit(e, static_cast<long long>(row) * grid.columns + column);
    }
  }
}

// Whether a segment meets a box around the origin, by clipping it to the box (Liang and Barsky).
bool enters(double ax, double ay, double bx, double by, double half_length, double half_width) {
  double first = 0.0, last = 1.0;
  const double start[] = {ax, ay}, step[] = {bx - ax, by - ay}, half[] = {half_length, half_width};
  for (int axis = 0; axis < 2; ++axis) {
    if (step[axis] == 0.0) {
      if (std::abs(start[axis]) > half[axis]) return false;
      continue;
    }
    const double one = (-half[axis] - start[axis]) / step[axis], other = (half[axis] - start[axis]) / step[axis];
    first = std::max(first, std::min(one, other)), last = std::min(last, std::max(one, other));
  }
  return first <= last;
}

void points_of_box(const AreaBoxes& boxes, long long box, double* at) {
  const double *pose = boxes.centers + 3 * box, x = pose[0], y = pose[1], cos = std::cos(pose[2]),
               sin = std::sin(pose[2]);
  const double ahead_x = 0.5 * boxes.length_m * cos, ahead_y = 0.5 * boxes.length_m * sin;
  const double left_x = -0.5 * boxes.width_m * sin, left_y = 0.5 * boxes.width_m * cos;
  at[0] = x + ahead_x + left_x, at[1] = y + ahead_y + left_y;
  at[2] = x - ahead_x + left_x, at[3] = y - ahead_y + left_y;
  at[4] = x - ahead_x - left_x, at[5] = y - ahead_y - left_y;
  at[6] = x + ahead_x - left_x, at[7] = y + ahead_y - left_y;
  at[8] = x, at[9] = y;
  at[10] = x - boxes.ahead_m * cos, at[11] = y - boxes.ahead_m * sin;
}

// The five flags of a box, `stride` apart, from the sets (6, words) of its points.
void flags_of_box(const uint64_t* corners, int words, const AreaKinds& kinds, bool road_known, bool* flags,
                  long long stride) {
  const uint64_t *center = corners + 4 * words, *rear = center + words;
  int lanes = 0;
  bool within = false;
  for (int word = 0; word < words; ++word) {
    uint64_t touched = 0, inside = ~uint64_t{0};
    for (int corner = 0; corner < 4; ++corner) {
      touched |= corners[corner * words + word];
      inside &= corners[corner * words + word];
    }
    lanes += __builtin_popcountll(touched & kinds.lanes[word]);
    within |= (inside & kinds.lanes[word]) != 0;
  }
  flags[0] = lanes > 1 && !within;
  if (!road_known) {
    bool off_road = false;
    for (int corner = 0; corner < 4; ++corner) off_road |= !any(corners + corner * words, kinds.drivable, words);
    flags[stride] = off_road;
  }
  flags[2 * stride] = !any(center, kinds.route, words);
  flags[3 * stride] = any(center, kinds.intersections, words);
  flags[4 * stride] = any(rear, kinds.intersections, words);
}

}  // namespace

long long count_edge_cells(const AreaEdges& edges, const AreaGrid& grid, long long* first) {
  const long long cells = grid.cells();
  std::fill(first, first + cells + 1, 0);
  visit_cells(edges, grid, [&](long long, long long cell) { ++first[cell + 1]; });
  for (long long cell = 0; cell < cells; ++cell) first[cell + 1] += first[cell];
  return first[cells];
}

void fill_edge_cells(const AreaEdges& edges, const AreaGrid& grid, const long long* first, double* of_cells,
                     uint64_t* bits) {
  const long long cells = grid.cells(), pairs = first[cells];
  std::vector<long long> next(first, first + cells);
  visit_cells(edges, grid, [&](long long e, long long cell) {
    const int row = static_cast<int>(cell / grid.columns), column = static_cast<int>(cell % grid.columns);
    const long long place = next[cell]++;
    const double x = grid.low_x + (column + grid.reference_x) * grid.cell_m,
                 y = grid.low_y + (row + grid.reference_y) * grid.cell_m;
    const double ax = edges.starts[2 * e] - x, ay = edges.starts[2 * e + 1] - y;
    const double bx = edges.stops[2 * e] - x, by = edges.stops[2 * e + 1] - y;
    const double values[] = {ax, ay, bx, by, ax * by - ay * bx, kCloseM * std::hypot(bx - ax, by - ay)};
    for (int k = 0; k < 6; ++k) of_cells[k * pairs + place] = values[k];
    for (int word = 0; word < edges.words; ++word) bits[word * pairs + place] = edges.bits[e * edges.words + word];
  });
}

void draw_references(const AreaEdges& edges, const AreaGrid& grid, uint64_t* references) {
  const long long cells = grid.cells();
  for (long long e = 0; e < edges.count; ++e) {
    const double *start = edges.starts + 2 * e, *stop = edges.stops + 2 * e;
    const double low = std::min(start[1], stop[1]), high = std::max(start[1], stop[1]);
    const int first = clamp(std::ceil((low - grid.low_y) / grid.cell_m - grid.reference_y), grid.rows);
    const long long end =
        clamp(std::ceil((high - grid.low_y) / grid.cell_m - grid.reference_y), grid.rows);  // a vertex counts once
    for (int row = first; row < end; ++row) {
      const double y = grid.low_y + grid.cell_m * (row + grid.reference_y);
      const double x = start[0] + (y - start[1]) / (stop[1] - start[1]) * (stop[0] - start[0]);
      const double column =
          std::ceil((x - grid.low_x) / grid.cell_m - grid.reference_x);  // first reference right of the edge
      if (column >= grid.columns) continue;
      const long long cell = static_cast<long long>(row) * grid.columns + clamp(column, grid.columns);
      for (int word = 0; word < edges.words; ++word)
        references[word * cells + cell] ^= edges.bits[e * edges.words + word];
    }
  }
  for (int word = 0; word < edges.words; ++word)
    for (int row = 0; row < grid.rows; ++row) {
      uint64_t* at = references + word * cells + static_cast<long long>(row) * grid.columns;
      for (int column = 1; column < grid.columns; ++column) at[column] ^= at[column - 1];
    }
}

long long polygons_around(const AreaCells& index, const double* points, long long count, uint64_t* sets,
                          bool* uncertain) {
  const double scale = 1.0 / index.cell_m;
  const double *ax = index.edges, *ay = ax + index.edge_count, *bx = ay + index.edge_count, *by = bx + index.edge_count,
               *left = by + index.edge_count, *close = left + index.edge_count;
  long long uncertain_count = 0;
  for (long long p = 0; p < count; ++p) {
    const double x = points[2 * p] - index.low_x, y = points[2 * p + 1] - index.low_y;
    const double column = std::floor(at_least_0(x * scale, index.columns - 1.0));
    const double row = std::floor(at_least_0(y * scale, index.rows - 1.0));
    const long long cell = static_cast<long long>(row) * index.columns + static_cast<long long>(column);
    const double u = x - (column + index.reference_x) * index.cell_m, v = y - (row + index.reference_y) * index.cell_m;
    uint64_t* set = sets + p * index.words;
    for (int word = 0; word < index.words; ++word) set[word] = index.references[word * index.cells + cell];
    bool is_uncertain = std::max(std::abs(points[2 * p]), std::abs(points[2 * p + 1])) > index.reach_m;
    for (long long e = index.first[cell]; e < index.first[cell + 1]; ++e) {
      // The edge flips a polygon's bit where it crosses the segment from the cell's reference to the point.
      const double side_a = ax[e] * v - ay[e] * u, side_b = bx[e] * v - by[e] * u, side = side_b - side_a + left[e];
      if ((side > 0) != (left[e] > 0) && (side_a > 0) != (side_b > 0))
        for (int word = 0; word < index.words; ++word) set[word] ^= index.edge_bits[word * index.edge_count + e];
      is_uncertain |= std::abs(side) < close[e];
    }
    uncertain[p] = is_uncertain;
    uncertain_count += is_uncertain;
  }
  return uncertain_count;
}

void area_flags(const uint64_t* sets, long long boxes, int words, const AreaKinds& kinds, bool road_known,
                bool* flags) {
  for (long long b = 0; b < boxes; ++b) flags_of_box(sets + 6 * b * words, words, kinds, road_known, flags + b, boxes);
}

void box_points(const AreaBoxes& boxes, double* points) {
  for (long long b = 0; b < boxes.count; ++b) points_of_box(boxes, b, points + 12 * b);
}

long long area_flags_of_boxes(const AreaCells& index, const AreaBoxes& boxes, const AreaKinds& kinds, bool road_known,
                              bool* flags, bool* uncertain) {
  constexpr int kBoxes = 64;  // at a time: their points stay in the cache
  std::vector<uint64_t> sets(6 * kBoxes * index.words);
  double points[12 * kBoxes];
  bool of_points[6 * kBoxes];
  long long uncertain_count = 0;
  for (long long first = 0; first < boxes.count; first += kBoxes) {
    const int number = static_cast<int>(std::min<long long>(kBoxes, boxes.count - first));
    for (int b = 0; b < number; ++b) points_of_box(boxes, first + b, points + 12 * b);
    polygons_around(index, points, 6 * number, sets.data(), of_points);
    for (int b = 0; b < number; ++b) {
      const bool is_uncertain = std::any_of(of_points + 6 * b, of_points + 6 * b + 6, [](bool each) { return each; });
      uncertain[first + b] = is_uncertain;
      uncertain_count += is_uncertain;
      flags_of_box(sets.data() + 6 * b * index.words, index.words, kinds, road_known, flags + first + b, boxes.count);
    }
  }
  return uncertain_count;
}

void red_light_contacts(const double* centers, int candidates, double length_m, double width_m, const double* ring,
                        int vertices, const bool* red, double* score) {
  const double radius = 0.5 * std::hypot(length_m, width_m);
  double low_x = ring[0], low_y = ring[1], high_x = low_x, high_y = low_y;
  for (int v = 1; v < vertices; ++v) {
    low_x = std::min(low_x, ring[2 * v]), high_x = std::max(high_x, ring[2 * v]);
    low_y = std::min(low_y, ring[2 * v + 1]), high_y = std::max(high_y, ring[2 * v + 1]);
  }
  for (int n = 0; n < candidates; ++n)
    for (int t = 0; t < kInstants && score[n] > 0.0; ++t) {
      const double* pose = centers + 3 * (n * kInstants + t);
      if (!red[t] || pose[0] < low_x - radius || pose[0] > high_x + radius || pose[1] < low_y - radius ||
          pose[1] > high_y + radius)
        continue;
      // A polygon and a box touch if an edge enters the box, or if the box is inside.
      const double cos = std::cos(pose[2]), sin = std::sin(pose[2]);
      bool touches = false, inside = false;
      for (int v = 0, before = vertices - 1; v < vertices && !touches; before = v++) {
        const double ax = ring[2 * before] - pose[0], ay = ring[2 * before + 1] - pose[1];
        const double bx = ring[2 * v] - pose[0], by = ring[2 * v + 1] - pose[1];
        touches = enters(ax * cos + ay * sin, ay * cos - ax * sin, bx * cos + by * sin, by * cos - bx * sin,
                         0.5 * length_m, 0.5 * width_m);
        if ((ay > 0) != (by > 0) && (ax * by - ay * bx > 0) == (by > ay)) inside = !inside;
      }
      if (touches || inside) score[n] = 0.0;
    }
}

void driving_direction(const double* centers, int candidates, const bool* wrong, double* score) {
  for (int n = 0; n < candidates; ++n) {
    const double* poses = centers + 3 * n * kInstants;
    double way[kInstants], worst = 0.0;  // driven the wrong way until then; within a second
    for (int t = 0; t < kInstants; ++t) {
      const double step =
          t == 0 ? 0.0 : std::hypot(poses[3 * t] - poses[3 * t - 3], poses[3 * t + 1] - poses[3 * t - 2]);
      way[t] = (t == 0 ? 0.0 : way[t - 1]) + (wrong[n * kInstants + t] ? step : 0.0);
      worst = std::max(worst, way[t] - (t > kWrongWaySteps ? way[t - kWrongWaySteps - 1] : 0.0));
    }
    score[n] = worst < kWrongWay[0] ? 1.0 : worst < kWrongWay[1] ? 0.5 : 0.0;
  }
}

}  // namespace reflectdrive
