// Oriented boxes by separating axes.
#pragma once

#include <algorithm>
#include <cmath>

namespace reflectdrive {

struct Box {
  double x, y, cos, sin;  // centre and direction of the length
  double half_length, half_width;
};

// The largest gap over the four axes of two boxes: at most their distance, and <= 0 where they touch or overlap.
inline double separation(const Box& a, const Box& b) {
  const double dx = b.x - a.x, dy = b.y - a.y;
  const double turn_cos = std::abs(a.cos * b.cos + a.sin * b.sin), turn_sin = std::abs(a.cos * b.sin - a.sin * b.cos);
  const double along_a =
      std::abs(dx * a.cos + dy * a.sin) - a.half_length - b.half_length * turn_cos - b.half_width * turn_sin;
  const double aside_a =
      std::abs(dy * a.cos - dx * a.sin) - a.half_width - b.half_length * turn_sin - b.half_width * turn_cos;
  const double along_b =
      std::abs(dx * b.cos + dy * b.sin) - b.half_length - a.half_length * turn_cos - a.half_width * turn_sin;
  const double aside_b =
      std::abs(dy * b.cos - dx * b.sin) - b.half_width - a.half_length * turn_sin - a.half_width * turn_cos;
  return std::max(std::max(along_a, aside_a), std::max(along_b, aside_b));
}

inline bool touches(const Box& a, const Box& b) {
  const double dx = b.x - a.x, dy = b.y - a.y;
  const double turn_cos = std::abs(a.cos * b.cos + a.sin * b.sin), turn_sin = std::abs(a.cos * b.sin - a.sin * b.cos);
  // The axis across a first: on a road most nearby agents are beside the ego, and this axis separates them.
  return std::abs(dy * a.cos - dx * a.sin) <= a.half_width + b.half_length * turn_sin + b.half_width * turn_cos &&
         std::abs(dx * a.cos + dy * a.sin) <= a.half_length + b.half_length * turn_cos + b.half_width * turn_sin &&
         std::abs(dx * b.cos + dy * b.sin) <= b.half_length + a.half_length * turn_cos + a.half_width * turn_sin &&
         std::abs(dy * b.cos - dx * b.sin) <= b.half_width + a.half_length * turn_sin + a.half_width * turn_cos;
}

}  // namespace reflectdrive
