#include "motion.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "angles.hpp"

namespace reflectdrive {
namespace {

// The piece of ascending `at` (count) that holds x, the last one for x at its end.
int piece_of(const double* at, int count, double x) {
  return std::clamp(static_cast<int>(std::upper_bound(at, at + count, x) - at) - 1, 0, count - 2);
}

// A cubic between two values with their slopes, `into` of a piece of length `step`.
double hermite(double begin, double end, double begin_slope, double end_slope, double step, double into) {
  const double slope = (end - begin) / step, bend = (begin_slope + end_slope - 2.0 * slope) / step;
  return begin + into * (begin_slope + into * ((slope - begin_slope) / step - bend + into * (bend / step)));
}

double sign(double value) { return (value > 0.0) - (value < 0.0); }

// The slope at the first of three values, one-sided, without overshoot (Moler, Numerical Computing with MATLAB, 3.6).
double end_slope(double step, double next_step, double slope, double next_slope) {
  const double found = ((2.0 * step + next_step) * slope - step * next_slope) / (step + next_step);
  if (sign(found) != sign(slope)) return 0.0;
  return sign(slope) != sign(next_slope) && std::abs(found) > 3.0 * std::abs(slope) ? 3.0 * slope : found;
}

// Slopes (count) of a monotone cubic through values at x: PCHIP of Fritsch and Butland, weighted harmonic means.
std::vector<double> monotone_slopes(const double* x, const double* values, int count) {
  std::vector<double> steps(count - 1), slopes(count - 1), found(count, 0.0);
  for (int k = 0; k < count - 1; ++k) steps[k] = x[k + 1] - x[k], slopes[k] = (values[k + 1] - values[k]) / steps[k];
  if (count == 2) return {slopes[0], slopes[0]};
  for (int k = 1; k < count - 1; ++k) {
    const double before = slopes[k - 1], after = slopes[k];
    if (sign(before) != sign(after) || before == 0.0 || after == 0.0) continue;
    const double one = 2.0 * steps[k] + steps[k - 1], other = steps[k] + 2.0 * steps[k - 1];
    found[k] = (one + other) / (one / before + other / after);
  }
  found[0] = end_slope(steps[0], steps[1], slopes[0], slopes[1]);
  found[count - 1] = end_slope(steps[count - 2], steps[count - 3], slopes[count - 2], slopes[count - 3]);
  return found;
}

// Slopes of values at places `at`: parabolas through three neighbours, lines at the ends (numpy.gradient).
double middle_slope(const double* at, const double* values, int stride, int k, int count) {
  const auto slope = [&](int i) { return (values[(i + 1) * stride] - values[i * stride]) / (at[i + 1] - at[i]); };
  if (k == 0) return slope(0);
  if (k == count - 1) return slope(count - 2);
  const double before = at[k] - at[k - 1], after = at[k + 1] - at[k];
  return (after * slope(k - 1) + before * slope(k)) / (before + after);
}

}  // namespace

void resample(const double* poses, const double* knots, int count, const double* times, int samples,
              double same_place_m, double* found) {
  std::vector<double> along(count, 0.0), kept_along{0.0}, path{poses[0], poses[1], poses[2]};
  double heading = poses[2];
  for (int k = 1; k < count; ++k) {
    const double *here = poses + 3 * k, *before = here - 3;
    along[k] = along[k - 1] + std::hypot(here[0] - before[0], here[1] - before[1]);
    heading = unwrap(heading, here[2]);
    if (along[k] - kept_along.back() > same_place_m) {  // compared with the last one kept: creeping counts as moving
      kept_along.push_back(along[k]);
      path.insert(path.end(), {here[0], here[1], heading});
    }
  }
  const int places = static_cast<int>(kept_along.size());
  if (places < 2) {
    for (int i = 0; i < samples; ++i) std::copy(poses, poses + 3, found + 3 * i);
    return;
  }
  const std::vector<double> speeds = monotone_slopes(knots, along.data(), count);
  std::vector<double> tangents(2 * places);
  for (int k = 0; k < places; ++k)
    for (int axis = 0; axis < 2; ++axis)
      tangents[2 * k + axis] = middle_slope(kept_along.data(), path.data() + axis, 3, k, places);
  for (int i = 0; i < samples; ++i) {
    const double time = std::clamp(times[i], 0.0, knots[count - 1]);
    const int k = piece_of(knots, count, time);
    const double driven =
        hermite(along[k], along[k + 1], speeds[k], speeds[k + 1], knots[k + 1] - knots[k], time - knots[k]);
    const double distance = std::clamp(driven, 0.0, kept_along.back());
    const int p = piece_of(kept_along.data(), places, distance);
    const double step = kept_along[p + 1] - kept_along[p], into = distance - kept_along[p];
    for (int axis = 0; axis < 2; ++axis)
      found[3 * i + axis] = hermite(path[3 * p + axis], path[3 * p + 3 + axis], tangents[2 * p + axis],
                                    tangents[2 * p + 2 + axis], step, into);
    found[3 * i + 2] = wrap(path[3 * p + 2] + into / step * (path[3 * p + 5] - path[3 * p + 2]));
  }
}

void drop_reversals(double* points, int count, double ahead, double telling_m) {
  double x = 0.0, y = 0.0, forward = 1.0, left = 0.0;
  for (int t = 0; t < count; ++t) {
    double* point = points + 2 * t;
    const double dx = point[0] - x, dy = point[1] - y, length = std::hypot(dx, dy);
    if (dx * forward + dy * left > ahead * length) {
      if (length >= telling_m) forward = dx / length, left = dy / length;
      x = point[0], y = point[1];
    } else {
      point[0] = x, point[1] = y;
    }
  }
}

void hold_distances(double* wanted, const double* room, int cars, int count, double start_mps, double fine_s,
                    const SpeedLimits& limits) {
  const double late = 0.5 * limits.braking_mps2 * fine_s;  // speed changes once in an interval
  const auto in_time = [&](double left) {
    return std::sqrt(late * late + 2.0 * limits.braking_mps2 * std::max(left, 0.0)) - late;
  };
  for (int n = 0; n < cars; ++n) {
    double* places = wanted + n * count;
    bool held = false;
    for (int t = 0; t < count && !held; ++t) {
      const double before = t ? places[t - 1] : 0.0, speed = (places[t] - before) / fine_s;
      const double slower = t ? (places[t - 1] - (t > 1 ? places[t - 2] : 0.0)) / fine_s : start_mps;
      held = speed - slower < limits.least_mps2 * fine_s || speed - slower > limits.most_mps2 * fine_s || speed < 0.0 ||
             speed > in_time(room[n] - before);
    }
    if (!held) continue;
    double place = 0.0, speed = start_mps, before = 0.0;  // `before`: the wanted place one interval ago
    for (int t = 0; t < count; ++t) {
      const double planned = (places[t] - before) / fine_s;
      double aim = std::min(planned + (before - place) / limits.catch_up_s, in_time(room[n] - place));
      aim = std::min(std::max(aim, speed + limits.least_mps2 * fine_s), speed + limits.most_mps2 * fine_s);
      before = places[t];
      speed = std::max(aim, 0.0);
      places[t] = place += fine_s * speed;
    }
  }
}

bool bends_too_sharply(const double* knots, int count, double tightest_per_m, double telling_m) {
  double before_length = 0.0, before_direction = 0.0;
  for (int k = 1; k < count; ++k) {
    const double dx = knots[2 * k] - knots[2 * k - 2], dy = knots[2 * k + 1] - knots[2 * k - 1];
    const double length = std::hypot(dx, dy), direction = std::atan2(dy, dx);
    const double allowed = tightest_per_m * 0.5 * (before_length + length);
    if (k == 1 ? length > telling_m && std::abs(direction) > allowed
               : std::min(before_length, length) > telling_m && std::abs(wrap(direction - before_direction)) > allowed)
      return true;
    before_length = length, before_direction = direction;
  }
  return false;
}

void pursue(const double* poses, const double* distances, int samples, double tightest_per_m, double look_ahead_m,
            double* found) {
  const int count = samples + 2;  // the origin, the poses, and a point ahead of the last
  std::vector<double> line(2 * count, 0.0), along(count, 0.0);
  for (int t = 0; t < samples; ++t) line[2 * t + 2] = poses[3 * t], line[2 * t + 3] = poses[3 * t + 1];
  const double* last = poses + 3 * (samples - 1);
  line[2 * count - 2] = last[0] + look_ahead_m * std::cos(last[2]);
  line[2 * count - 1] = last[1] + look_ahead_m * std::sin(last[2]);
  for (int k = 1; k < count; ++k)
    along[k] = along[k - 1] + std::hypot(line[2 * k] - line[2 * k - 2], line[2 * k + 1] - line[2 * k - 1]);
  double x = 0.0, y = 0.0, heading = 0.0, driven = 0.0;
  for (int t = 0; t < samples; ++t) {
    const double aim = along[t] + look_ahead_m;
    const int p = piece_of(along.data(), count, aim);
    const double step = along[p + 1] - along[p],
                 share = std::clamp((aim - along[p]) / (step > 0.0 ? step : 1.0), 0.0, 1.0);
    const double dx = line[2 * p] + share * (line[2 * p + 2] - line[2 * p]) - x;
    const double dy = line[2 * p + 1] + share * (line[2 * p + 3] - line[2 * p + 1]) - y;
    const double across = dy * std::cos(heading) - dx * std::sin(heading);
    const double curvature = 2.0 * across / std::max(dx * dx + dy * dy, 1e-6);
    const double way = distances[t] - driven;
    const double turn = way * std::clamp(curvature, -tightest_per_m, tightest_per_m);
    driven = distances[t];
    x += way * std::cos(heading + 0.5 * turn), y += way * std::sin(heading + 0.5 * turn), heading += turn;
    found[3 * t] = x, found[3 * t + 1] = y, found[3 * t + 2] = wrap(heading);
  }
}

void follow_waypoints(const double* knots, int plans, int count, const double* distances, int samples,
                      double same_place_m, double* found) {
  std::vector<double> along(count), headings(count), lengths(count), begins(2 * count), ends(2 * count);
  std::vector<bool> moves(count);
  for (int n = 0; n < plans; ++n) {
    const double *knot = knots + 3 * n * count, *driven = distances + n * samples;
    double* poses = found + 3 * n * samples;
    along[0] = 0.0, headings[0] = knot[2];
    for (int k = 0; k < count - 1; ++k) {  // piece k leads from knot k to knot k + 1
      const double dx = knot[3 * k + 3] - knot[3 * k], dy = knot[3 * k + 4] - knot[3 * k + 1];
      lengths[k] = std::hypot(dx, dy), moves[k] = lengths[k] > same_place_m;
      along[k + 1] = along[k] + lengths[k];
      headings[k + 1] = moves[k] ? knot[3 * k + 5] : headings[k];  // a standing car does not turn
      const double scale = moves[k] ? lengths[k] : 1.0;
      begins[2 * k] = ends[2 * k] = dx / scale, begins[2 * k + 1] = ends[2 * k + 1] = dy / scale;
    }
    // Directions at a knot: the mean of its pieces, with more weight for the shorter one; one-sided at a stop.
    double before[2] = {begins[0], begins[1]};
    for (int k = 1; k < count - 1; ++k)
      for (int axis = 0; axis < 2; ++axis) {
        const double slope = begins[2 * k + axis];
        if (moves[k - 1] && moves[k]) {
          const double middle = (lengths[k] * before[axis] + lengths[k - 1] * slope) /
                                std::max(lengths[k - 1] + lengths[k], same_place_m);
          ends[2 * (k - 1) + axis] = begins[2 * k + axis] = middle;
        }
        before[axis] = slope;
      }
    for (int t = 0; t < samples; ++t) {
      int p = 0;
      while (p < count - 2 && driven[t] > along[p + 1]) ++p;
      const double share = moves[p] ? std::clamp((driven[t] - along[p]) / lengths[p], 0.0, 1.0) : 0.0;
      const double left = 1.0 - share, square = share * share, scale = std::max(lengths[p], same_place_m);
      for (int axis = 0; axis < 2; ++axis)
        poses[3 * t + axis] = (1.0 + 2.0 * share) * left * left * knot[3 * p + axis] +
                              square * (3.0 - 2.0 * share) * knot[3 * p + 3 + axis] +
                              share * left * left * (begins[2 * p + axis] * scale) -
                              square * left * (ends[2 * p + axis] * scale);
      const double heading = headings[p] + share * wrap(headings[p + 1] - headings[p]);
      const double beyond = std::max(driven[t] - along[count - 1], 0.0);
      if (beyond > 0.0) poses[3 * t] += beyond * std::cos(heading), poses[3 * t + 1] += beyond * std::sin(heading);
      poses[3 * t + 2] = wrap(heading);
    }
  }
}

void follow_leads(const double* speeds, const double* accelerations, const long long* leads, const double* gaps,
                  int agents, int steps, const double* times, int samples, const Following& rule, double* driven) {
  std::vector<double> speed((steps + 1) * agents), place((steps + 1) * agents, 0.0);
  std::copy(speeds, speeds + agents, speed.begin());
  for (int step = 0; step < steps; ++step) {
    const double *now = speed.data() + step * agents, *at = place.data() + step * agents;
    const double begun = -std::expm1(-(step + 0.5) * rule.step_s / rule.delay_s);
    for (int a = 0; a < agents; ++a) {
      double acceleration = accelerations[a * steps + step];
      if (std::isfinite(gaps[a])) {
        const double its = now[leads[a]], gap = std::max(gaps[a] + at[leads[a]] - at[a], 0.0);
        const double adapting =
            std::clamp(begun * rule.per_s * (its - now[a]) / (1.0 + gap / rule.gap_m), rule.least_mps2, rule.most_mps2);
        // The larger of both where they have the same sign, else their sum.
        if (acceleration * adapting > 0.0)
          acceleration = std::abs(acceleration) > std::abs(adapting) ? acceleration : adapting;
        else
          acceleration += adapting;
        const double brake = -rule.least_mps2;
        const double safe = std::sqrt(its * its + 2.0 * brake * std::max(gap - rule.stop_gap_m, 0.0));
        acceleration = std::min(acceleration, std::max((safe - now[a]) / rule.step_s, 2.0 * rule.least_mps2));
      }
      const double after = now[a] > 0.0 ? std::max(now[a] + rule.step_s * acceleration, 0.0) : 0.0;
      speed[(step + 1) * agents + a] = after;
      place[(step + 1) * agents + a] = at[a] + 0.5 * rule.step_s * (now[a] + after);
    }
  }
  for (int t = 0; t < samples; ++t) {
    const int before = std::min(static_cast<int>(times[t] / rule.step_s + 1e-9), steps - 1);
    const double into = times[t] - rule.step_s * before;
    for (int a = 0; a < agents; ++a) {
      const double now = speed[before * agents + a], gained = (speed[(before + 1) * agents + a] - now) / rule.step_s;
      driven[a * samples + t] = place[before * agents + a] + (now + 0.5 * gained * into) * into;
    }
  }
}

}  // namespace reflectdrive
