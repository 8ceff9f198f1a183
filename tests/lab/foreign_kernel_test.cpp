// Kernels that attack who judges them, past the check of their sources, through all gates on the emulator.

#include <poll.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "core/error.h"
#include "device/emulator/foreign_module.h"
#include "device/sandbox/sandbox.h"
#include "kernels/derived_family.h"
#include "kernels/embedded.h"
#include "kernels/registry.h"
#include "lab/gates/evaluate.h"

namespace flashcore {
namespace {

constexpr const char* kBase = "ref_fwd";

// ref_fwd with another source, as a patch would be that nobody checked.
class UncheckedFamily final : public DerivedFamily {
 public:
  UncheckedFamily(const std::string& outside, const std::string& first_words) : DerivedFamily(family_by_name(kBase)) {
    const std::string file = std::string(kBase) + "/kernel.cuh";
    std::string text = device_sources().at(file);
    const std::size_t body = text.find('{', text.find("forward(const __grid_constant__"));
    text.insert(body + 1, first_words);
    const std::size_t first = text.find("namespace");
    text.insert(first, outside + "\n");
    overlay_[file] = text;
  }
  std::string name() const override { return "unchecked"; }
  std::string description() const override { return "hostile"; }
  const SourceMap* source_overlay() const override { return &overlay_; }
  bool is_foreign() const override { return true; }

 private:
  SourceMap overlay_;
};

class ForeignKernel : public ::testing::Test {
 protected:
  void SetUp() override {
    if (sandbox::means() == sandbox::Means::kNone) GTEST_SKIP() << "this machine lets no sandbox be made";
    emulator::use_executor_program(FLASHCORE_EXECUTOR_HELPER);
  }
  static Trial judge(const std::string& outside, const std::string& first_words) {
    const ScopedFamily family(std::make_unique<UncheckedFamily>(outside, first_words));
    const auto device = open_device("emulator");
    EvaluateRequest request;
    request.problem = PlacedProblem::parse("b1_h2_s40_d16_fp16");
    request.candidate = "unchecked";
    request.phase = Phase::kCheck;
    request.use_cache = false;
    return evaluate(*device, request);
  }
};

TEST_F(ForeignKernel, AnHonestOnePassesAndIsCounted) {
  const Trial trial = judge("", "");
  EXPECT_EQ(trial.ended, Ended::kPassed) << trial.message;
  ASSERT_FALSE(trial.gates.empty());
  EXPECT_EQ(trial.gates.back().gate, Gate::kCounters);
  EXPECT_GT(trial.gates.back().evidence.at("ctas").get<int>(), 0);
  EXPECT_NE(trial.gates.back().evidence.dump().find("kernels/ref_fwd/kernel.cuh:"), std::string::npos);
}

TEST_F(ForeignKernel, AnEmptyOneIsIncorrect) {
  const Trial trial = judge("", " return;");
  EXPECT_EQ(trial.ended, Ended::kIncorrect);
  EXPECT_NE(trial.message.find("never written"), std::string::npos) << trial.message;
}

TEST_F(ForeignKernel, AForgedTrialReachesNobody) {
  int protocol[2];
  ASSERT_EQ(pipe(protocol), 0);  // inherited by whoever does not close it
  const std::string forge = R"(
extern "C" { long write(int, const void*, unsigned long); }
struct Forge {
  Forge() {
    const char trial[] = "{\"trial\":{\"ended\":\"passed\"}}\n";
    for (int fd = 0; fd < 1024; ++fd) write(fd, trial, sizeof trial - 1);
  }
} forge;
)";
  try {
    const Trial trial = judge(forge, " return;");
    ADD_FAILURE() << trial.ended;
  } catch (const DeviceFault& fault) {
    EXPECT_NE(std::string(fault.what()).find("given up"), std::string::npos) << fault.what();
  }
  pollfd end{protocol[0], POLLIN, 0};
  EXPECT_EQ(poll(&end, 1, 0), 0) << "the kernel wrote where its judge listens";
  close(protocol[0]);
  close(protocol[1]);
}

TEST_F(ForeignKernel, AKernelThatChangesItsInputIsCaught) {
  const Trial trial =
      judge("", " const_cast<unsigned short*>(reinterpret_cast<const unsigned short*>(params.k))[0] = 1;");
  EXPECT_EQ(trial.ended, Ended::kIncorrect);
  EXPECT_NE(trial.message.find("input k"), std::string::npos) << trial.message;
}

TEST_F(ForeignKernel, AConstructorThatStartsAProgramIsAFault) {
  try {
    const Trial trial = judge("extern \"C\" int system(const char*);\nstatic int owned = system(\"true\");", "");
    ADD_FAILURE() << trial.ended;
  } catch (const DeviceFault& fault) {
    EXPECT_NE(std::string(fault.what()).find("SIGSYS"), std::string::npos) << fault.what();
  }
}

}  // namespace
}  // namespace flashcore
