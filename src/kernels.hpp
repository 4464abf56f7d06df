// All kernels of the module: score_bindings.cpp, plan_bindings.cpp and agent_bindings.cpp define them, module.cpp lists
// them.
#pragma once

#include "bindings.hpp"

#define REFLECTDRIVE_KERNELS(X)                                                                                       \
  X(interpolate_plans)                                                                                                \
  X(follow) X(fit_curvatures) X(no_collision) X(time_to_collision) X(agent_gaps) X(box_points) X(count_edge_cells)    \
      X(fill_edge_cells) X(draw_references) X(polygons_around) X(area_flags) X(area_flags_of_boxes)                   \
          X(red_light_contacts) X(driving_direction) X(edge_distances) X(point_clearances) X(box_clearances)          \
              X(comfort_flags) X(project) X(sample) X(lane_keeping) X(first_fault) X(to_frenet) X(headings_of_points) \
                  X(resample) X(drop_reversals) X(hold_distances) X(follow_waypoints) X(bends_too_sharply) X(pursue)  \
                      X(headings_on_road) X(smooth_points) X(limit_acceleration) X(interpolate_paths)                 \
                          X(first_crossings) X(plan_safety) X(vehicle_demands) X(follow_leads) X(project_to_road)     \
                              X(find_leads) X(along_arcs) X(along_road) X(continue_tracks)

namespace reflectdrive {

#define DECLARE(name) KERNEL(name);
REFLECTDRIVE_KERNELS(DECLARE)
#undef DECLARE

}  // namespace reflectdrive
