#pragma once
// What a run of `check --neighbours` was and found: one row for each sequence, with every batch that it was put into,
// so that each can be run again alone.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "device/device.h"
#include "lab/verify/neighbours.h"

namespace flashcore {

inline constexpr int kMostNeighbourhoods = 10'000'000;  // of a run

// Of one sequence: its kernel is compiled once for all of them. A run of `asked` has neighbour_cases() sequences.
inline constexpr std::int64_t kNeighboursOfOneSequence = 10;
std::int64_t neighbour_cases(std::int64_t asked);
int neighbourhoods_of_case(std::int64_t index, std::int64_t asked);

struct NeighbourRow {
  std::uint64_t index = 0;  // of the case, for random_neighbours()
  NeighbourCase drawn;
  NeighbourVerdict verdict;
};

struct NeighbourRun {
  DeviceInfo device;
  std::uint64_t seed = 1;
  std::int64_t asked = 0, not_drawn = 0;  // neighbourhoods; not drawn: no family promises anything of what was drawn
  std::string candidate;                  // the only one; empty: what batch_invariant_choice() picks
  double wall_seconds = 0;
  std::vector<NeighbourRow> rows;  // in order
};

// {"schema": "flashcore.neighbours/1", ...}: counts of neighbourhoods by family, and the rows.
nlohmann::json neighbours_json(const NeighbourRun& run);

}  // namespace flashcore
