// The kernels that score_bindings.cpp binds.
#pragma once

#include "bindings.hpp"

namespace reflectdrive {

KERNEL(interpolate_plans);
KERNEL(follow);
KERNEL(fit_curvatures);
KERNEL(no_collision);
KERNEL(time_to_collision);
KERNEL(agent_gaps);
KERNEL(box_points);
KERNEL(polygons_around);
KERNEL(area_flags);
KERNEL(red_light_contacts);
KERNEL(driving_direction);
KERNEL(point_clearances);
KERNEL(box_clearances);
KERNEL(comfort_flags);

}  // namespace reflectdrive
