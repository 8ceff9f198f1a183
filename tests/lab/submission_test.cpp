// What a proposer's kernel goes through before a GPU meets it, and how far its patch reaches.

#include "lab/tune/submission.h"

#include <gtest/gtest.h>

#include <chrono>

#include "core/error.h"
#include "device/sandbox/sandbox.h"
#include "lab/harness/patch_reach.h"
#include "lab/tune/proposal.h"

namespace flashcore {
namespace {

std::string refused_answer(const std::string& line) {
  try {
    parse_proposal(line);
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kBadInput);
    return e.what();
  }
  return "";
}

TEST(InlinePatch, IsThePatchThatAFolderWouldBe) {
  const auto proposal = parse_proposal(
      R"({"family": "ref_fwd", "config": {"num_warps": 4}, "name": "mine", "files": {"kernel.cuh": "x", "tile/new.cuh": "y"},
          "replace": [{"file": "kernel.cuh", "from": "a", "to": "b"}], "extend": {"num_warps": [3]}})");
  ASSERT_TRUE(proposal && proposal->patch);
  EXPECT_EQ(proposal->candidate, "ref_fwd+mine:num_warps=4");
  EXPECT_EQ(proposal->patch->files.at("ref_fwd/kernel.cuh"), "x");
  EXPECT_EQ(proposal->patch->files.at("tile/new.cuh"), "y");
  EXPECT_EQ(proposal->patch->replace.at(0).file, "ref_fwd/kernel.cuh");
  EXPECT_EQ(proposal->patch->extend.at("num_warps"), std::vector<int>{3});
  EXPECT_FALSE(proposal->patch->trusted);
}

TEST(InlinePatch, WithoutANameIsCalledAfterItsContent) {
  const auto named = [](const std::string& to) {
    return parse_proposal(R"({"candidate": "ref_fwd", "replace": [{"file": "kernel.cuh", "from": "a", "to": ")" + to +
                          "\"}]}")
        ->candidate;
  };
  EXPECT_EQ(named("b"), named("b"));
  EXPECT_NE(named("b"), named("c"));
}

TEST(InlinePatch, BadFormsAreNamed) {
  const std::pair<const char*, const char*> bad[] = {
      {R"({"family": "ref_fwd", "replase": []})", "'replase' is no key"},
      {R"({"family": "ref_fwd", "trusted": true})", "'trusted' is no key"},
      {R"({"family": "ref_fwd", "name": "x"})", "names a patch, and there is none"},
      {R"({"family": "ref_fwd", "files": {}})", "changes nothing"},
      {R"({"family": "ref_fwd", "files": []})", "not an object"},
      {R"({"family": "ref_fwd", "files": {"kernel.cuh": 5}})", "not a text"},
      {R"({"family": "ref_fwd", "files": {"kernel.cuh": "a\u0000"}})", "control character"},
      {R"({"family": "ref_fwd", "files": {"kernel.cuh": "a", "ref_fwd/kernel.cuh": "b"}})", "twice"},
      {R"({"family": "ref_fwd", "replace": {}})", "list of"},
      {R"({"family": "ref_fwd", "replace": [{"file": "kernel.cuh", "from": "a"}]})", "list of"},
      {R"({"family": "ref_fwd", "extend": {"num_warps": []}})", "1 to 64 integers"},
      {R"({"family": "ref_fwd", "extend": {"num_warps": [1.5]}})", "1.5"},
      {R"({"family": "ref_fwd", "extend": {"num_warps": [-1]}})", "-1"},
      {R"({"family": "ref_fwd", "patch": "/tmp", "extend": {"num_warps": [3]}})", "give one of them"},
      {R"({"family": "ref_fwd", "files": {"tile/a b.cuh": ""}})", "no path of a source"},
      {R"({"family": "ref_fwd", "replace": [{"file": "<b>", "from": "a", "to": "b"}]})", "no path of a source"},
      {R"({"family": "ref_fwd", "name": "wrong_x", "extend": {"num_warps": [3]}})", "wrong on purpose"},
      {R"({"candidate": "ref_fwd+wrong_x:num_warps=1"})", "wrong on purpose"},
  };
  for (const auto& [line, words] : bad)
    EXPECT_NE(refused_answer(line).find(words), std::string::npos) << line << refused_answer(line);
  const std::string huge = R"({"family": "ref_fwd", "files": {"kernel.cuh": ")" + std::string(2 << 20, 'x') + "\"}}";
  EXPECT_NE(refused_answer(huge).find("at most 1048576"), std::string::npos);
}

