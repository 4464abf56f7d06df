// Collisions and gaps between the boxes of N candidates and of A agents (see reflectdrive_ros/scoring/metrics.py).
#pragma once

#include "states.hpp"

namespace reflectdrive {

// Agents as columns: each of x, y, cos, sin and speed is (A, 51).
struct Agents {
  int count;
  const double *x, *y, *cos, *sin, *speed;
  const bool* present;  // (A, 51)
  const double* sizes;  // (A, 2) length and width
  const bool* fixed;    // (A) cones, barriers and the like
};

struct EgoBox {
  double length_m, width_m;
};

// Slower than `stopped_mps` is stopped, for the ego and for others; an agent further than `behind_rad` from straight
// ahead is behind.
struct FaultRule {
  double stopped_mps, behind_rad;
};

inline constexpr int kLooks[] = {0, 3, 6, 9};  // steps that section 9 looks ahead
inline constexpr int kLastLook = kLooks[3];

// Candidates that are judged: states (N, 41, 11), poses of their box centres (N, 41, 3), and whether a contact beside
// them counts (N, 41).
struct Candidates {
  int count;
  const double *states, *centers;
  const bool* beside_counts;
};

// NC over time (N, 41): section 4. `whole`: all contacts of a candidate with an agent are judged by the first, also
// after a pause; else each unbroken contact by its own first instant. `spare_first`: contacts at t = 0 are no fault.
void no_collision(const Candidates& ego, EgoBox box, const Agents& agents, FaultRule rule, bool whole, bool spare_first,
                  double* score);

// TTC (N): section 9, for instants up to `last`. `at_contact`: ego and agent are compared at the time of their contact,
// else the agent then with the ego now.
void time_to_collision(const Candidates& ego, EgoBox box, const Agents& agents, double behind_rad, int last, bool whole,
                       bool at_contact, double* score);

// Gaps (N, K) in metres from boxes at centre poses (N, K, 3) to the nearest agent at its samples (K): 0 on contact, at
// most `most_m`. Lower bounds by separating axes.
void agent_gaps(const double* centers, int candidates, int instants, const long long* samples, EgoBox box,
                const Agents& agents, double most_m, double* gaps);

// The first collision at fault of a plan with boxes at centre poses (T, 3) and rear axles at poses (T, 3), as the guard
// judges it: the first contact with each agent decides, which is no fault if the car stands (`moving` is false) or the
// agent is behind. `others` (A, T, 3) are the agents' poses at the same times, `sizes` (A, 2) theirs. The index of the
// agent and the time, agent * T + time; -1 if there is none.
long long first_fault(const double* centers, const double* rear_axles, const bool* moving, int samples, EgoBox box,
                      const double* others, const double* sizes, int agents, double behind_rad);

}  // namespace reflectdrive
