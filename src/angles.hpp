// Angles in radians.
#pragma once

#include <cmath>

namespace reflectdrive {

inline constexpr double kPi = 3.14159265358979323846;

// Brought to [-pi, pi); exact for angles that are there already.
inline double wrap(double angle) { return angle - 2 * kPi * std::floor((angle + kPi) / (2 * kPi)); }

// The angle, less whole turns, that is nearest to the one before, as numpy.unwrap has it.
inline double unwrap(double before, double angle) {
  const double step = angle - before;
  double turn = wrap(step);
  if (turn == -kPi && step > 0) turn = kPi;
  return std::abs(step) < kPi ? angle : before + turn;
}

}  // namespace reflectdrive