TEST(InlinePatch, PathsHaveALimit) {
  const auto answer = [](std::size_t size) {
    return R"({"family": "ref_fwd", "files": {")" + std::string(size, 'x') + R"(": "a"}})";
  };
  EXPECT_EQ(refused_answer(answer(200)), "");
  EXPECT_NE(refused_answer(answer(201)).find("at most 200"), std::string::npos);
}

// An answer that names a kernel of an earlier answer is judged as that one was.
TEST(Patches, AreFoundByTheFamilyOfACandidate) {
  std::vector<Patch> patches(2);
  patches[0].family = patches[1].family = "sm80_fwd";
  patches[0].name = "mine";
  patches[1].name = "other";
  EXPECT_EQ(patch_of(patches, "sm80_fwd+mine"), &patches[0]);
  EXPECT_EQ(patch_of(patches, "sm80_fwd+mine:block_m=64"), &patches[0]);
  EXPECT_EQ(patch_of(patches, "sm80_fwd+other:block_m=64"), &patches[1]);
  EXPECT_EQ(patch_of(patches, "sm80_fwd:block_m=64"), nullptr);
  EXPECT_EQ(patch_of(patches, "sm80_fwd+min"), nullptr);
}

TEST(PatchReach, SaysWhatLiesOutsideOfTheFamilyAndWhatTheEmulatorCannotSee) {
  Patch patch;
  patch.name = "x";
  patch.family = "ref_fwd";
  patch.replace = {{"ref_fwd/kernel.cuh", "#pragma once", "#pragma once "}};
  EXPECT_TRUE(reach_of(patch).outside.empty());
  EXPECT_EQ(reach_of(patch).not_emulated, "");
  patch.replace.push_back({"tile/softmax.cuh", "#pragma once", "#pragma once "});
  ASSERT_EQ(reach_of(patch).outside.size(), 1u);
  EXPECT_NE(reach_of(patch).outside[0].find("tile/softmax.cuh lies outside of ref_fwd/"), std::string::npos);
  EXPECT_EQ(reach_of(patch).not_emulated, "");
  Patch of_ptx = patch;
  of_ptx.replace.push_back({"ptx/math.cuh", "#pragma once", "#pragma once "});
  EXPECT_NE(reach_of(of_ptx).not_emulated.find("ptx/math.cuh"), std::string::npos);
  Patch with_asm = patch;
  with_asm.replace.push_back({"ref_fwd/kernel.cuh", "float dot", "asm volatile(\"\"); float dot"});
  EXPECT_NE(reach_of(with_asm).not_emulated.find("inline assembly"), std::string::npos);
  Patch with_comment = patch;
  with_comment.replace.push_back({"ref_fwd/kernel.cuh", "float dot", "/* asm */ float dot"});
  EXPECT_EQ(reach_of(with_comment).not_emulated, "");
}

