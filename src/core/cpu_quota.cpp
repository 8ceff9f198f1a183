#include "core/cpu_quota.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>

namespace flashcore {
namespace {

namespace fs = std::filesystem;

std::optional<double> cores_of(double quota_us, double period_us) {
  if (!(quota_us > 0) || !(period_us > 0)) return std::nullopt;  // "max", and -1 of version 1
  return quota_us / period_us;
}

std::optional<double> read_number(const fs::path& file) {
  std::ifstream in(file);
  double value = 0;
  if (in >> value) return value;
  return std::nullopt;
}

std::optional<double> quota_in(const fs::path& folder) {
  // "max 100000" or "150000 100000"
  if (std::ifstream in(folder / "cpu.max"); in) {
    double quota = 0, period = 0;
    if (in >> quota >> period) return cores_of(quota, period);
  }
  const auto quota = read_number(folder / "cpu.cfs_quota_us"), period = read_number(folder / "cpu.cfs_period_us");
  return quota && period ? cores_of(*quota, *period) : std::nullopt;
}

bool names_cpu(const std::string& controllers) {
  std::istringstream in(controllers);
  for (std::string name; std::getline(in, name, ',');)
    if (name == "cpu") return true;
  return false;
}

}  // namespace

std::optional<double> cpu_quota(const fs::path& root) {
  std::optional<double> least;
  // hierarchy:controllers:path, and version 2 has no controllers
  std::ifstream groups(root / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (!controllers.empty() && !names_cpu(controllers)) continue;
    const fs::path mounts = root / "sys/fs/cgroup";
    const fs::path top = controllers.empty() ? mounts : mounts / controllers;
    // In a container the path may be the host's, of which only the top is mounted: folders that are not there say
    // nothing.
    fs::path below = fs::path(line.substr(second + 1)).relative_path();
    for (;; below = below.parent_path()) {
      if (const auto cores = quota_in(top / below)) least = std::min(least.value_or(*cores), *cores);
      if (below.empty()) break;
    }
  }
  return least;
}

}  // namespace flashcore
