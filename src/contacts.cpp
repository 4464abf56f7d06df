#include "contacts.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "angles.hpp"
#include "boxes.hpp"

namespace reflectdrive {
namespace {

constexpr double kStanding = 0.005;  // m/s, section 9: slower has no time to collision
constexpr double kAhead = kPi / 6;
constexpr double kStaticPenalty = 0.5;  // section 4: score after a collision with a cone or a barrier

// The rectangle that some points lie in.
struct Bounds {
  double low_x = INFINITY, low_y = INFINITY, high_x = -INFINITY, high_y = -INFINITY;
  void add(double x, double y) {
    low_x = std::min(low_x, x), high_x = std::max(high_x, x);
    low_y = std::min(low_y, y), high_y = std::max(high_y, y);
  }
};

double circle(double length, double width) { return 0.5 * std::hypot(length, width); }

constexpr double kSlack = 1e-9;  // m, against rounding where agents are left out

// The rectangles in which the centre of a box with a circle of `radius` may touch the agents, as columns, so that a
// candidate is compared with all of them in a loop without branches.
class Reaches {
 public:
  Reaches(const Agents& agents, double radius)
      : low_x_(agents.count),
        low_y_(agents.count),
        high_x_(agents.count),
        high_y_(agents.count),
        reach_(agents.count),
        is_near_(agents.count) {
    for (int a = 0; a < agents.count; ++a) {
      Bounds bounds;
      for (int t = 0; t < kSamples; ++t)
        if (agents.present[kSamples * a + t]) bounds.add(agents.x[kSamples * a + t], agents.y[kSamples * a + t]);
      reach_[a] = radius + circle(agents.sizes[2 * a], agents.sizes[2 * a + 1]);
      const double wide = reach_[a] + kSlack;
      low_x_[a] = bounds.low_x - wide, high_x_[a] = bounds.high_x + wide;
      low_y_[a] = bounds.low_y - wide, high_y_[a] = bounds.high_y + wide;
    }
    near_.reserve(agents.count);
  }
  // The agents whose rectangle meets that of a candidate's path, in their order.
  const std::vector<int>& near(const Bounds& path) {
    const int count = static_cast<int>(reach_.size());
    for (int a = 0; a < count; ++a)
      is_near_[a] = (path.low_x <= high_x_[a]) & (low_x_[a] <= path.high_x) & (path.low_y <= high_y_[a]) &
                    (low_y_[a] <= path.high_y);
    near_.clear();
    for (int a = 0; a < count; ++a)
      if (is_near_[a]) near_.push_back(a);
    return near_;
  }
  // The distance of two centres beyond which the circles of agent and candidate do not meet.
  double reach(int agent) const { return reach_[agent]; }

