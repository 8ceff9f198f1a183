// Which results go stale with which change: lab/record/freshness.h, kernels/source_hash.h.
#include "lab/record/freshness.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "kernels/derived_family.h"
#include "kernels/embedded.h"
#include "kernels/registry.h"
#include "kernels/source_hash.h"

namespace flashcore {
namespace {

// sm90_fwd under another name, for dispatch to like more or less than what is there.
class Sibling : public DerivedFamily {
 public:
  explicit Sibling(int preference, unsigned more_ctas = 0)
      : DerivedFamily(family_by_name("sm90_fwd")), preference_(preference), more_ctas_(more_ctas) {}
  std::string name() const override { return "sibling"; }
  std::string description() const override { return "sm90_fwd for tests"; }
  int preference(const Problem&, const DeviceLimits&) const override { return preference_; }
  Program program(const ConfigValues& c, const Problem& p, const DeviceLimits& l,
                  const ProblemLayouts& layouts) const override {
    Program program = DerivedFamily::program(c, p, l, layouts);
    program.steps.front().launch.grid.x += more_ctas_;
    return program;
  }

 private:
  int preference_;
  unsigned more_ctas_;
};

DeviceInfo hopper() {
  DeviceInfo device;
  device.limits = limits_of_arch("sm_90");
  device.key = "no table";
  device.id = "cuda:0";
  return device;
}

// Sizes that dispatch gives to sm90_fwd.
const PlacedProblem kProblem = PlacedProblem::parse("b2_h16_s3000_d128_bf16");

nlohmann::json row_of(const std::string& candidate, ChosenBy chosen_by) {
  const std::size_t colon = candidate.find(':');
  return {{"problem", kProblem.id()},
          {"device", hopper()},
          {"family", candidate.substr(0, colon)},
          {"config", colon == std::string::npos ? "" : candidate.substr(colon + 1)},
          {"chosen_by", chosen_by},
          {"source_hash", source_hash_of(candidate, kProblem, hopper().limits)}};
}
using State = Freshness::State;
State state_of(const nlohmann::json& row) { return freshness_of_row(row).state; }
// "" if it is not stale.
std::string why_stale(const nlohmann::json& row) {
  const Freshness judged = freshness_of_row(row);
  return judged.state == State::kStale ? judged.why : "";
}

nlohmann::json dispatched() {
  return row_of(dispatch_as_built(kProblem, hopper()).candidate.print(), ChosenBy::kDispatch);
}

TEST(Freshness, CommentsAndBlanksDecideNothing) {
  EXPECT_EQ(code_of("int  a; // one\n\n  /* two\n */ int b;\n"), code_of("int a;\nint b;"));
  EXPECT_NE(code_of("int a;"), code_of("int b;"));
  EXPECT_EQ(code_of("f(\"// kept /* */\"); // gone"), "f(\"// kept /* */\");");
  EXPECT_EQ(code_of("x = 1'000; // '\ny;"), "x = 1'000; y;");
  EXPECT_EQ(code_of("c = '\"'; // gone\nd = '\\''; // gone"), "c = '\"'; d = '\\'';");
  EXPECT_EQ(code_of("a;\n#define F(x) \\\n  g(x)\nb;\nc;"), "a;\n#define F(x) \\\ng(x)\n\nb; c;");
  EXPECT_NE(code_of("#if A\nb;\n#endif"), code_of("#if A b;\n#endif"));
}

TEST(Freshness, TheHashIsOfKernelConfigProblemAndDevice) {
  const DeviceLimits limits = hopper().limits;
  const std::string hash = source_hash_of("sm90_fwd", kProblem, limits);
  EXPECT_EQ(source_hash_of("sm90_fwd", kProblem, limits), hash);
  EXPECT_NE(source_hash_of("sm80_fwd", kProblem, limits), hash);
  EXPECT_NE(source_hash_of("sm90_fwd:block_n=64", kProblem, limits), hash);
  PlacedProblem other = kProblem;
  other.seqlen_kv += 1;
  EXPECT_NE(source_hash_of("sm90_fwd", other, limits), hash);
  other = kProblem;
  other.layout = Layout::kBshd;
  EXPECT_NE(source_hash_of("sm90_fwd", other, limits), hash);
  DeviceLimits smaller = limits;
  smaller.multiprocessors -= 18;
  EXPECT_NE(source_hash_of("sm90_fwd", kProblem, smaller), hash) << "a persistent grid is as large as the device";
  EXPECT_EQ(source_hash_of("no_such_family", kProblem, limits), source_hash());
}

// A row of a CPU is judged by that CPU, on whatever machine somebody asks.
TEST(Freshness, ACpusChoiceIsByTheTilesOfTheRowsDevice) {
  const PlacedProblem problem = PlacedProblem::parse("b1_h8_s512_d64_bf16");
  DeviceInfo with;
  with.limits.multiprocessors = 2;
  with.limits.amx = true;
  with.key = "no table";
  with.id = "cpu";
  DeviceInfo without = with;
  without.limits.amx = false;
  const auto row_on = [&](const DeviceInfo& device) {
    const Candidate chosen = dispatch_as_built(problem, device).candidate;
    return nlohmann::json{
        {"problem", problem.id()},          {"device", device},
        {"family", chosen.family->name()},  {"config", chosen.print().substr(chosen.print().find(':') + 1)},
        {"chosen_by", ChosenBy::kDispatch}, {"source_hash", source_hash(chosen, problem, device.limits)}};
  };
  nlohmann::json tiles = row_on(with), vectors = row_on(without);
  EXPECT_NE(tiles["config"], vectors["config"]);
  EXPECT_EQ(state_of(tiles), State::kSameText);
  EXPECT_EQ(state_of(vectors), State::kSameText);
  // Rows from before it was recorded: their ceilings tell.
  for (nlohmann::json* row : {&tiles, &vectors}) (*row)["device"]["limits"].erase("amx");
  EXPECT_NE(why_stale(tiles), "");
  tiles["device"]["ceilings"] = {{"matmul_tflops_16bit", 4.9}};
  vectors["device"]["ceilings"] = {{"matmul_tflops_16bit", 0.0}};
  EXPECT_EQ(state_of(tiles), State::kSameText);
  EXPECT_EQ(state_of(vectors), State::kSameText);
}

// The time of a CPU family is its threads' as well. What measures is not part of a candidate.
TEST(Freshness, OtherThreadsMakeTheRowsOfACpuStale) {
  Problem problem = Problem::parse("b1_h1_s64_d64_fp32");
  const auto hash_now = [&] { return cpu_source_hash("cpu_fwd", problem, all_sources()); };
  const std::string hash = hash_now();
  const auto with_a_line_more = [&](const std::string& path) {
    SourceMap sources = all_sources();
    sources.at(path) += "int another;\n";
    return cpu_source_hash("cpu_fwd", problem, sources);
  };
  for (const char* path : {"device/cpu/thread_pool.cpp", "device/cpu/thread_pool.h", "device/cpu/openmp.cpp",
                           "device/cpu/cpu_threads.cpp", "device/cpu/aligned_memory.h", "device/cpu/bf16_units.cpp",
                           "cpu_call.cpp", "cpu_dense.cpp", "cpu_fwd/forward.cpp", "core/band.h"})
    EXPECT_NE(with_a_line_more(path), hash) << path;
  // What only some problems run is of their rows alone.
  for (const auto& [path, id] :
       {std::pair("cpu_ragged.cpp", "b1_h1_s64_d64_fp32_raggedfull"),
        std::pair("cpu_fwd/forward_widened.cpp", "b1_h1_s64_d64_fp32_kve4m3"),
        std::pair("cpu_fwd/functions.cpp", R"({"id": "b1_h1_s64_d64_fp32", "score": "s * 2"})")}) {
    problem = Problem::parse("b1_h1_s64_d64_fp32");
    EXPECT_EQ(with_a_line_more(path), hash) << path;
    problem = Problem::parse(id);
    EXPECT_NE(with_a_line_more(path), hash_now()) << path;
  }
  problem = Problem::parse("b1_h1_s64_d64_fp32");
  for (const char* path : {"cpu_fwd/family.cpp", "sm80_fwd/kernel.cuh"})
    EXPECT_EQ(with_a_line_more(path), hash) << path;
  for (const char* path : {"device/cpu/ceilings.cpp", "device/cpu/cpu_device.cpp"})
    EXPECT_FALSE(all_sources().contains(path)) << path;
  EXPECT_FALSE(device_sources().contains("device/cpu/thread_pool.h")) << "no GPU kernel is compiled with it";
}

TEST(Freshness, OtherLaunchesOfTheSameKernelMakeItsRowsStale) {
  std::string hash;
  {
    const ScopedFamily family(std::make_unique<Sibling>(1));
    hash = source_hash_of("sibling", kProblem, hopper().limits);
  }
  const ScopedFamily family(std::make_unique<Sibling>(1, 1));
  EXPECT_NE(source_hash_of("sibling", kProblem, hopper().limits), hash);
}

TEST(Freshness, AFamilyMoreMakesStaleWhatDispatchWouldNowGiveIt) {
  const nlohmann::json chosen = dispatched(), named = row_of("sm80_fwd", ChosenBy::kCaller);
  EXPECT_EQ(state_of(chosen), State::kSameText);
  {
    const ScopedFamily unloved(std::make_unique<Sibling>(1));
    EXPECT_EQ(state_of(chosen), State::kSameText);
    EXPECT_EQ(state_of(named), State::kSameText);
  }
  const ScopedFamily loved(std::make_unique<Sibling>(1000));
  const Freshness judged = freshness_of_row(chosen);
  EXPECT_EQ(judged.state, State::kStale);
  EXPECT_NE(judged.why.find("dispatch now chooses sibling"), std::string::npos) << judged.why;
  EXPECT_EQ(state_of(named), State::kSameText) << "who named a candidate gets it again";
}

TEST(Freshness, RowsThatCannotBeJudgedAreStaleOrRefused) {
  nlohmann::json row = dispatched();
  row["source_hash"] = "another";
  EXPECT_NE(why_stale(row).find("compiled from"), std::string::npos);
  row = dispatched();
  row["device"].erase("limits");
  EXPECT_NE(why_stale(row).find("measure it again"), std::string::npos);
  row = row_of("gone_fwd:block_m=64", ChosenBy::kCaller);
  EXPECT_EQ(row["source_hash"], source_hash());
  row["source_hash"] = "of another source";
  EXPECT_EQ(state_of(row), State::kStale);
  row = dispatched();
  row["chosen_by"] = "somebody";
  EXPECT_THROW(freshness_of_row(row), Error);
  row = dispatched();
  row["config"] = nlohmann::json{{"block_n", 64}};
  EXPECT_EQ(state_of(row), State::kStale) << "another config of the same family";
}

// sm80_short_fwd, a kernel of little code, with other text in a file that kernels share.
class Rewritten : public DerivedFamily {
 public:
  explicit Rewritten(const std::string& file, const std::string& old, const std::string& with)
      : DerivedFamily(family_by_name("sm80_short_fwd")) {
    std::string text = device_sources().at(file);
    const std::size_t at = text.find(old);
    EXPECT_NE(at, std::string::npos) << file << " has no '" << old << "' any more";
    overlay_ = {{file, text.replace(at, old.size(), with)}};
  }
  std::string name() const override { return "rewritten"; }
  std::string description() const override { return "sm80_short_fwd for tests"; }
  const SourceMap* source_overlay() const override { return &overlay_; }

