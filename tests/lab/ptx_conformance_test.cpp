#include "lab/verify/conformance.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <regex>
#include <set>
#include <sstream>

#include "core/error.h"
#include "core/parallel.h"
#include "device/compiler.h"
#include "device/emulator/emulator_compiler.h"
#include "device/emulator/emulator_device.h"
#include "kernels/embedded.h"

namespace flashcore {

void PrintTo(const ConformanceTest& test, std::ostream* out) { *out << test.name; }

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

std::set<std::string> words_in(const std::string& text) {
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), {}};
}

TEST(PtxConformance, EveryPtxFunctionHasAMicroTestAndAnEmulation) {
  std::set<std::string> tested;
  for (const ConformanceTest& test : conformance_tests()) tested.merge(words_in(test.functions));
  std::size_t seen = 0;
  for (const auto& [path, text] : device_sources()) {
    if (!path.starts_with("ptx/")) continue;
    const auto emulated = emulator::embedded_emulator_sources().find(path);
    ASSERT_NE(emulated, emulator::embedded_emulator_sources().end()) << "src/device/emulator/" << path << " is missing";
    const std::set<std::string> ours = names_of(std::string(emulated->second));
    for (const std::string& name : names_of(text)) {
      EXPECT_TRUE(ours.contains(name)) << "src/device/emulator/" << path << " lacks " << name;
      if (name == "Vector4") continue;  // a plain struct: what v4 loads return
      ++seen;
      EXPECT_TRUE(tested.contains(name))
          << "kernels/" << path << ": " << name
          << " has no micro-test in src/kernels/conformance, or conformance_tests() does "
             "not say so";
      tested.erase(name);
    }
  }
  EXPECT_GE(seen, 55u);
  EXPECT_TRUE(tested.empty()) << *tested.begin() << " is in conformance_tests() and not in ptx/";
}

// The planted case: a header's new function, template or type is seen.
TEST(PtxConformance, NamesAreReadFromHeaders) {
  EXPECT_EQ(
      names_of("\nFC_DEVICE unsigned long long a_b(int x) {\ntemplate <int k>\nFC_DEVICE void c2() {}\nstruct D {\n"
               "struct alignas(64) E {\n  FC_DEVICE static D of() {\n// FC_DEVICE int no() {\n"),
      (std::set<std::string>{"a_b", "c2", "D", "E"}));
}

TEST(PtxConformance, EveryMicroTestIsInTheTableAndCallsWhatItTests) {
  static const std::regex definition(R"(\nstruct (\w+) \{\n  FC_DEVICE static void run)");
  std::set<std::string> listed;
  for (const ConformanceTest& test : conformance_tests()) {
    const std::string& text = conformance_sources().at(conformance_kernel(test).file);
    const std::string type = test.type.substr(0, test.type.find('<'));
    listed.insert(type);
    EXPECT_NE(text.find("\nstruct " + type + " {"), std::string::npos) << test.name;
    for (const std::string& name : words_in(test.functions)) {
      if (name == "TensorMap") continue;  // the parameters' type
      EXPECT_TRUE(std::regex_search(text, std::regex("ptx::" + name + "\\b")))
          << test.name << " does not call " << name;
    }
  }
  std::size_t defined = 0;
  for (const auto& [path, text] : conformance_sources()) {
    for (std::sregex_iterator it(text.begin(), text.end(), definition), end; it != end; ++it, ++defined)
      EXPECT_TRUE(listed.contains((*it)[1])) << path << ": " << (*it)[1] << " is not in conformance_tests()";
  }
  EXPECT_EQ(defined, listed.size());
}

class Replay : public ::testing::TestWithParam<ConformanceTest> {};

// What hardware gave, from results/h200/conformance.json. Under two orders of threads and of asynchronous work.
TEST_P(Replay, TheEmulatorDoesWhatTheHardwareDid) {
  const auto device = open_emulator();
  const std::vector<std::uint32_t> words = run_conformance_test(*device, GetParam());
  EXPECT_EQ(run_conformance_test(*device, GetParam()), words);
  const ConformanceResult result = compare_conformance_test(GetParam(), words, recorded_conformance());
  EXPECT_NE(result.conformity, Conformity::kDifferent) << result.note;
  if (result.conformity == Conformity::kNotRecorded)
    GTEST_SKIP() << GetParam().name << " " << result.note
                 << ": flashcore check --conformance --device cuda --record results/h200/conformance.json";
}
INSTANTIATE_TEST_SUITE_P(PtxConformance, Replay, ::testing::ValuesIn(conformance_tests()),
                         [](const auto& given) { return given.param.name; });

