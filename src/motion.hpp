// Motion along paths: plans in time (see reflectdrive_ros/core/kinematics.py), curves through waypoints and their
// speeds (planning/postprocess), and agents that follow each other (scoring/following.py).
#pragma once

namespace reflectdrive {

// Poses (N, 3) at `times` (N) of a plan of poses (K, 3) at `knots` (K) that begins at the origin. Distance is monotone
// in time (PCHIP), the path a cubic in distance, the heading linear in it; knots closer than `same_place_m` are one.
void resample(const double* poses, const double* knots, int count, const double* times, int samples,
              double same_place_m, double* found);

// Points (T, 2) of a car that begins at the origin with heading 0: a step that leads backwards or sideways, by a
// smaller cosine than `ahead` to the heading, repeats the point before it. Steps shorter than `telling_m` do not turn
// the car.
void drop_reversals(double* points, int count, double ahead, double telling_m);

// Limits of the motion between waypoints.
struct SpeedLimits {
  double braking_mps2, most_mps2, least_mps2, catch_up_s;
};

// Distances (N, T) every `fine_s` of cars that drive at `start_mps` now and should reach `wanted` (N, T), within
// limits, and stop within `room` (N), infinite where they do not stop. Changes `wanted` where it is beyond them.
void hold_distances(double* wanted, const double* room, int cars, int count, double start_mps, double fine_s,
                    const SpeedLimits& limits);

// Poses (N, T, 3) at `distances` (N, T) along cubic curves through knots (N, K, 3), the first at the car; straight
// beyond.
void follow_waypoints(const double* knots, int plans, int count, const double* distances, int samples,
                      double same_place_m, double* found);

// Whether a path of knots (K, 2), the first at the car with heading 0, bends more than `tightest_per_m`; shorter steps
// than `telling_m` have no direction.
bool bends_too_sharply(const double* knots, int count, double tightest_per_m, double telling_m);

// Poses (T, 3) of a car that follows poses (T, 3) by pure pursuit, bends no more than `tightest_per_m` and has driven
// `distances` (T) by then.
void pursue(const double* poses, const double* distances, int samples, double tightest_per_m, double look_ahead_m,
            double* found);

// How drivers adapt to the agent ahead.
struct Following {
  double step_s, per_s, gap_m, delay_s, least_mps2, most_mps2, stop_gap_m;
};

// Metres driven (A, T) at `times` (T) by agents with speeds (A) and accelerations of their own (A, S) in steps of
// `step_s`; `leads` (A) are the rows of the agents ahead, with gaps (A) that are infinite where there is none.
void follow_leads(const double* speeds, const double* accelerations, const long long* leads, const double* gaps,
                  int agents, int steps, const double* times, int samples, const Following& rule, double* driven);

}  // namespace reflectdrive