 private:
  SourceMap overlay_;
};

// As measured before the text became `now`'s: of sm80_short_fwd as it is.
struct MeasuredBefore {
  PlacedProblem problem = PlacedProblem::parse("b1_h8_s32_d64_fp16");
  Artifact artifact =
      compile_candidate(parse_candidate("sm80_short_fwd", problem, hopper().limits), problem, hopper().limits);
  nlohmann::json row = {{"problem", problem.id()},
                        {"device", hopper()},
                        {"family", "rewritten"},
                        {"config", ""},
                        {"source_hash", source_hash_of("sm80_short_fwd", problem, hopper().limits)},
                        {"launch_hash", launch_hash_of("sm80_short_fwd", problem, hopper().limits)},
                        {"code_hash", artifact.code_hash},
                        {"compiler", artifact.compiler}};
};

constexpr const char* kShared = "tile/mask.cuh";
const std::string kNamespace = "namespace flashcore::tile {";

TEST(Freshness, TextThatCompilesToTheSameCodeMakesNothingStale) {
  const MeasuredBefore before;
  const ScopedFamily family(std::make_unique<Rewritten>(
      kShared, kNamespace, kNamespace + " constexpr int nobody_calls_this(int x) { return x + 1; }"));
  const Freshness judged = freshness_of_row(before.row);
  EXPECT_EQ(judged.state, State::kSameCode) << judged.why;
  EXPECT_TRUE(judged.is_fresh());
  EXPECT_NE(judged.why.find("its code has not"), std::string::npos) << judged.why;

  Trial trial;
  trial.problem = before.problem;
  trial.device = hopper();
  trial.family = "rewritten";
  trial.source_hash = before.row["source_hash"];
  trial.launch_hash = before.row["launch_hash"];
  trial.artifact = before.artifact;
  const Candidate candidate = parse_candidate("rewritten", before.problem, hopper().limits);
  trial.config = candidate.family->space().print(candidate.config);
  trial.phase = Phase::kHoldout;
  EXPECT_TRUE(is_current(trial));
  trial.phase = Phase::kSearch;
  EXPECT_FALSE(is_current(trial)) << "the trials of a search are judged by their text";
}

TEST(Freshness, OtherCodeOrOtherLaunchesMakeStale) {
  const MeasuredBefore before;
  const ScopedFamily family(
      std::make_unique<Rewritten>("sm80_short_fwd/kernel.cuh", "params.scale_log2", "(1.5f * params.scale_log2)"));
  EXPECT_NE(why_stale(before.row).find("the code that rewritten compiles to has changed"), std::string::npos)
      << why_stale(before.row);
  nlohmann::json row = before.row;
  row["launch_hash"] = "others";
  EXPECT_NE(why_stale(row).find("how rewritten is launched"), std::string::npos) << why_stale(row);
  row = before.row;
  row.erase("launch_hash");
  EXPECT_NE(why_stale(row).find("compiled from"), std::string::npos) << "an older row: " << why_stale(row);
}

TEST(Freshness, CodeOfAnotherCompilerIsNotKnownToDiffer) {
  const MeasuredBefore before;
  const ScopedFamily family(
      std::make_unique<Rewritten>("sm80_short_fwd/kernel.cuh", "params.scale_log2", "(1.5f * params.scale_log2)"));
  nlohmann::json row = before.row;
  for (const char* compiler : {"NVRTC 12.1 (1 bytes)", ""}) {
    row["compiler"] = compiler;
    const Freshness judged = freshness_of_row(row);
    EXPECT_EQ(judged.state, State::kUnknown) << judged.why;
    EXPECT_FALSE(judged.is_fresh());
    EXPECT_NE(judged.why.find(before.artifact.compiler), std::string::npos) << judged.why;
  }
}

TEST(Freshness, TextThatDoesNotCompileIsStale) {
  const MeasuredBefore before;
  const ScopedFamily family(std::make_unique<Rewritten>(kShared, kNamespace, kNamespace + " this is no C++;"));
  EXPECT_NE(why_stale(before.row).find("does not compile any more"), std::string::npos) << why_stale(before.row);
}

TEST(Freshness, OnlyFreshRowsGetProvenance) {
  const MeasuredBefore before;
  const auto recorded = [](nlohmann::json row, bool changed) {
    nlohmann::ordered_json out = row;
    EXPECT_EQ(record_provenance(out), changed);
    return nlohmann::json(out);
  };
  // As an older flashcore wrote it, of the text that is here.
  nlohmann::json old = before.row;
  old["family"] = "sm80_short_fwd";
  old.erase("launch_hash");
  old.erase("compiler");
  const nlohmann::json told = recorded(old, true);
  EXPECT_EQ(told["launch_hash"], before.row["launch_hash"]);
  EXPECT_EQ(told["compiler"], before.artifact.compiler);
  recorded(told, false);
  // Who compiled other code of the same text is not the compiler here.
  old["code_hash"] = "of another compiler";
  EXPECT_FALSE(recorded(old, true).contains("compiler"));
  old = before.row;
  old["family"] = "sm80_short_fwd";
  old["source_hash"] = "of text that is gone";
  old.erase("launch_hash");
  EXPECT_EQ(recorded(old, false), old) << "it is stale";
  // Same code: from now on the present text is known to give it.
  const ScopedFamily family(std::make_unique<Rewritten>(
      kShared, kNamespace, kNamespace + " constexpr int nobody_calls_this(int x) { return x + 1; }"));
  EXPECT_EQ(state_of(recorded(before.row, true)), State::kSameText);
}

}  // namespace
}  // namespace flashcore
