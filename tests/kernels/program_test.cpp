// Programs: where addresses go, and that no family's parameters hold one.
#include "kernels/program.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <string_view>

#include "core/error.h"
#include "core/problem_expressions.h"
#include "core/problem_fields.h"
#include "kernels/family.h"
#include "kernels/tile/traits.h"

namespace flashcore {
namespace {

const Addresses kSome = {
    reinterpret_cast<void*>(0x1000), reinterpret_cast<void*>(0x2000), reinterpret_cast<void*>(0x3000),
    reinterpret_cast<void*>(0x4000), reinterpret_cast<void*>(0x5000), reinterpret_cast<void*>(0x6000),
    reinterpret_cast<void*>(0x7000), reinterpret_cast<void*>(0x8000), reinterpret_cast<void*>(0x9000)};

Step step_with(std::size_t bytes) {
  Step step;
  step.launch.grid = {1, 1, 1};
  step.launch.params.resize(bytes);
  return step;
}

TEST(Program, WritesAddressesWhereTheyGo) {
  Step step = step_with(32);
  step.relocate(8, Operand::kV);
  step.relocate(24, AddressOf::workspace(0));
  std::array<const void*, 4> params{};
  step.write_addresses(kSome, std::as_writable_bytes(std::span(params)));
  EXPECT_EQ(params, (std::array<const void*, 4>{nullptr, kSome[2], nullptr, kSome[kOperandCount]}));
}

TEST(Program, RefusesWhatCannotBeBound) {
  const auto refuses = [](const Program& program) { EXPECT_THROW(program.validate(), Error); };
  Program program;
  program.steps = {step_with(16)};
  program.validate();
  Program outside = program;
  outside.steps[0].relocate(12, Operand::kQ);
  refuses(outside);
  Program unknown = program;
  unknown.steps[0].relocate(8, AddressOf::workspace(0));
  refuses(unknown);
  unknown.workspaces = {{4, Workspace::Contents::kLeftZero}};
  unknown.validate();
  unknown.steps[0].launch.programmatic = true;
  refuses(unknown);
  Program holding = program;
  holding.steps[0].relocate(8, Operand::kQ);
  holding.validate();
  holding.steps[0].launch.params[9] = std::byte{1};
  refuses(holding);
  Program large = program;
  large.steps[0].launch.params.resize(Program::kMaxParamBytes + 8);
  refuses(large);
}

TEST(Program, FingerprintsTellProgramsApart) {
  Program program;
  program.steps = {step_with(16)};
  const std::string before = program.fingerprint();
  program.steps[0].relocate(8, Operand::kQ);
  EXPECT_NE(program.fingerprint(), before);
  Program wider = program;
  wider.steps[0].launch.grid.y = 2;
  EXPECT_NE(wider.fingerprint(), program.fingerprint());
}

// Every family's default program can be bound, and every operand is an address of it.
TEST(Program, EveryFamilyNamesItsOperands) {
  const DeviceLimits limits = limits_of_arch("sm_90");
  int programs = 0;
  for (const char* id : {"b2_h4_hk2_sq3_sk70_d64_fp16", "b2_h4_s300_d128_bf16_causal", "b1_h1_s40_d72_dv40_fp16"}) {
    const PlacedProblem problem = PlacedProblem::parse(id);
    for (const Family* family : supporting_families(problem, limits)) {
      const Program program =
          family->program(family->default_config(problem, limits), problem, limits, make_layouts(problem));
      program.validate();
      ++programs;
      for (std::size_t operand = 0; operand <= static_cast<std::size_t>(Operand::kLse); ++operand) {
        bool used = false;
        for (const Step& step : program.steps) {
          for (const Step::Relocation& r : step.relocations) used |= r.of.index() == operand;
          for (const AddressOf of : step.map_addresses) used |= of.index() == operand;
        }
        EXPECT_TRUE(used) << family->name() << " " << to_string(static_cast<Operand>(operand));
      }
    }
  }
  EXPECT_GE(programs, 12);
}

// Slopes and sinks are addresses where the problem has them; kernels, parameters and numbers of operands of plain
// problems are those of before, which stored results hold.
TEST(Program, SlopesAndSinksAreAddresses) {
  const DeviceLimits limits = limits_of_arch("sm_90");
  struct Case {
    const char* id;
    int alibi, sink;
  };
  for (const Case& c : {Case{"b2_h4_hk2_s70_d64_bf16_alibibatch", 1, 0}, Case{"b2_h4_hk2_s70_d64_bf16_sink", 0, 1},
                        Case{"b2_h4_hk2_s70_d64_bf16_softcap30", 0, 0}}) {
    for (const char* name : {"ref_fwd", "sm80_decode_fwd", "sm80_fwd", "sm80_short_fwd", "sm80_wide_fwd", "sm90_fwd",
                             "sm90_short_fwd", "sm90_wide_fwd", "sm89_fp8_fwd", "sm90_fp8_fwd"}) {
      const Family& family = family_by_name(name);
      const bool takes_8bit = family.name().find("_fp8_") != std::string::npos;
      PlacedProblem problem = PlacedProblem::parse(c.id);
      if (family.name().find("_wide_") != std::string::npos) problem.head_dim = problem.head_dim_v = 512;
      if (takes_8bit) problem.dtype = DType::kE4M3;
      const ConfigValues config = family.default_config(problem, limits);
      const Program program = family.program(config, problem, limits, make_layouts(problem));
      program.validate();
      int alibi = 0, sink = 0;
      for (const Step::Relocation& r : program.steps[0].relocations) {
        alibi += r.of == AddressOf(Operand::kAlibi) ? 1 : 0;
        sink += r.of == AddressOf(Operand::kSink) ? 1 : 0;
      }
      EXPECT_EQ(alibi, c.alibi) << name << " " << c.id;
      EXPECT_EQ(sink, c.sink) << name << " " << c.id;
      const char* entry = takes_8bit ? "::forward_fp8_scored<" : "::forward_scored<";
      EXPECT_NE(family.source(config, problem, limits).name_expression.find(entry), std::string::npos) << name;
    }
  }
  const PlacedProblem plain = PlacedProblem::parse("b1_h4_s200_d64_bf16_causal");
  const Family& family = family_by_name("sm80_fwd");
  const ConfigValues config = family.default_config(plain, limits);
  EXPECT_EQ(family.program(config, plain, limits, make_layouts(plain)).steps[0].launch.params.size(),
            sizeof(ForwardParams));
  EXPECT_NE(
      family.source(config, plain, limits)
          .name_expression.find("::forward<flashcore::Traits{flashcore::Element(2), flashcore::Element(2), 64, 64, "
                                "false, true}, "),
      std::string::npos);
  EXPECT_EQ(problem_distance(plain, Problem::parse("b1_h4_s200_d64_bf16_causal_softcap30")),
            std::numeric_limits<double>::infinity());
  EXPECT_LT(problem_distance(plain, Problem::parse("b1_h4_s200_d64_bf16_causal_sink")), 1);
}

// The factors of 8-bit operands are addresses too, unless the problem has none; and no other families take such.
TEST(Program, FactorsAreAddresses) {
  const DeviceLimits limits = limits_of_arch("sm_90");
  for (const char* id : {"b2_h4_hk2_s70_d64_e4m3", "b2_h4_hk2_s70_d64_e5m2_perhead", "b2_h4_s70_d64_e4m3_unscaled",
                         "b2_h4_hk2_s70_d64_e4m3_pertoken"}) {
    const PlacedProblem problem = PlacedProblem::parse(id);
    for (const char* name : {"ref_fwd", "sm89_fp8_fwd", "sm80_decode_fwd"}) {
      const Family& family = family_by_name(name);
      if (family.why_unsupported(problem, limits)) continue;  // of factors of rows
      const Program program =
          family.program(family.default_config(problem, limits), problem, limits, make_layouts(problem));
      program.validate();
      for (const Operand operand : {Operand::kDescaleQ, Operand::kDescaleK, Operand::kDescaleV}) {
        int used = 0;
        for (const Step::Relocation& r : program.steps[0].relocations) used += r.of == AddressOf(operand) ? 1 : 0;
        EXPECT_EQ(used, problem.has_descales() ? 1 : 0) << name << " " << id << " " << to_string(operand);
      }
    }
    for (const char* other :
         {"sm80_fwd", "sm80_short_fwd", "sm80_wide_fwd", "sm90_fwd", "sm90_short_fwd", "sm90_wide_fwd"}) {
      const auto reason = family_by_name(other).why_unsupported(problem, limits);
      ASSERT_TRUE(reason) << other;
      EXPECT_NE(reason->find("e4m3"), std::string::npos) << *reason;
    }
  }
}

// The step that lists a mask's blocks is reusable, and constant where it reads no tensor and no lengths, whatever the
// scores read.
TEST(Program, ListsOfAMaskWithoutTensorsAreConstant) {
  struct Case {
    const char *id, *score, *mask, *tensors;
    bool constant;
  };
  for (const Case& c : {Case{"b1_h2_s130_d64_fp16", "", "j <= i", "", true},
                        Case{"b1_h2_s130_d64_fp16", "s + bias[j]", "j <= i", "bias: float[1]", true},
                        Case{"b1_h2_s130_d64_fp16", "", "doc[i] == doc[j]", "doc: int[1]", false},
                        Case{"b2_h2_s130_d64_fp16_raggedfull", "", "j <= i", "", false}}) {
    PlacedProblem problem = PlacedProblem::parse(c.id);
    set_expressions(problem, c.score, c.mask, parse_tensors(c.tensors));
    for (const char* name : {"sm80_fwd", "sm90_fwd"}) {
      const Family& family = family_by_name(name);
      const DeviceLimits limits = limits_of_arch("sm_90");
      Program program = family.program(family.default_config(problem, limits), problem, limits, make_layouts(problem));
      program.validate();
      ASSERT_EQ(program.steps.size(), 2u) << name;
      EXPECT_EQ(program.steps[0].constant, c.constant) << name << " " << c.id << " " << c.mask;
      EXPECT_TRUE(program.steps[0].reusable) << name << " " << c.mask;
      EXPECT_FALSE(program.steps[1].constant || program.steps[1].reusable) << name;
      const std::size_t lists = program.workspaces.size() - 1;
      EXPECT_EQ(program.is_constant(lists), c.constant) << name << " " << c.mask;
      EXPECT_TRUE(program.is_reusable(lists)) << name << " " << c.mask;
      EXPECT_FALSE(lists > 0 && (program.is_constant(0) || program.is_reusable(0))) << "the scheduler's counter";
      program.workspaces[lists].contents = Workspace::Contents::kLeftZero;
      EXPECT_THROW(program.validate(), Error) << name;
    }
  }
}

// A kernel that counts in 32 bits says where they end.
TEST(Program, DecodingRefusesATensorItCannotReachThrough) {
  const DeviceLimits limits = limits_of_arch("sm_90");
  const PlacedProblem problem = PlacedProblem::parse("b2_h8_hk2_sq1_sk64_d64_bf16_raggedfull_page16");
  const Family& family = family_by_name("sm80_decode_fwd");
  const ConfigValues config = family.default_config(problem, limits);
  ProblemLayouts layouts = make_layouts(problem);
  layouts.v.stride_batch = (std::int64_t{1} << 35) / layouts.v.batch;
  family.program(config, problem, limits, layouts);
  layouts.v.stride_batch = (std::int64_t{1} << 35) / (layouts.v.batch - 1) / 8 * 8 + 8;
  try {
    family.program(config, problem, limits, layouts);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_NE(std::string_view(error.what()).find("reaches 64 GB of a tensor, and v spans"), std::string_view::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace flashcore