TEST(EmulatedProblem, IsSmallValidAndOfTheSameKind) {
  for (const char* id :
       {"b4_h32_hk8_s4096_d128_bf16_causal", "b16_h32_hk8_sq1_sk8192_d128_bf16", "b1_h8_sq100_sk5000_d64_fp16_causal",
        "b1_h8_sq5000_sk100_d64_fp16_causal", "b1_h8_sq320_sk330_d64_fp16", "b2_h16_s8192_d64_e4m3_causal_wl1023",
        "b8_h32_hk8_s8192_d128_bf16_causal_raggedhalving", "b1_h2_s40_d64_fp16",
        "b1_h64_hk8_s4096_d64_bf16_causal_wl127_sink", "b1_h8_s2051_d80_bf16_softcap50"}) {
    const PlacedProblem problem = PlacedProblem::parse(id), small = emulated_problem(problem);
    SCOPED_TRACE(std::string(id) + " -> " + small.id());
    EXPECT_NO_THROW(small.validate());
    EXPECT_EQ(small.dtype, problem.dtype);
    EXPECT_EQ(small.head_dim, problem.head_dim);
    EXPECT_EQ(small.group_size(), problem.group_size());
    EXPECT_EQ(small.mask.none(), problem.mask.none());
    EXPECT_EQ(small.has_score(), problem.has_score());
    EXPECT_EQ(small.ragged(), problem.ragged());
    EXPECT_LE(small.seqlen_q, 260);
    EXPECT_LE(small.seqlen_kv, 576);
    EXPECT_EQ(small.seqlen_q < small.seqlen_kv, problem.seqlen_q < problem.seqlen_kv);
    EXPECT_EQ(small.seqlen_q > small.seqlen_kv, problem.seqlen_q > problem.seqlen_kv);
    EXPECT_LE(small.flops(), 3e8);
  }
}

// The stage of tune for patched kernels on a GPU, as it is called there, with the limits of one.
class EmulatorStageTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (sandbox::means() == sandbox::Means::kNone) GTEST_SKIP() << "this machine lets no sandbox be made";
  }
  static Verdict judge(const std::string& from, const std::string& to, Ended& ended,
                       const char* file = "ref_fwd/kernel.cuh", int arch = 90,
                       double seconds = EmulatorStage::kSeconds) {
    Patch patch;
    patch.name = "staged";
    patch.family = "ref_fwd";
    patch.replace = {{file, from, to}};
    const PatchScope scope({patch});
    EvaluateRequest request;
    request.problem = PlacedProblem::parse("b4_h8_s4096_d16_fp16_causal");
    request.candidate = "ref_fwd+staged";
    Patch later = patch;  // of another answer, and not what is judged
    later.name = "later";
    later.replace = {{"ptx/math.cuh", "#pragma once", "#pragma once "}};
    request.patches = {patch, later};
    EmulatorStage stage(FLASHCORE_BINARY, seconds);
    DeviceLimits limits = limits_of_arch("sm_90");
    limits.arch = arch;
    return stage.judge(request, limits, ended);
  }
};

TEST_F(EmulatorStageTest, AnHonestKernelPasses) {
  Ended ended = Ended::kNotYet;
  const Verdict verdict = judge("#pragma once", "#pragma once  // honest", ended);
  EXPECT_EQ(verdict.gate, Gate::kEmulator);
  EXPECT_EQ(verdict.status, GateStatus::kPassed) << verdict.reason;
  EXPECT_EQ(ended, Ended::kNotYet);
}

TEST_F(EmulatorStageTest, AWrongOneIsStoppedWithTheGateAndTheCheck) {
  Ended ended = Ended::kNotYet;
  const Verdict verdict = judge("o[i] * scale);", "o[i] * scale * 1.5f);", ended);
  EXPECT_EQ(verdict.status, GateStatus::kFailed);
  EXPECT_EQ(ended, Ended::kIncorrect);
  EXPECT_EQ(verdict.evidence.at("gate"), "correctness");
  EXPECT_EQ(verdict.evidence.at("check"), "error_bound");
  EXPECT_NE(verdict.reason.find("on the emulator at b1_h2_s192_d16_fp16_causal"), std::string::npos) << verdict.reason;
}

TEST_F(EmulatorStageTest, WhatTheEmulatorCannotSeeIsSkippedInWords) {
  Ended ended = Ended::kNotYet;
  const Verdict verdict = judge("#pragma once", "#pragma once ", ended, "ptx/math.cuh");
  EXPECT_EQ(verdict.status, GateStatus::kSkipped);
  EXPECT_NE(verdict.reason.find("the emulator has its own"), std::string::npos) << verdict.reason;
  EXPECT_EQ(ended, Ended::kNotYet);
}

