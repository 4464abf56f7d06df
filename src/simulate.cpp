#include "simulate.hpp"

#include <algorithm>
#include <cmath>

#include "angles.hpp"

namespace reflectdrive {
namespace {

constexpr double kCurvaturePenalty = 1e-10;
constexpr double kStiffness = 1e-2 / (kDtS * kDtS);  // penalty of the curvature's rate of change
constexpr int kLookAhead = 10;                       // steps
constexpr double kStoppingSpeed = 0.2;
constexpr double kStoppingGain = 0.5;
constexpr double kSpeedGain = 10.0 / 11.0;                  // q B / (q B^2 + r) with q = 10, r = 1, B = 1 s
constexpr double kHeadingWeight = 10.0;                     // against 1 for the lateral error and for the steering rate
constexpr double kAccelerationShare = kDtS / (kDtS + 0.2);  // low pass of 0.2 s
constexpr double kSteeringShare = kDtS / (kDtS + 0.05);     // low pass of 0.05 s

// Sums over the ten steps j = 0 .. 9 of the tracker's look-ahead. In step j the car drives alpha + beta j metres; over
// the ten steps its way is ten alpha + sum j beta, and with steering that changes at a constant rate its turn and its
// lateral error are polynomials in alpha and beta with these coefficients.
struct LookAheadSums {
  double j = 0, squares = 0;                               // of j
  double pairs[3] = {0, 0, 0}, rate_pairs[3] = {0, 0, 0};  // of alpha^2, alpha beta, beta^2
  double weights[5][kLookAhead] = {};                      // of the road's curvature in step j
  constexpr LookAheadSums() {
    double earlier = 0, earlier_squares = 0;  // sums over i < j
    for (int k = 0; k < kLookAhead; ++k) {
      j += k, squares += k * k;
      pairs[0] += k, pairs[1] += k * k + earlier, pairs[2] += k * earlier;
      rate_pairs[0] += earlier, rate_pairs[1] += k * earlier + earlier_squares, rate_pairs[2] += k * earlier_squares;
      earlier += k, earlier_squares += k * k;
    }
    double reached = 0;
    for (int k = 0; k < kLookAhead; ++k) {
      reached += k;
      const double after = kLookAhead - 1 - k, after_sum = j - reached;  // steps that follow, and of their indices
      weights[0][k] = 1, weights[1][k] = k;                              // contribution to the heading
      weights[2][k] = after, weights[3][k] = after_sum + k * after, weights[4][k] = k * after_sum;  // lateral
    }
  }
};
constexpr LookAheadSums kSums;

}  // namespace

void interpolate_plan(const double* plan, int poses, const double* knot_times, const double* times, double* reference) {
  double here[3] = {0, 0, 0}, next[3] = {plan[0], plan[1], unwrap(0.0, plan[2])};
  for (int i = 0, knot = 0; i <= kSteps; ++i) {
    while (knot < poses - 1 && times[i] >= knot_times[knot + 1]) {
      ++knot;
      std::copy(next, next + 3, here);
      next[0] = plan[3 * knot], next[1] = plan[3 * knot + 1];
      next[2] = unwrap(here[2], plan[3 * knot + 2]);
    }
    const double share = std::min((times[i] - knot_times[knot]) / (knot_times[knot + 1] - knot_times[knot]), 1.0);
    for (int axis = 0; axis < 3; ++axis) reference[3 * i + axis] = (1.0 - share) * here[axis] + share * next[axis];
  }
}

// Minimises sum (turn - distance c)^2 + 1e-10 c_0^2 + 1e-2 sum ((c_k+1 - c_k) / dt)^2: a tridiagonal system.
void fit_curvatures(const double* turns, const double* distances, double* curvatures) {
  double diagonal[kSteps];
  for (int k = 0; k < kSteps; ++k) {
    diagonal[k] = distances[k] * distances[k] + 2 * kStiffness;
    curvatures[k] = distances[k] * turns[k];
  }
  diagonal[0] += kCurvaturePenalty - kStiffness;
  diagonal[kSteps - 1] -= kStiffness;
  for (int k = 1; k < kSteps; ++k) {
    const double share = kStiffness / diagonal[k - 1];
    diagonal[k] -= kStiffness * share;
    curvatures[k] += share * curvatures[k - 1];
  }
  curvatures[kSteps - 1] /= diagonal[kSteps - 1];
  for (int k = kSteps - 2; k >= 0; --k) curvatures[k] = (curvatures[k] + kStiffness * curvatures[k + 1]) / diagonal[k];
}

namespace {

// Speeds (40) m/s and curvatures (40) 1/m fitted to poses (41, 3), and cosines and sines (40) of their headings.
void fit_profiles(const double* reference, const double* speed_fit, double* speeds, double* curvatures, double* cosines,
                  double* sines) {
  double turns[kSteps], distances[kSteps];
  std::fill(speeds, speeds + kSteps, 0.0);
  for (int k = 0; k < kSteps; ++k) {
    const double *here = reference + 3 * k, *next = here + 3;
    cosines[k] = std::cos(here[2]), sines[k] = std::sin(here[2]);
    const double along = cosines[k] * (next[0] - here[0]) + sines[k] * (next[1] - here[1]);
    for (int i = 0; i < kSteps; ++i) speeds[i] += speed_fit[kSteps * k + i] * along;
    turns[k] = wrap(next[2] - here[2]);
  }
  for (int k = 0; k < kSteps; ++k) distances[k] = kDtS * speeds[k];
  fit_curvatures(turns, distances, curvatures);
}

}  // namespace

void follow(const double* reference, const double* motion, const double* speed_fit, Bicycle car, double* states) {
  double speeds[kSteps], curvatures[kSteps + kLookAhead], road[5][kSteps] = {}, cosines[kSteps], sines[kSteps];
  fit_profiles(reference, speed_fit, speeds, curvatures, cosines, sines);
  std::fill(curvatures + kSteps, curvatures + kSteps + kLookAhead, curvatures[kSteps - 1]);
  for (int part = 0; part < 5; ++part)  // weighted sums over the ten curvatures ahead of each step
    for (int j = 0; j < kLookAhead; ++j)
      for (int i = 0; i < kSteps; ++i) road[part][i] += kSums.weights[part][j] * curvatures[i + j];

  const double base = car.wheel_base_m, rate_scale = kDtS / base;
  std::fill(states, states + kStateSize * (kSteps + 1), 0.0);
  std::copy(motion, motion + kStateSize - VX, states + VX);
  double bend = std::tan(states[STEERING]) / base;
  for (int i = 0; i < kSteps; ++i) {
    const double *state = states + kStateSize * i, *place = reference + 3 * i;
    double* now = states + kStateSize * (i + 1);
    const double v = state[VX], steering = state[STEERING];

    // 1.2: the tracker. Errors across the road and of the heading, now.
    const double across = (state[X] - place[0]) * -sines[i] + (state[Y] - place[1]) * cosines[i];
    const double turned = wrap(state[HEADING] - place[2]);
    const int look = std::min(i + kLookAhead, kSteps - 1);
    const bool stopping = speeds[look] <= kStoppingSpeed && v <= kStoppingSpeed;
    const double command = -(stopping ? kStoppingGain : kSpeedGain) * (v - speeds[look]);

    // Ten steps ahead at constant steering rate u: error = A x0 + B u + g, in closed form.
    const double alpha = kDtS * v, beta = kDtS * kDtS * command;
    const double aa = alpha * alpha, ab = alpha * beta, bb = beta * beta;
    const auto& sums = kSums;
    const double way = kLookAhead * alpha + sums.j * beta;
    const double lateral = (sums.pairs[0] * aa + sums.pairs[1] * ab + sums.pairs[2] * bb) / base;
    const double rate_turn = rate_scale * (sums.j * alpha + sums.squares * beta);
    const double rate_lateral =
        rate_scale * (sums.rate_pairs[0] * aa + sums.rate_pairs[1] * ab + sums.rate_pairs[2] * bb);
    const double turned_ahead = wrap(turned + steering * (way / base) - (road[0][i] * alpha + road[1][i] * beta));
    const double lateral_ahead =
        across + turned * way + steering * lateral - (road[2][i] * aa + road[3][i] * ab + road[4][i] * bb);
    const double weighted = kHeadingWeight * rate_turn;
    double rate = -kSteeringShare * (rate_lateral * lateral_ahead + weighted * turned_ahead) /
                  (rate_lateral * rate_lateral + weighted * rate_turn + 1.0);
    if (stopping) rate = 0.0;

    // 1.3: the bicycle, explicit Euler, every right-hand side at the old state.
    now[STEERING_RATE] = rate;
    now[X] = state[X] + alpha * std::cos(state[HEADING]);
    now[Y] = state[Y] + alpha * std::sin(state[HEADING]);
    now[HEADING] = state[HEADING] + alpha * bend;
    now[AX] = state[AX] + kAccelerationShare * (command - state[AX]);
    now[VX] = v + kDtS * now[AX];  // not clamped: late braking may roll back slightly
    now[STEERING] = std::clamp(steering + kDtS * rate, -car.max_steering_rad, car.max_steering_rad);
    bend = std::tan(now[STEERING]) / base;
    now[YAW_RATE] = now[VX] * bend;
    now[YAW_ACCELERATION] = (now[YAW_RATE] - state[YAW_RATE]) / kDtS;
  }
  for (int i = 0; i <= kSteps; ++i) states[kStateSize * i + HEADING] = wrap(states[kStateSize * i + HEADING]);
}

}  // namespace reflectdrive
