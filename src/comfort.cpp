#include "comfort.hpp"

#include <cmath>
#include <vector>

#include "angles.hpp"
#include "states.hpp"

namespace reflectdrive {
namespace {

enum Filter { kAcceleration, kSmooth, kJerk, kYawAcceleration, kYawRate };

// Four numbers at once, wherever they lie: an extension of GCC and Clang on any processor.
typedef double Four __attribute__((vector_size(4 * sizeof(double)), aligned(sizeof(double)), may_alias));

// Filtered values (T). Each block of results needs the samples first .. last only, the others have no weight.
void apply(const ComfortFilters& filters, int which, const double* values, double* filtered) {
  const int padded = filters.blocks * kComfortBlock;
  const double rounding = filters.rounding;  // a local: what is written does not overlap it
  for (int block = 0; block < filters.blocks; ++block) {
    const long long* range = filters.ranges + 2 * (which * filters.blocks + block);
    const double* weights =
        filters.weights + static_cast<long long>(which) * filters.samples * padded + kComfortBlock * block;
    Four sums[kComfortBlock / 4] = {};
    for (long long k = range[0]; k < range[1]; ++k) {
      const Four* row = reinterpret_cast<const Four*>(weights + k * padded);
      for (int i = 0; i < kComfortBlock / 4; ++i) sums[i] += row[i] * values[k];
    }
    for (int i = 0; i < kComfortBlock; ++i)
      filtered[kComfortBlock * block + i] = std::rint(sums[i / 4][i % 4] * rounding) / rounding;
  }
}

}  // namespace

void comfort_flags(const double* states, int candidates, const ComfortFilters& filters, ComfortPoint point,
                   double ahead_m, const double* low, const double* high, bool* flags) {
  const int samples = filters.samples;
  const size_t padded = filters.blocks * kComfortBlock;
  std::vector<double> along(padded), across(padded), jolt(padded), magnitude(padded), heading(padded);
  std::vector<double> smoothed(padded), series(padded);
  for (int n = 0; n < candidates; ++n) {
    double turns = 0.0;
    for (int t = 0; t < samples; ++t) {
      const double* state = states + (static_cast<long long>(n) * samples + t) * kStateSize;
      const double rate = state[YAW_RATE], turning = state[YAW_ACCELERATION];
      along[t] = state[AX], across[t] = state[AY];
      if (point == ComfortPoint::kOfficial) along[t] += ahead_m * (rate * rate + turning);
      if (point == ComfortPoint::kCenter) {
        along[t] -= ahead_m * rate * rate;
        across[t] = state[VX] * rate + ahead_m * turning;
      }
      const bool rear = point == ComfortPoint::kRearAxle, center = point == ComfortPoint::kCenter;
      jolt[t] = rear ? state[AX] : along[t];
      magnitude[t] = center ? std::hypot(along[t], across[t]) : std::hypot(state[AX], state[AY]);
      if (t > 0) turns += std::nearbyint((state[HEADING] - state[HEADING - kStateSize]) / (2 * kPi));
      heading[t] = state[HEADING] - 2 * kPi * turns;
    }
    const auto judge = [&](int limit, int which, const std::vector<double>& values, bool smoothing) {
      if (smoothing) apply(filters, kSmooth, values.data(), smoothed.data());
      apply(filters, which, (smoothing ? smoothed : values).data(), series.data());
      bool kept = true;
      for (int t = 0; t < samples; ++t) kept &= low[limit] < series[t] && series[t] < high[limit];
      flags[6 * n + limit] = kept;
    };
    judge(0, kAcceleration, along, false);
    judge(1, kAcceleration, across, false);
    judge(2, kJerk, magnitude, true);
    judge(3, kJerk, jolt, true);
    judge(4, kYawAcceleration, heading, false);
    judge(5, kYawRate, heading, false);
  }
}

}  // namespace reflectdrive
