// Forecasts of agents (see reflectdrive_ros/scoring/prediction.py and following.py).
#pragma once

#include "frenet.hpp"

namespace reflectdrive {

// Where agents with poses (A, 3) are on a route: metres along it, metres to its left, and the cosine of their angle to
// it.
void project_to_road(const Route& route, const double* poses, int agents, double* at, double* beside, double* facing);

// Agents as their leads are looked for: poses (A, 3), speeds (A), sizes (A, 2), whether they follow others (A), places
// on the route (A) and whether they are on it (A).
struct RoadUsers {
  int count;
  const double *poses, *speeds, *sizes;
  const bool* follows;
  const double *at, *beside, *facing;
  const bool* on_road;
};

// When an agent leads another.
struct LeadRule {
  double reach_m, same_way, passes_m, moving_mps;
};

// The row (A) of the nearest agent ahead of each agent on its path, and the gap (A) between their boxes; infinite
// without.
void find_leads(const RoadUsers& agents, const LeadRule& rule, long long* rows, double* gaps);

// Poses (A, T, 3) after distances (A, T) in the direction of velocities (A, 2), on arcs: yaw rates (A) decay in
// `decay_s` at the present speed, or at `least_mps`.
void along_arcs(const double* poses, const double* velocities, const double* yaw_rates, int agents,
                const double* driven, int count, double decay_s, double least_mps, double* found);

// Poses (A, T, 3) of agents at `at` (A) on a route and `beside` (A) it, after distances (A, T) along it, in its
// direction or against it; their speed across it decays in `decay_s`, at the present speed, or at `least_mps`.
void along_road(const Route& route, const double* at, const double* beside, const double* poses, const double* speeds,
                int agents, const double* driven, int count, double decay_s, double least_mps, double* found);

// Poses (A, 51, 3) and speeds (A, 51) at 10 Hz of a forecast of poses (A, T, 3) at equal intervals, linear between
// them; past its end the agents go straight on as in its last interval.
void continue_tracks(const double* poses, int agents, int count, double dt_s, double* found, double* speeds);

}  // namespace reflectdrive
