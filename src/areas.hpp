// Points in map polygons, by an index of cells (see reflectdrive_ros/scoring/areas.py), and flags of the ego box.
#pragma once

#include <cstdint>

namespace reflectdrive {

// Cells of a grid over all polygons. `references` (words, cells) has the polygons around each cell's reference point;
// the edges near cell c are the columns first[c] .. first[c + 1] of `edges` (6, E): ax, ay, bx, by relative to the
// reference, ax by - ay bx, and the distance from the line, times its length, below which a point is put to shapely.
struct AreaCells {
  double low_x, low_y, cell_m, reference_x, reference_y;  // references in cells
  int rows, columns, words;
  long long cells, edge_count;
  const uint64_t* references;
  const long long* first;
  const double* edges;
  const uint64_t* edge_bits;  // (words, E)
  double reach_m;             // points further away, along x or y, are put to shapely; infinite if there are none
};

// Square cells over a rectangle, each with a reference point; what lies beyond belongs to the cells at the border.
struct AreaGrid {
  double low_x, low_y, cell_m, reference_x, reference_y;  // references in cells
  int rows, columns;
  long long cells() const { return static_cast<long long>(rows) * columns; }
};

// E edges of polygons, with the sets of the polygons that they belong to.
struct AreaEdges {
  const double *starts, *stops;  // (E, 2)
  const uint64_t* bits;          // (E, words)
  long long count;
  int words;
};

// Counts the edges that meet each cell: `first` (cells + 1) gets where those of each cell begin, in the order of cells.
// Their number, which is returned, contains every pair that meets, and some that do not.
long long count_edge_cells(const AreaEdges& edges, const AreaGrid& grid, long long* first);

// Fills the arrays `edges` (6, pairs) and `edge_bits` (words, pairs) of an index, in the order of `first`.
void fill_edge_cells(const AreaEdges& edges, const AreaGrid& grid, const long long* first, double* of_cells,
                     uint64_t* bits);

// Sets (words, cells) of the polygons around each cell's reference point; zeros at first. Each row of references is
// walked from the left, edges flip their bits.
void draw_references(const AreaEdges& edges, const AreaGrid& grid, uint64_t* references);

// Sets (P, words) of the polygons that contain points (P, 2). `uncertain` (P) are those that need an exact test; their
// number is returned.
long long polygons_around(const AreaCells& index, const double* points, long long count, uint64_t* sets,
                          bool* uncertain);

// Polygons by their meaning, each a set of `words`.
struct AreaKinds {
  const uint64_t *lanes, *route, *drivable, *intersections;
};

// Boxes at centre poses; the rear axle is `ahead_m` behind the centre.
struct AreaBoxes {
  const double* centers;  // (B, 3)
  long long count;
  double length_m, width_m, ahead_m;
};

// Points (B, 6, 2) of boxes: front left, rear left, rear right, front right, centre, rear axle.
void box_points(const AreaBoxes& boxes, double* points);

// Flags (5, B) of B boxes from the sets (B, 6, words) of their points: over two lanes and within neither; off the road
// (as it is, if `road_known`); centre off the route's lanes; centre, and rear axle, in an intersection.
void area_flags(const uint64_t* sets, long long boxes, int words, const AreaKinds& kinds, bool road_known, bool* flags);

// Flags (5, B) of boxes from the cells of an index. `uncertain` (B) are boxes with a point that needs an exact test;
// their number is returned.
long long area_flags_of_boxes(const AreaCells& index, const AreaBoxes& boxes, const AreaKinds& kinds, bool road_known,
                              bool* flags, bool* uncertain);

// Whether boxes at centre poses (N, 41, 3) touch a ring (V, 2) while it is red (41): sets score (N) to 0.
void red_light_contacts(const double* centers, int candidates, double length_m, double width_m, const double* ring,
                        int vertices, const bool* red, double* score);

// DDC (N): 1, 0.5, 0 by the distance of centres (N, 41, 3) driven off the route's lanes within a second (section 6).
void driving_direction(const double* centers, int candidates, const bool* wrong, double* score);

}  // namespace reflectdrive
