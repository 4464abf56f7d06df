// Look-ups in the signed-distance grid of the drivable space (see reflectdrive_ros/scoring/drivable.py).
#pragma once

namespace reflectdrive {

struct DistanceGrid {
  const float* distance_m;  // (rows, columns), at the cells' corners
  int rows, columns;
  double resolution_m;
  double x, y, heading;  // pose of the ego frame in the frame of the grid
};

// Distances (R, C), at most `reach_m`, of the points of a grid at ascending x (R) and y (C) to the nearest piece of an
// edge (E, 2, 2), start and stop.
void edge_distances(const double* x, int rows, const double* y, int columns, const double* edges, int pieces,
                    double reach_m, double* distances);

// Lower bounds (P) of how far points (P, 2) of the ego frame are inside the drivable space.
void point_clearances(const DistanceGrid& grid, const double* points, long long count, double* clearances);

// The least of these (B) over the points (P, 2) of boxes at poses (B, 3), given in the frame of the box.
void box_clearances(const DistanceGrid& grid, const double* poses, long long boxes, const double* outline, int points,
                    double* clearances);

// Likewise of the signed distance as it is likely: linear between the four cells around a point.
void likely_box_distances(const DistanceGrid& grid, const double* poses, long long boxes, const double* outline,
                          int points, double* distances);

}  // namespace reflectdrive
