// Comfort of section 10 of NAVSIM's PDM score (see reflectdrive_ros/scoring/metrics.py).
#pragma once

namespace reflectdrive {

// Which accelerations count: of the rear axle, of the centre by the official formula (angular acceleration on the wrong
// axis, centripetal with the wrong sign), or of the centre by the right one, which then counts in the jerks too.
enum class ComfortPoint { kRearAxle, kOfficial, kCenter };

// Flags (N, 6) of states (N, T, 11), 1 where a limit is kept. `filters` (5, T, T) are transposed: row k has the weights
// of sample k. They smooth an acceleration before it is judged and before its derivative is taken, derive it, and give
// the yaw acceleration and the yaw rate from headings. `low` and `high` (6) are strict.
void comfort_flags(const double* states, int candidates, int samples, const double* filters, ComfortPoint point,
                   double ahead_m, const double* low, const double* high, bool* flags);

}  // namespace reflectdrive