const ConformanceTest& test_named(const std::string& name) {
  for (const ConformanceTest& test : conformance_tests()) {
    if (test.name == name) return test;
  }
  throw std::out_of_range(name);
}

TEST(PtxConformance, ADifferenceIsFoundAndWhatIsNotRecordedIsSaid) {
  ConformanceRun run;
  run.outputs = {{"ex2", {0x3f800000u, 0x3f800000u}}, {"fma", {1, 2}}, {"max", {1}}, {"cvt_f32_f16", {1, 2, 3}}};
  run.failures = {{"rcp", "crashed with SIGSEGV"}};
  ConformanceRecording recording;
  for (const auto& [name, words] : run.outputs) recording.tests[name] = {conformance_hash(test_named(name)), words};
  const auto result_of = [&](const std::string& name) {
    for (const ConformanceResult& result : compare_conformance(run, recording)) {
      if (result.test == name) return result;
    }
    throw std::out_of_range(name);
  };
  EXPECT_EQ(result_of("fma").conformity, Conformity::kSame);
  EXPECT_EQ(result_of("rcp").conformity, Conformity::kDifferent);
  recording.tests["ex2"].words[1] += 4;  // within its tolerance
  EXPECT_EQ(result_of("ex2").conformity, Conformity::kSame);
  recording.tests["ex2"].words[1] += 100;
  EXPECT_EQ(result_of("ex2").conformity, Conformity::kDifferent);
  recording.tests["fma"].words[1] += 1;
  EXPECT_NE(result_of("fma").note.find("word 1"), std::string::npos);
  recording.tests["cvt_f32_f16"].words[2] += 1;
  EXPECT_NE(result_of("cvt_f32_f16").note.find("words 512 to 767"), std::string::npos);
  recording.tests["max"].hash = "of another text";
  EXPECT_EQ(result_of("max").conformity, Conformity::kNotRecorded);
  recording.tests.erase("max");
  EXPECT_EQ(result_of("max").conformity, Conformity::kNotRecorded);
}

TEST(PtxConformance, ARecordingComesBack) {
  ConformanceRun run;
  run.outputs = {{"ex2", {0, 0xffffffffu, 0x12345678u}}};
  run.failures = {{"rcp", "threw: illegal address"}};
  const nlohmann::json document = conformance_json(run);
  EXPECT_EQ(parse_conformance(document).tests.at("ex2").words, run.outputs.at("ex2"));
  EXPECT_EQ(document.at("failures").at("rcp"), "threw: illegal address");
  EXPECT_THROW(parse_conformance({{"schema", "other"}}), Error);
  nlohmann::json broken = document;
  broken["outputs"]["ex2"]["words"] = "zzzzzzzz";
  EXPECT_THROW(parse_conformance(broken), Error);
}

TEST(PtxConformance, TheMicroTestsCompileForTheHardware) {
  std::unique_ptr<Compiler> compiler;
  try {
    compiler = open_compiler();
  } catch (const Error& e) {
    GTEST_SKIP() << e.what();
  }
  const std::vector<ConformanceTest>& tests = conformance_tests();
  parallel_for(static_cast<std::int64_t>(tests.size()), hardware_threads(), [&](std::int64_t i) {
    const ConformanceTest& test = tests[static_cast<std::size_t>(i)];
    const Artifact artifact = compiler->compile(conformance_kernel(test), conformance_sources(),
                                                conformance_arch(test, limits_of_arch("sm_90")));
    EXPECT_EQ(artifact.spill_store_bytes, 0) << test.name;
    EXPECT_TRUE(artifact.warnings.empty()) << test.name << ": " << artifact.warnings[0];
  });
}

}  // namespace
}  // namespace flashcore
