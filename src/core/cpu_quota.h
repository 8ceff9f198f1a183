#pragma once
#include <filesystem>
#include <optional>

namespace flashcore {

// Cores' worth of time that control groups leave this process (cpu.max, or cpu.cfs_quota_us of version 1), the least of
// its own group and those around it; none where nothing limits it. A container with a quota of 2 cores on a machine of
// 64 sees all 64 in its affinity, and 64 threads would use up a period's time at once and then all wait.
// `root` replaces / in tests.
std::optional<double> cpu_quota(const std::filesystem::path& root = "/");

}  // namespace flashcore
