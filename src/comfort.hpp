// Comfort of section 10 of NAVSIM's PDM score (see reflectdrive_ros/scoring/metrics.py).
#pragma once

namespace reflectdrive {

// Which accelerations count: of the rear axle, of the centre by the official formula (angular acceleration on the wrong
// axis, centripetal with the wrong sign), or of the centre by the right one, which then counts in the jerks too.
enum class ComfortPoint { kRearAxle, kOfficial, kCenter };

// Five filters of T samples: of an acceleration before it is judged, before its derivative is taken, the derivative,
// from headings to the yaw acceleration, and to the yaw rate. `weights` (5, T, blocks of 16): row k has those of sample
// k in each result, padded with 0. `ranges` (5, blocks, 2) are the first and the end of the samples that a block needs.
// Results are rounded to whole parts of 1 / `rounding`, as in the official code.
struct ComfortFilters {
  int samples, blocks;
  const double* weights;
  const long long* ranges;
  double rounding;
};
inline constexpr int kComfortBlock = 16;

// Flags (N, 6) of states (N, T, 11), 1 where a limit is kept; `low` and `high` (6) are strict.
void comfort_flags(const double* states, int candidates, const ComfortFilters& filters, ComfortPoint point,
                   double ahead_m, const double* low, const double* high, bool* flags);

}  // namespace reflectdrive