TEST_F(EmulatorStageTest, AnArchitectureThatTheEmulatorDoesNotKnowIsSkippedInWords) {
  Ended ended = Ended::kNotYet;
  const Verdict verdict = judge("#pragma once", "#pragma once  // honest", ended, "ref_fwd/kernel.cuh", 57);
  EXPECT_EQ(verdict.status, GateStatus::kSkipped) << verdict.reason;
  EXPECT_NE(verdict.reason.find("57"), std::string::npos) << verdict.reason;
  EXPECT_EQ(ended, Ended::kNotYet);
}

// A slow machine accuses nobody.
TEST_F(EmulatorStageTest, AKernelThatTakesTooLongIsSkippedNotFailed) {
  Ended ended = Ended::kNotYet;
  const Verdict verdict = judge("#pragma once", "#pragma once  // honest", ended, "ref_fwd/kernel.cuh", 90, 0.001);
  EXPECT_EQ(verdict.status, GateStatus::kSkipped) << verdict.reason;
  EXPECT_NE(verdict.reason.find("took longer than 0.001 s"), std::string::npos) << verdict.reason;
  EXPECT_EQ(ended, Ended::kNotYet);
}

// Not a slow start but a kernel that never ends: it is ended, and the next candidate gets a fresh worker.
TEST_F(EmulatorStageTest, AKernelThatNeverEndsIsEndedAndTheStageGoesOn) {
  Patch endless, honest;
  endless.name = "endless";
  honest.name = "honest";
  endless.family = honest.family = "ref_fwd";
  endless.replace = {
      {"ref_fwd/kernel.cuh", "o[i] * scale);", "o[i] * scale);\n    for (volatile int spin = 0; spin == 0;) {\n    }"}};
  honest.replace = {{"ref_fwd/kernel.cuh", "#pragma once", "#pragma once  // honest"}};
  const PatchScope scope({endless, honest});
  EvaluateRequest request;
  request.problem = PlacedProblem::parse("b1_h1_s16_d16_fp16");
  request.patches = {endless, honest};
  EmulatorStage stage(FLASHCORE_BINARY);
  const DeviceLimits limits = limits_of_arch("sm_90");
  Ended ended = Ended::kNotYet;
  request.candidate = "ref_fwd+endless";
  const auto start = std::chrono::steady_clock::now();
  const Verdict late = stage.judge(request, limits, ended);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  // By what its unpatched kernel takes, not by the most that anything may.
  EXPECT_LT(took.count(), EmulatorStage::kSeconds);
  EXPECT_EQ(late.status, GateStatus::kSkipped) << late.reason;
  EXPECT_NE(late.reason.find("took longer than "), std::string::npos) << late.reason;
  EXPECT_EQ(ended, Ended::kNotYet);
  request.candidate = "ref_fwd+honest";
  const Verdict next = stage.judge(request, limits, ended);
  EXPECT_EQ(next.status, GateStatus::kPassed) << next.reason;
}

// A verdict of the emulator is none of the device: only the device's correctness gate ranks a trial.
TEST(EmulatorVerdict, IsNotedBeforeTheDevicesOwn) {
  Trial trial;
  trial.gates = {{Gate::kCompile, GateStatus::kPassed, "", nullptr},
                 {Gate::kCorrectness, GateStatus::kFailed, "", nullptr}};
  note_emulator_verdict(trial, {Gate::kEmulator, GateStatus::kPassed, "", nullptr});
  ASSERT_EQ(trial.gates.size(), 3u);
  EXPECT_EQ(trial.gates[1].gate, Gate::kEmulator);
  EXPECT_FALSE(passed_gate(trial, Gate::kCorrectness));
}

}  // namespace
}  // namespace flashcore
