#include "lab/conformance.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <regex>
#include <set>

#include "core/error.h"
#include "core/files.h"
#include "device/compiler.h"
#include "device/emulator/emulator_compiler.h"
#include "device/emulator/emulator_device.h"
#include "kernels/embedded.h"

namespace flashcore {
namespace {

// Names of the functions and types that a header of ptx/ gives to kernels. Overloads count once.
std::set<std::string> names_of(const std::string& text) {
  std::set<std::string> names;
  static const std::regex function(R"(\nFC_DEVICE\s+(?:[\w:]+\s+)+(\w+)\s*\()"),
      type(R"(\nstruct (?:alignas\(\d+\) )?(\w+) \{)");
  for (const std::regex& pattern : {function, type}) {
    for (std::sregex_iterator it(text.begin(), text.end(), pattern), end; it != end; ++it) names.insert((*it)[1]);
  }
  return names;
}

TEST(PtxConformance, EveryPtxFunctionHasAMicroTestAndAnEmulation) {
  const std::string& tests = device_sources().at("conformance/kernel.cuh");
  int seen = 0;
  for (const auto& [path, text] : device_sources()) {
    if (!path.starts_with("ptx/")) continue;
    const auto emulated = emulator::embedded_emulator_sources().find(path);
    ASSERT_NE(emulated, emulator::embedded_emulator_sources().end()) << "src/device/emulator/" << path << " is missing";
    const std::set<std::string> ours = names_of(std::string(emulated->second));
    for (const std::string& name : names_of(text)) {
      ++seen;
      EXPECT_TRUE(ours.contains(name)) << "src/device/emulator/" << path << " lacks " << name;
      // A plain vector type is what v4 loads return.
      if (name == "Vector4") continue;
      EXPECT_TRUE(std::regex_search(tests, std::regex("ptx::" + name + "\\b")))
          << "kernels/" << path << ": " << name << " has no micro-test in kernels/conformance/kernel.cuh";
    }
  }
  EXPECT_GT(seen, 40);
}

TEST(PtxConformance, EveryMicroTestIsInTheTable) {
  const std::string& tests = device_sources().at("conformance/kernel.cuh");
  static const std::regex test(R"(\nstruct (\w+) \{\n  FC_DEVICE static void run)");
  int seen = 0;
  for (std::sregex_iterator it(tests.begin(), tests.end(), test), end; it != end; ++it, ++seen) {
    const std::string name = (*it)[1];
    EXPECT_TRUE(std::any_of(conformance_tests().begin(), conformance_tests().end(), [&](const ConformanceTest& t) {
      return std::string(t.type).substr(0, name.size()) == name;
    })) << name;
  }
  EXPECT_GT(seen, 15);
}

TEST(PtxConformance, TheEmulatorDoesWhatTheHardwareDid) {
  const ConformanceOutputs recorded = recorded_conformance();
  const ConformanceOutputs outputs = run_conformance(*open_emulator());
  EXPECT_EQ(outputs.size(), conformance_tests().size());
  if (recorded.empty())
    GTEST_SKIP() << "no recording of these micro-tests: flashcore check --conformance --device cuda --json "
                    "results/h200/conformance.json";
  for (const ConformanceResult& result : compare_conformance(outputs, recorded)) {
    EXPECT_TRUE(result.compared) << result.test;
    EXPECT_EQ(result.difference, "") << result.test;
  }
}

// Twice the same bits, whatever the order of threads and copies.
TEST(PtxConformance, TheEmulatorIsDeterministic) {
  const auto device = open_emulator();
  EXPECT_EQ(run_conformance(*device), run_conformance(*device));
}

TEST(PtxConformance, ADifferenceIsFoundAndATestWithoutRecordingIsSaid) {
  const ConformanceOutputs outputs = {{"ex2", {0x3f800000u, 0x3f800000u}}, {"fma", {1, 2}}, {"max", {1}}};
  ConformanceOutputs other = outputs;
  other["ex2"][1] += 4;
  other["fma"][1] += 1;
  other.erase("max");
  const auto results = compare_conformance(outputs, other);
  ASSERT_EQ(results.size(), 3u);
  EXPECT_EQ(results[0].difference, "");  // within the tolerance of ex2
  EXPECT_NE(results[1].difference.find("word 1"), std::string::npos);
  EXPECT_FALSE(results[2].compared);
  other["ex2"][1] += 100;
  EXPECT_NE(compare_conformance(outputs, other)[0].difference, "");
}

TEST(PtxConformance, ARecordingComesBack) {
  const ConformanceOutputs outputs = {{"ex2", {0, 0xffffffffu, 0x12345678u}}};
  const nlohmann::json document = conformance_json({}, outputs);
  EXPECT_EQ(parse_conformance(document), outputs);
  nlohmann::json stale = document;
  stale["tests_hash"] = "other";
  EXPECT_TRUE(parse_conformance(stale).empty());
  EXPECT_THROW(parse_conformance({{"schema", "other"}}), Error);
}

TEST(PtxConformance, TheMicroTestsCompileForTheHardware) {
  std::unique_ptr<Compiler> compiler;
  try {
    compiler = open_compiler();
  } catch (const Error& e) {
    GTEST_SKIP() << e.what();
  }
  for (const ConformanceTest& test : conformance_tests()) {
    const KernelSource kernel{"conformance/kernel.cuh",
                              fmt::format("flashcore::conformance::conform<flashcore::conformance::{}>", test.type),
                              40960,
                              128,
                              {}};
    const Artifact artifact = compiler->compile(kernel, device_sources(), test.hopper ? "sm_90a" : "sm_80");
    EXPECT_EQ(artifact.spill_store_bytes, 0) << test.name;
    EXPECT_TRUE(artifact.warnings.empty()) << test.name << ": " << artifact.warnings[0];
  }
}

}  // namespace
}  // namespace flashcore
