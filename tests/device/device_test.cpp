#include "device/device.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "device/cuda/cuda_device.h"
#include "temporary_folder.h"

namespace flashcore {
namespace {

ErrorKind kind_of(const std::function<void()>& action, const std::string& word) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
    return error.kind();
  }
  ADD_FAILURE() << "nothing was thrown";
  return ErrorKind::kInternal;
}

TEST(OpenDevice, UnknownWordsAreBadInput) {
  for (const char* name : {"gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1x", "CPU", "emulators", "Emulator"})
    EXPECT_EQ(kind_of([&] { open_device(name); }, "cpu, cuda"), ErrorKind::kBadInput) << name;
}

TEST(OpenDevice, TheCpuIsAlwaysThere) {
  EXPECT_EQ(open_device("cpu")->info().limits.kind, DeviceKind::kCpu);
  EXPECT_EQ(open_device("")->info().limits.kind, cuda::cuda_device_count() > 0 ? DeviceKind::kCuda : DeviceKind::kCpu);
}

TEST(OpenDevice, AnAbsentGpuIsTheEnvironment) {
  EXPECT_EQ(kind_of([] { open_device(cuda::cuda_device_count() > 0 ? "cuda:999" : "cuda"); }, "cuda"),
            ErrorKind::kEnvironment);
}

TEST(Limits, OfEveryKnownArchitecture) {
  for (const std::string& arch : known_archs()) {
    const DeviceLimits limits = limits_of_arch(arch);
    EXPECT_EQ(limits.kind, DeviceKind::kCuda);
    EXPECT_EQ("sm_" + std::to_string(limits.arch), arch);
    EXPECT_EQ(limits.registers_per_multiprocessor, 65536);
    EXPECT_EQ(limits.max_threads_per_block, 1024);
    EXPECT_EQ(limits.shared_bytes_per_multiprocessor - limits.shared_bytes_per_block, 1024)
        << "what the system keeps of each block";
    EXPECT_GT(limits.l2_bytes, 0);
  }
  EXPECT_EQ(limits_of_arch("sm_80").shared_bytes_per_block, 166912);
  EXPECT_EQ(limits_of_arch("sm_86").shared_bytes_per_block, 101376);
  EXPECT_EQ(limits_of_arch("sm_90a").shared_bytes_per_block, 232448);
  EXPECT_EQ(limits_of_arch("90").multiprocessors, 132);
  EXPECT_EQ(limits_of_arch("sm_120").max_threads_per_multiprocessor, 1536);
}

// Of one architecture, and not one GPU.
TEST(Limits, OfAModelThatIsKnown) {
  const DeviceLimits h100 = limits_of_model("sm_90", "h100"), h200 = limits_of_model("sm_90", "h200");
  EXPECT_EQ(limits_of_arch("sm_90").dram_peak_gbps, 0);
  EXPECT_NEAR(h100.dram_peak_gbps, 3352, 1);
  EXPECT_NEAR(h200.dram_peak_gbps, 4917, 1);
  EXPECT_EQ(h200.clock_mhz, 1980);
  EXPECT_EQ(limits_of_model("sm_90a", "h100pcie").multiprocessors, 114);
  // A key that is not known, or of another architecture, adds nothing.
  EXPECT_EQ(limits_of_model("sm_90", "mine").multiprocessors, 132);
  EXPECT_EQ(limits_of_model("sm_90", "mine").dram_peak_gbps, 0);
  EXPECT_EQ(limits_of_model("sm_80", "h200").multiprocessors, 108);
}

TEST(Limits, UnknownArchitecturesListTheKnown) {
  for (const char* arch : {"", "sm_", "sm_81", "sm_9", "hopper", "sm_90x"})
    EXPECT_EQ(kind_of([&] { limits_of_arch(arch); }, "sm_80, sm_86"), ErrorKind::kBadInput) << arch;
}

TEST(Words, OfRegimesAndConditions) {
  for (const Regime regime : {Regime::kGraph, Regime::kCold, Regime::kWarm})
    EXPECT_EQ(parse_regime(to_string(regime)), regime);
  for (const Condition condition : {Condition::kBurst, Condition::kSustained})
    EXPECT_EQ(parse_condition(to_string(condition)), condition);
  EXPECT_EQ(kind_of([] { parse_regime("hot"); }, "graph, cold or warm"), ErrorKind::kBadInput);
  EXPECT_EQ(kind_of([] { parse_condition("hot"); }, "burst or sustained"), ErrorKind::kBadInput);
}

TEST(Json, KeepsEveryFact) {
  Artifact artifact;
  artifact.symbol = "s", artifact.arch = "sm_80", artifact.code_hash = "h", artifact.warnings = {"w1", "w2"};
  artifact.registers = 1, artifact.spill_store_bytes = 2, artifact.spill_load_bytes = 3, artifact.stack_bytes = 4;
  artifact.static_shared_bytes = 5, artifact.dynamic_shared_bytes = 6, artifact.barriers = 7,
  artifact.threads_per_block = 8;
  artifact.compiler = "NVRTC 13.0", artifact.compile_ms = 9.5, artifact.from_cache = true,
  artifact.cubin = "not part of it";
  nlohmann::json json = artifact;
  EXPECT_FALSE(json.dump().find("not part of it") != std::string::npos);
  EXPECT_EQ(nlohmann::json(json.get<Artifact>()), json);
  EXPECT_EQ(json.size(), 15u);
  const EnvironmentReading reading{1, 2, 3, 4, "none"};
  json = reading;
  EXPECT_EQ(json.get<EnvironmentReading>().temperature_c, 4);
  EXPECT_EQ(nlohmann::json(json.get<EnvironmentReading>()), json);
  const Ceilings ceilings{1, 2, 3, 4, 5};
  json = ceilings;
  EXPECT_EQ(json.get<Ceilings>().empty_launch_us, 5);
  EXPECT_EQ(nlohmann::json(json.get<Ceilings>()), json);
}

Finding find(const std::vector<Finding>& findings, const std::string& item) {
  const auto found =
      std::find_if(findings.begin(), findings.end(), [&](const Finding& finding) { return finding.item == item; });
  if (found != findings.end()) return *found;
  ADD_FAILURE() << "no finding about " << item;
  return {};
}

TEST(Survey, NamesTheFixOfWhatIsMissing) {
  const auto findings = survey_environment();
  for (const Finding& finding : findings) {
    EXPECT_FALSE(finding.item.empty());
    EXPECT_FALSE(finding.detail.empty()) << finding.item;
    EXPECT_EQ(finding.fix.empty(), finding.present) << finding.item;
  }
  for (const char* item : {"NVIDIA driver", "NVRTC", "NVML", "compile cache", "CPU cores"}) find(findings, item);
}

TEST(Survey, AnUnwritableCacheShows) {
  const test::TemporaryFolder folder;
  {
    const test::ScopedVariable cache("FLASHCORE_CACHE", (folder.path() / "new").string());
    EXPECT_TRUE(find(survey_environment(), "compile cache").present);
    EXPECT_TRUE(std::filesystem::is_empty(folder.path() / "new")) << "the probe stayed";
  }
  std::ofstream(folder.path() / "file") << "in the way";
  const test::ScopedVariable cache("FLASHCORE_CACHE", (folder.path() / "file/cache").string());
  EXPECT_FALSE(find(survey_environment(), "compile cache").present);
}

}  // namespace
}  // namespace flashcore