 private:
  std::vector<double> low_x_, low_y_, high_x_, high_y_, reach_;
  std::vector<long long> is_near_;
  std::vector<int> near_;
};

Box box_of(const Agents& agents, int a, int t) {
  const int at = kSamples * a + t;
  return {agents.x[at],
          agents.y[at],
          agents.cos[at],
          agents.sin[at],
          0.5 * agents.sizes[2 * a],
          0.5 * agents.sizes[2 * a + 1]};
}

// Rad, 0 straight ahead to pi straight behind, of a point seen from a pose.
double bearing(double x, double y, double cos, double sin, const Box& target) {
  const double dx = target.x - x, dy = target.y - y;
  return std::abs(std::atan2(dy * cos - dx * sin, dx * cos + dy * sin));
}

// The places of one candidate's box over time; directions and speeds from `complete` on.
struct Path {
  double x[kInstants], y[kInstants], cos[kInstants], sin[kInstants], speed[kInstants];
  bool is_complete = false;
  explicit Path(const double* centers) {
    for (int t = 0; t < kInstants; ++t) x[t] = centers[3 * t], y[t] = centers[3 * t + 1];
  }
  void complete(const double* states, const double* centers) {
    if (is_complete) return;
    for (int t = 0; t < kInstants; ++t) {
      cos[t] = std::cos(centers[3 * t + 2]), sin[t] = std::sin(centers[3 * t + 2]);
      speed[t] = std::hypot(states[kStateSize * t + VX], states[kStateSize * t + VY]);
    }
    is_complete = true;
  }
};

// Whether some of the first `count` circles of two paths meet: a loop without branches, which is vectorised.
bool any_near(const double* x, const double* y, const double* other_x, const double* other_y, int count,
              double reach2) {
  long long near = 0;
  for (int t = 0; t < count; ++t) {
    const double dx = other_x[t] - x[t], dy = other_y[t] - y[t];
    near += dx * dx + dy * dy <= reach2;
  }
  return near > 0;
}

}  // namespace

void no_collision(const Candidates& ego, EgoBox box, const Agents& agents, FaultRule rule, bool whole, bool spare_first,
                  double* score) {
  Reaches reaches(agents, circle(box.length_m, box.width_m));
  std::fill(score, score + ego.count * kInstants, 1.0);
  for (int n = 0; n < ego.count; ++n) {
    const double* states = ego.states + n * kInstants * kStateSize;
    const bool* beside_counts = ego.beside_counts + n * kInstants;
    double* by_step = score + n * kInstants;
    const double* centers = ego.centers + 3 * n * kInstants;
    Path path(centers);
    Bounds reached;
    for (int t = 0; t < kInstants; ++t) reached.add(path.x[t], path.y[t]);
    for (const int a : reaches.near(reached)) {
      const double reach2 = reaches.reach(a) * reaches.reach(a);
      const int row = kSamples * a;
      if (!any_near(path.x, path.y, agents.x + row, agents.y + row, kInstants, reach2)) continue;
      path.complete(states, centers);
      bool judged = false, fault = false;  // of the present contact
      for (int t = 0; t < kInstants; ++t) {
        const Box ours{path.x[t], path.y[t], path.cos[t], path.sin[t], 0.5 * box.length_m, 0.5 * box.width_m};
        const Box other = box_of(agents, a, t);
        const double dx = other.x - ours.x, dy = other.y - ours.y;
        if (!agents.present[row + t] || dx * dx + dy * dy > reach2 || !touches(ours, other)) {
          judged = judged && whole;
          continue;
        }
        if (!judged) {
          judged = true;
          const double* state = states + kStateSize * t;
          const double cos = std::cos(state[HEADING]), sin = std::sin(state[HEADING]);
          const bool behind = bearing(state[X], state[Y], cos, sin, other) > rule.behind_rad;
          Box bumper = ours;
          bumper.x += ours.half_length * ours.cos, bumper.y += ours.half_length * ours.sin, bumper.half_length = 0.0;
          const bool standing = agents.fixed[a] || agents.speed[row + t] <= rule.stopped_mps;
          fault = path.speed[t] > rule.stopped_mps &&
                  (standing || (!behind && (touches(bumper, other) || beside_counts[t])));
          if (spare_first && t == 0) fault = false;
        }
        if (fault) by_step[t] = std::min(by_step[t], agents.fixed[a] ? kStaticPenalty : 0.0);
      }
    }
  }
}

void time_to_collision(const Candidates& ego, EgoBox box, const Agents& agents, double behind_rad, int last, bool whole,
                       bool at_contact, double* score) {
  Reaches reaches(agents, circle(box.length_m, box.width_m));
  const int steps = last + 1;
  constexpr int looks = sizeof(kLooks) / sizeof(kLooks[0]);
  double x[looks][kInstants], y[looks][kInstants];  // going straight on
  std::fill(score, score + ego.count, 1.0);
  for (int n = 0; n < ego.count; ++n) {
    const double* states = ego.states + n * kInstants * kStateSize;
    const bool* beside_counts = ego.beside_counts + n * kInstants;
    Path path(ego.centers + 3 * n * kInstants);
    path.complete(states, ego.centers + 3 * n * kInstants);
    Bounds reached;
    for (int look = 0; look < looks; ++look)
      for (int t = 0; t < steps; ++t) {
        const double way = kDtS * kLooks[look] * path.speed[t];
        x[look][t] = path.x[t] + way * path.cos[t], y[look][t] = path.y[t] + way * path.sin[t];
        reached.add(x[look][t], y[look][t]);
      }
    for (const int a : reaches.near(reached)) {
      if (!(score[n] > 0.0)) break;
      const double reach2 = reaches.reach(a) * reaches.reach(a);
      const int row = kSamples * a;
      bool near = false;
      for (int look = 0; look < looks && !near; ++look)
        near = any_near(x[look], y[look], agents.x + row + kLooks[look], agents.y + row + kLooks[look], steps, reach2);
      if (!near) continue;
      int before = -kSamples;  // step of the contact before
      for (int t = 0; t < steps && score[n] > 0.0; ++t) {
        if (path.speed[t] < kStanding) continue;
        for (int look = 0; look < looks; ++look) {
          const int sample = t + kLooks[look];
          const Box ours{x[look][t], y[look][t], path.cos[t], path.sin[t], 0.5 * box.length_m, 0.5 * box.width_m};
          const Box other = box_of(agents, a, sample);
          const double dx = other.x - ours.x, dy = other.y - ours.y;
          if (!agents.present[row + sample] || dx * dx + dy * dy > reach2 || !touches(ours, other)) continue;
          const bool first = before < 0 || (!whole && t > before + 1);
          before = t;
          if (!first) continue;
          const double* state = states + kStateSize * t;
          const double cos = std::cos(state[HEADING]), sin = std::sin(state[HEADING]);
          const double way = at_contact ? kDtS * kLooks[look] * path.speed[t] : 0.0;
          const double angle = bearing(state[X] + way * cos, state[Y] + way * sin, cos, sin, other);
          if (angle < kAhead || (beside_counts[t] && angle <= behind_rad)) score[n] = 0.0;
        }
      }
    }
  }
}

void agent_gaps(const double* centers, int candidates, int instants, const long long* samples, EgoBox box,
                const Agents& agents, double most_m, double* gaps) {
  Reaches reaches(agents, circle(box.length_m, box.width_m) + most_m);
  std::fill(gaps, gaps + candidates * instants, most_m);
  for (int n = 0; n < candidates; ++n) {
    const double* poses = centers + 3 * n * instants;
    Bounds reached;
    for (int k = 0; k < instants; ++k) reached.add(poses[3 * k], poses[3 * k + 1]);
    for (const int a : reaches.near(reached)) {
      const double reach2 = reaches.reach(a) * reaches.reach(a);
      for (int k = 0; k < instants; ++k) {
        const int sample = static_cast<int>(samples[k]);
        if (!agents.present[kSamples * a + sample]) continue;
        const double dx = agents.x[kSamples * a + sample] - poses[3 * k],
                     dy = agents.y[kSamples * a + sample] - poses[3 * k + 1];
        if (dx * dx + dy * dy > reach2) continue;
        const double heading = poses[3 * k + 2];
        const Box ours{poses[3 * k],      poses[3 * k + 1],   std::cos(heading),
                       std::sin(heading), 0.5 * box.length_m, 0.5 * box.width_m};
        double& gap = gaps[n * instants + k];
        gap = std::min(gap, std::max(separation(ours, box_of(agents, a, sample)), 0.0));
      }
    }
  }
}

long long first_fault(const double* centers, const double* rear_axles, const bool* moving, int samples, EgoBox box,
                      const double* others, const double* sizes, int agents, double behind_rad) {
  const double radius = circle(box.length_m, box.width_m);
  long long found = -1;
  int when = samples;
  for (int a = 0; a < agents; ++a) {
    const double reach = radius + circle(sizes[2 * a], sizes[2 * a + 1]);
    for (int t = 0; t < when; ++t) {
      const double *ours = centers + 3 * t, *its = others + 3 * (static_cast<long long>(a) * samples + t);
      const double dx = its[0] - ours[0], dy = its[1] - ours[1];
      if (dx * dx + dy * dy > reach * reach) continue;
      const Box ego{ours[0], ours[1], std::cos(ours[2]), std::sin(ours[2]), 0.5 * box.length_m, 0.5 * box.width_m};
      const Box other{its[0], its[1], std::cos(its[2]), std::sin(its[2]), 0.5 * sizes[2 * a], 0.5 * sizes[2 * a + 1]};
      if (!touches(ego, other)) continue;
      const double* rear = rear_axles + 3 * t;
      if (moving[t] && bearing(rear[0], rear[1], std::cos(rear[2]), std::sin(rear[2]), other) <= behind_rad)
        found = static_cast<long long>(a) * samples + t, when = t;
      break;
    }
  }
  return found;
}

}  // namespace reflectdrive
