// Which results go stale with which change: lab/record/freshness.h, kernels/source_hash.h.
#include "lab/record/freshness.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "kernels/derived_family.h"
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
  EXPECT_EQ(why_stale(chosen), std::nullopt);
  {
    const ScopedFamily unloved(std::make_unique<Sibling>(1));
    EXPECT_EQ(why_stale(chosen), std::nullopt);
    EXPECT_EQ(why_stale(named), std::nullopt);
  }
  const ScopedFamily loved(std::make_unique<Sibling>(1000));
  const auto why = why_stale(chosen);
  ASSERT_TRUE(why);
  EXPECT_NE(why->find("dispatch now chooses sibling"), std::string::npos) << *why;
  EXPECT_EQ(why_stale(named), std::nullopt) << "who named a candidate gets it again";
}

TEST(Freshness, RowsThatCannotBeJudgedAreStaleOrRefused) {
  nlohmann::json row = dispatched();
  row["source_hash"] = "another";
  EXPECT_NE(why_stale(row).value_or("").find("compiled from"), std::string::npos);
  row = dispatched();
  row["device"].erase("limits");
  EXPECT_NE(why_stale(row).value_or("").find("measure it again"), std::string::npos);
  row = row_of("gone_fwd:block_m=64", ChosenBy::kCaller);
  EXPECT_EQ(row["source_hash"], source_hash());
  row["source_hash"] = "of another source";
  EXPECT_TRUE(why_stale(row));
  row = dispatched();
  row["chosen_by"] = "somebody";
  EXPECT_THROW(why_stale(row), Error);
  row = dispatched();
  row["config"] = nlohmann::json{{"block_n", 64}};
  EXPECT_TRUE(why_stale(row)) << "another config of the same family";
}

}  // namespace
}  // namespace flashcore
