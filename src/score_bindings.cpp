// Bindings of the driving score: simulation, collisions, areas, drivable space and comfort of N candidates.

#include "areas.hpp"
#include "bindings.hpp"
#include "comfort.hpp"
#include "simulate.hpp"

namespace reflectdrive {
namespace {

// States (N, 41, 11), centers (N, 41, 3), beside_counts (N, 41).
using CandidateArrays = std::tuple<Doubles, Doubles, Flags>;

Candidates candidates_of(const CandidateArrays& arrays) {
  const auto& [states, centers, beside_counts] = arrays;
  const int count = states.check("states", {kAny, kInstants, kStateSize}).size(0);
  centers.check("centers", {count, kInstants, 3}), beside_counts.check("beside_counts", {count, kInstants});
  return {count, states.data(), centers.data(), beside_counts.data()};
}

// Centre poses (B, 3), length_m, width_m, and ahead_m of the rear axle.
using BoxArrays = std::tuple<Doubles, double, double, double>;

AreaBoxes boxes_of(const BoxArrays& arrays) {
  const auto& [centers, length_m, width_m, ahead_m] = arrays;
  const int count = centers.check("centers", {kAny, 3}).size(0);
  return {centers.data(), count, length_m, width_m, ahead_m};
}

// Starts and stops (E, 2) of edges, their bits (E, words); the frame (5), rows and columns of a grid.
using EdgeArrays = std::tuple<Doubles, Doubles, Words, Doubles, int, int>;

AreaEdges edges_of(const EdgeArrays& arrays) {
  const Doubles &starts = std::get<0>(arrays), &stops = std::get<1>(arrays);
  const Words& bits = std::get<2>(arrays);
  const int count = starts.check("starts", {kAny, 2}).size(0);
  stops.check("stops", {count, 2}), bits.check("bits", {count, kAny});
  return {starts.data(), stops.data(), bits.data(), count, bits.size(1)};
}

AreaGrid grid_of_edges(const EdgeArrays& arrays) {
  const double* frame = std::get<3>(arrays).check("frame", {5}).data();
  const int rows = std::get<4>(arrays), columns = std::get<5>(arrays);
  if (rows <= 0 || columns <= 0) throw std::invalid_argument("the grid has no cells");
  return {frame[0], frame[1], frame[2], frame[3], frame[4], rows, columns};
}

// Frame (5) and columns of a grid; references (words, cells), first (cells + 1), edges (6, E), edge_bits (words, E);
// reach_m. See `AreaCells`.
using CellArrays = std::tuple<Doubles, int, Words, Integers, Doubles, Words, double>;

AreaCells cells_of(const CellArrays& arrays) {
  const auto& [frame, columns, references, first, edges, edge_bits, reach_m] = arrays;
  const double* at = frame.check("frame", {5}).data();
  references.check("references", {kAny, kAny});
  const int words = references.size(0), cells = references.size(1), pairs = edges.check("edges", {6, kAny}).size(1);
  first.check("first", {cells + 1}), edge_bits.check("edge_bits", {words, pairs});
  if (columns <= 0 || cells % columns != 0) throw std::invalid_argument("columns does not divide the cells");
  return {at[0],
          at[1],
          at[2],
          at[3],
          at[4],
          cells / columns,
          columns,
          words,
          cells,
          pairs,
          references.data(),
          first.data(),
          edges.data(),
          edge_bits.data(),
          reach_m};
}

// Bits of lanes, of the route's lanes, of drivable polygons and of intersections, each (words).
using KindArrays = std::tuple<Words, Words, Words, Words>;

AreaKinds kinds_of(const KindArrays& arrays, int words) {
  const auto& [lanes, route, drivable, intersections] = arrays;
  lanes.check("lanes", {words}), route.check("route", {words});
  drivable.check("drivable", {words}), intersections.check("intersections", {words});
  return {lanes.data(), route.data(), drivable.data(), intersections.data()};
}

void bind_simulation(nanobind::module_& module) {
  bind(module, "interpolate_plans", [](Doubles plans, Doubles knot_times, Doubles times, DoublesOut reference) {
    const int cars = plans.check("plans", {kAny, kAny, 3}).size(0), poses = plans.size(1);
    knot_times.check("knot_times", {poses + 1}), times.check("times", {kInstants});
    reference.check("reference", {cars, kInstants, 3});
    for (Py_ssize_t n = 0; n < cars; ++n)
      interpolate_plan(plans.data() + n * poses * 3, poses, knot_times.data(), times.data(),
                       reference.data() + n * kInstants * 3);
  });

  bind(module, "follow",
       [](Doubles reference, Doubles motion, Doubles speed_fit, double wheel_base_m, double max_steering_rad,
          DoublesOut states) {
         const int cars = reference.check("reference", {kAny, kInstants, 3}).size(0);
         const int motions = motion.check("motion", {kAny, kMotionSize}).size(0);
         if (motions != 1) motion.check("motion", {cars, kMotionSize});
         speed_fit.check("speed_fit", {kSteps, kSteps}), states.check("states", {cars, kInstants, kStateSize});
         for (Py_ssize_t n = 0; n < cars; ++n)
           follow(reference.data() + n * kInstants * 3, motion.data() + (motions == 1 ? 0 : n) * kMotionSize,
                  speed_fit.data(), {wheel_base_m, max_steering_rad}, states.data() + n * kInstants * kStateSize);
       });

  bind<KeepLock>(module, "fit_curvatures", [](Doubles turns, Doubles distances, DoublesOut curvatures) {
    const int cars = turns.check("turns", {kAny, kSteps}).size(0);
    distances.check("distances", {cars, kSteps}), curvatures.check("curvatures", {cars, kSteps});
    for (Py_ssize_t n = 0; n < cars; ++n)
      fit_curvatures(turns.data() + n * kSteps, distances.data() + n * kSteps, curvatures.data() + n * kSteps);
  });

  bind(module, "comfort_flags",
       [](Doubles states, Doubles weights, Integers ranges, int point, double ahead_m, Doubles low, Doubles high,
          double rounding, FlagsOut flags) {
         const int cars = states.check("states", {kAny, kAny, kStateSize}).size(0), samples = states.size(1);
         const int blocks = ranges.check("ranges", {5, kAny, 2}).size(1);
         weights.check("weights", {5, samples, Py_ssize_t{blocks} * kComfortBlock});
         low.check("low", {6}), high.check("high", {6}), flags.check("flags", {cars, 6});
         if (blocks * kComfortBlock < samples) throw std::invalid_argument("ranges has too few blocks");
         for (int i = 0; i < 10 * blocks; ++i)
           if (ranges.data()[i] < 0 || ranges.data()[i] > samples)
             throw std::invalid_argument("ranges leaves the samples");
         const ComfortFilters filters{samples, blocks, weights.data(), ranges.data(), rounding};
         comfort_flags(states.data(), cars, filters, static_cast<ComfortPoint>(point), ahead_m, low.data(), high.data(),
                       flags.data());
       });
}

void bind_contacts(nanobind::module_& module) {
  bind(module, "no_collision",
       [](const CandidateArrays& candidates, const BoxNumbers& box, const AgentArrays& agents, const FaultNumbers& rule,
          bool whole, bool spare_first, DoublesOut score) {
         const Candidates ego = candidates_of(candidates);
         score.check("score", {ego.count, kInstants});
         no_collision(ego, as<EgoBox>(box), agents_of(agents), as<FaultRule>(rule), whole, spare_first, score.data());
       });

  bind(module, "time_to_collision",
       [](const CandidateArrays& candidates, const BoxNumbers& box, const AgentArrays& agents, double behind_rad,
          int last, bool whole, bool at_contact, DoublesOut score) {
         const Candidates ego = candidates_of(candidates);
         score.check("score", {ego.count});
         if (last < 0 || last >= kInstants) throw std::invalid_argument("last is not 0 to 40");
         time_to_collision(ego, as<EgoBox>(box), agents_of(agents), behind_rad, last, whole, at_contact, score.data());
       });

  bind(module, "agent_gaps",
       [](Doubles centers, Integers samples, const BoxNumbers& box, const AgentArrays& agents, double most_m,
          DoublesOut gaps) {
         const int candidates = centers.check("centers", {kAny, kAny, 3}).size(0), instants = centers.size(1);
         samples.check("samples", {instants}), gaps.check("gaps", {candidates, instants});
         for (int k = 0; k < instants; ++k)
           if (samples.data()[k] < 0 || samples.data()[k] >= kSamples)
             throw std::invalid_argument("samples is not 0 to 50");
         agent_gaps(centers.data(), candidates, instants, samples.data(), as<EgoBox>(box), agents_of(agents), most_m,
                    gaps.data());
       });

  bind(module, "red_light_contacts",
       [](Doubles centers, double length_m, double width_m, Doubles ring, Flags red, DoublesOut score) {
         const int candidates = centers.check("centers", {kAny, kInstants, 3}).size(0);
         const int vertices = ring.check("ring", {kAny, 2}).size(0);
         red.check("red", {kInstants}), score.check("score", {candidates});
         if (vertices < 3) throw std::invalid_argument("ring has fewer than 3 points");
         red_light_contacts(centers.data(), candidates, length_m, width_m, ring.data(), vertices, red.data(),
                            score.data());
       });

  bind(module, "driving_direction", [](Doubles centers, Flags wrong, DoublesOut score) {
    const int candidates = centers.check("centers", {kAny, kInstants, 3}).size(0);
    wrong.check("wrong", {candidates, kInstants}), score.check("score", {candidates});
    driving_direction(centers.data(), candidates, wrong.data(), score.data());
  });
}

void bind_areas(nanobind::module_& module) {
  bind(module, "box_points", [](const BoxArrays& arrays, DoublesOut points) {
    const AreaBoxes boxes = boxes_of(arrays);
    points.check("points", {boxes.count, 6, 2});
    box_points(boxes, points.data());
  });

  bind(module, "count_edge_cells", [](const EdgeArrays& arrays, IntegersOut first) {
    const AreaGrid grid = grid_of_edges(arrays);
    first.check("first", {grid.cells() + 1});
    return count_edge_cells(edges_of(arrays), grid, first.data());
  });

  bind(module, "fill_edge_cells",
       [](const EdgeArrays& arrays, Integers first, DoublesOut edges_of_cells, WordsOut edge_bits) {
         const AreaEdges edges = edges_of(arrays);
         const AreaGrid grid = grid_of_edges(arrays);
         const long long cells = grid.cells(), pairs = first.check("first", {cells + 1}).data()[cells];
         edges_of_cells.check("edges", {6, pairs}), edge_bits.check("edge_bits", {edges.words, pairs});
         fill_edge_cells(edges, grid, first.data(), edges_of_cells.data(), edge_bits.data());
       });

  bind(module, "draw_references", [](const EdgeArrays& arrays, WordsOut references) {
    const AreaEdges edges = edges_of(arrays);
    const AreaGrid grid = grid_of_edges(arrays);
    references.check("references", {edges.words, grid.cells()});
    draw_references(edges, grid, references.data());
  });

  bind(module, "polygons_around", [](Doubles points, const CellArrays& arrays, WordsOut sets, FlagsOut uncertain) {
    const AreaCells index = cells_of(arrays);
    const int count = points.check("points", {kAny, 2}).size(0);
    sets.check("sets", {count, index.words}), uncertain.check("uncertain", {count});
    return polygons_around(index, points.data(), count, sets.data(), uncertain.data());
  });

  bind(module, "area_flags", [](Words sets, const KindArrays& kinds, bool road_known, FlagsOut flags) {
    const int boxes = sets.check("sets", {kAny, 6, kAny}).size(0), words = sets.size(2);
    flags.check("flags", {5, boxes});
    area_flags(sets.data(), boxes, words, kinds_of(kinds, words), road_known, flags.data());
  });

  bind(module, "area_flags_of_boxes",
       [](const BoxArrays& box_arrays, const CellArrays& cells, const KindArrays& kinds, bool road_known,
          FlagsOut flags, FlagsOut uncertain) {
         const AreaBoxes boxes = boxes_of(box_arrays);
         const AreaCells index = cells_of(cells);
         flags.check("flags", {5, boxes.count}), uncertain.check("uncertain", {boxes.count});
         return area_flags_of_boxes(index, boxes, kinds_of(kinds, index.words), road_known, flags.data(),
                                    uncertain.data());
       });
}

void bind_drivable(nanobind::module_& module) {
  bind(module, "edge_distances", [](Doubles x, Doubles y, Doubles edges, double reach_m, DoublesOut distances) {
    const int rows = x.check("x", {kAny}).size(0), columns = y.check("y", {kAny}).size(0);
    const int count = edges.check("edges", {kAny, 2, 2}).size(0);
    distances.check("distances", {rows, columns});
    edge_distances(x.data(), rows, y.data(), columns, edges.data(), count, reach_m, distances.data());
  });

  bind(module, "point_clearances", [](const GridArrays& grid, Doubles points, DoublesOut clearances) {
    const int count = points.check("points", {kAny, 2}).size(0);
    clearances.check("clearances", {count});
    point_clearances(grid_of(grid), points.data(), count, clearances.data());
  });

  bind(module, "box_clearances",
       [](const GridArrays& grid, Doubles poses, Doubles outline, bool is_likely, DoublesOut clearances) {
         const int boxes = poses.check("poses", {kAny, 3}).size(0),
                   points = outline.check("outline", {kAny, 2}).size(0);
         clearances.check("clearances", {boxes});
         (is_likely ? likely_box_distances : box_clearances)(grid_of(grid), poses.data(), boxes, outline.data(), points,
                                                             clearances.data());
       });
}

}  // namespace

void bind_scores(nanobind::module_& module) {
  bind_simulation(module);
  bind_contacts(module);
  bind_areas(module);
  bind_drivable(module);
}

}  // namespace reflectdrive
