#pragma once
// What the parts of `flashcore profile` share.

#include <optional>
#include <string>
#include <vector>

#include "cli/common.h"
#include "lab/diagnose/gather.h"

namespace flashcore::cli {

struct ProfileArguments {
  Common common;
  std::string arch, key, ncu, counters, nvdisasm;
  std::vector<std::string> metrics;
  bool emulate = false, planted = false, sass = false;
  bool gives_seconds = false, gives_seed = false;
  double seconds = 1;
  std::uint64_t seed = 1;
};

// Of one profile: bottlenecks, what is lost, the table of targets.
void print_profile(Console& console, const ProfileFacts& facts, const Profile& profile);
// flashcore profile --planted. Returns the exit code.
int profile_planted(const ProfileArguments& options, const DeviceInfo& device);
GatherOptions gather_options(const ProfileArguments& options, const DeviceInfo& device, Console& console);

}  // namespace flashcore::cli
