#pragma once
// What a problem should take on a device, before anything runs: from measurements of it, or of its nearest neighbour.

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/modelled_time.h"
#include "lab/record/trial.h"

namespace flashcore {

// results/*/canonical.json as committed, by path. Made by cmake/embed.cmake.
const std::map<std::string_view, std::string_view>& embedded_results();

struct Expectation {
  std::optional<double> time_us;
  std::string basis;  // where the time comes from, in words; or why there is none
  // The device whose constants the family's model took, where it has none for this one.
  std::optional<std::string> carried_over_from;
  std::optional<double> floor_us;  // no honest time is below it
  std::string floor_basis;
};

// `stored`: the user's own trials, used first. `measured`: the ceilings of the device if it is here; otherwise those in
// the results that ship, and without either there is no floor. `modelled`: what the candidate's family says, for a
// problem that was not measured on such a device; without it a neighbour's time is scaled by the ratio of both floors.
// A time below the floor becomes the floor, and the basis says so.
Expectation expect_time(const PlacedProblem& problem, const std::string& candidate, const DeviceInfo& device,
                        const std::vector<Trial>& stored, const std::optional<Ceilings>& measured,
                        const std::optional<ModelledTime>& modelled = std::nullopt);

// The ceilings that the shipped results of such a device were held against; none if there are no results of it.
std::optional<Ceilings> shipped_ceilings(const std::string& device_key);
// Devices that the shipped results are of, sorted.
std::vector<std::string> shipped_device_keys();

}  // namespace flashcore
