#include "comfort.hpp"

#include <cmath>
#include <vector>

#include "angles.hpp"
#include "simulate.hpp"

namespace reflectdrive {
namespace {

enum State { HEADING = 2, VX = 3, AX = 5, AY = 6, YAW_RATE = 9, YAW_ACCELERATION = 10 };
constexpr double kDecimals = 1e8;  // filtered values are rounded, as in the official code

void filter(const double* weights, const double* values, int samples, double* filtered) {
  for (int i = 0; i < samples; ++i) filtered[i] = 0.0;
  for (int k = 0; k < samples; ++k)
    for (int i = 0; i < samples; ++i) filtered[i] += weights[k * samples + i] * values[k];
  for (int i = 0; i < samples; ++i) filtered[i] = std::rint(filtered[i] * kDecimals) / kDecimals;
}

}  // namespace

void comfort_flags(const double* states, int candidates, int samples, const double* filters, ComfortPoint point,
                   double ahead_m, const double* low, const double* high, bool* flags) {
  const int size = samples * samples;
  const double *judged = filters, *smooth = judged + size, *jerk = smooth + size, *yaw_acceleration = jerk + size,
               *yaw_rate = yaw_acceleration + size;
  std::vector<double> along(samples), across(samples), jolt(samples), magnitude(samples), heading(samples), smoothed(samples);
  std::vector<double> series(samples);
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
    const auto judge = [&](int limit, const double* weights, const std::vector<double>& values, const double* before) {
      if (before) filter(before, values.data(), samples, smoothed.data());
      filter(weights, (before ? smoothed : values).data(), samples, series.data());
      bool kept = true;
      for (int t = 0; t < samples; ++t) kept &= low[limit] < series[t] && series[t] < high[limit];
      flags[6 * n + limit] = kept;
    };
    judge(0, judged, along, nullptr);
    judge(1, judged, across, nullptr);
    judge(2, jerk, magnitude, smooth);
    judge(3, jerk, jolt, smooth);
    judge(4, yaw_acceleration, heading, nullptr);
    judge(5, yaw_rate, heading, nullptr);
  }
}

}  // namespace reflectdrive
