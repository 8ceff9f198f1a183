// Profiles of hand-made facts: each cause is named first where it was planted, from counts and from counters, and no
// cause is named of a kernel that meets its targets.

#include "lab/diagnose/profile.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "lab/diagnose/gather.h"
#include "lab/diagnose/metrics.h"
#include "lab/diagnose/slow.h"

namespace flashcore {
namespace {

// Counts of a tile kernel on 512 keys, in the proportions of sm80_fwd.
nlohmann::json healthy_counts() {
  const auto traffic = [](const char* unit, double requests, double units, double least) {
    return nlohmann::json{
        {"bytes", 512 * requests},         {"requests", requests}, {"lanes", 32 * requests},
        {"possible_lanes", 32 * requests}, {unit, units},          {std::string("least_") + unit, least}};
  };
  return {{"ctas", 8},
          {"mma_flops", 67108864},
          {"mma_instructions", 16384},
          {"mma_with_copies_in_flight", 0.875},
          {"ex2", 262144 + 4096},
          {"async_copies", 65536},
          {"tma_bytes", 0},
          {"tma_stored_bytes", 0},
          {"barrier_waits", 8 * 128 * 10},
          {"copy_waits", 8 * 128 * 10},
          {"global_load", traffic("sectors", 2176, 34816, 34816)},
          {"global_store", traffic("sectors", 144, 2176, 2176)},
          {"shared_load", traffic("passes", 9000, 36000, 36000)},
          {"shared_store", traffic("passes", 512, 512, 512)},
          {"sites", nlohmann::json::array()},
          {"waits",
           {{{"where", "kernel.cuh:1"}, {"caller", ""}, {"kind", "barrier wait"}, {"threads", 8 * 128 * 10}},
            {{"where", "kernel.cuh:2"}, {"caller", ""}, {"kind", "copy wait"}, {"threads", 8 * 128 * 10}}}}};
}

ProfileFacts healthy_facts() {
  ProfileFacts facts;
  facts.problem = PlacedProblem::parse("b4_h16_s2048_d64_fp16");
  facts.candidate = "sm80_fwd:block_m=64";
  facts.limits = limits_of_arch("sm_90");
  Artifact artifact;
  artifact.arch = "sm_90";
  artifact.registers = 120;
  artifact.threads_per_block = 128;
  artifact.dynamic_shared_bytes = 40960;
  facts.artifact = artifact;
  facts.occupancy = occupancy_of(artifact, facts.limits, 2048);
  return facts;
}

ProfileFacts counted_facts(const std::function<void(nlohmann::json&)>& change = {}) {
  ProfileFacts facts = healthy_facts();
  nlohmann::json counts = healthy_counts();
  if (change) change(counts);
  facts.counts = read_counts(counts, Problem::parse("b1_h1_s512_d64_fp16"), 128);
  return facts;
}

// What Nsight Compute says of a kernel that the tensor cores bound.
CounterValues healthy_counters() {
  return {{"gpu__time_duration.sum", 1e6},
          {"sm__throughput.avg.pct_of_peak_sustained_elapsed", 78},
          {"sm__warps_active.avg.per_cycle_active", 11.8},
          {"sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active", 74},
          {"sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_active", 40},
          {"gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed", 9},
          {"lts__throughput.avg.pct_of_peak_sustained_elapsed", 35},
          {"lts__t_sector_hit_rate.pct", 91},
          {"smsp__sass_average_data_bytes_per_sector_mem_global_op_ldgsts.pct", 100},
          {"smsp__sass_average_data_bytes_per_sector_mem_global_op_st.pct", 98},
          {"l1tex__t_sectors_pipe_lsu_mem_global_op_ldgsts.sum", 9e7},
          {"l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum", 1e7},
          {"l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum", 0},
          {"lts__t_sectors.sum", 1e8},
          {"l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum", 1e4},
          {"l1tex__data_pipe_lsu_wavefronts_mem_shared.sum", 1e8},
          {"sm__cycles_elapsed.sum", 2.4e8},
          {"smsp__thread_inst_executed_per_inst_executed.ratio", 31.6},
          {"smsp__issue_active.avg.pct_of_peak_sustained_active", 44},
          {"smsp__inst_executed_op_local_ld.sum", 0},
          {"smsp__inst_executed_op_local_st.sum", 0},
          {"smsp__inst_executed.sum", 4e8},
          {stall_metric("math_pipe_throttle"), 31},
          {stall_metric("long_scoreboard"), 8},
          {stall_metric("barrier"), 4}};
}

ProfileFacts measured_facts(const CounterValues& changed = {}) {
  ProfileFacts facts = healthy_facts();
  facts.artifact.reset();
  facts.occupancy.reset();
  facts.counters = healthy_counters();
  for (const auto& [name, value] : changed) facts.counters[name] = value;
  return facts;
}

Cause first_cause(const ProfileFacts& facts) {
  const Profile profile = diagnose(facts);
  EXPECT_FALSE(profile.bottlenecks.empty());
  if (profile.bottlenecks.empty()) return Cause::kLatency;
  const Bottleneck& first = profile.bottlenecks.front();
  EXPECT_EQ(first.rank, 1);
  EXPECT_FALSE(first.sentence.empty());
  EXPECT_FALSE(first.evidence.empty()) << first.cause;
  return first.cause;
}

const Indicator& row(const std::vector<Indicator>& rows, const std::string& name) {
  const auto found = std::find_if(rows.begin(), rows.end(), [&](const Indicator& r) { return r.name == name; });
  if (found == rows.end()) throw std::runtime_error("no row " + name);
  return *found;
}

TEST(Profile, NamesNoFaultOfAKernelThatMeetsItsTargets) {
  for (const ProfileFacts& facts : {counted_facts(), measured_facts()}) {
    const Profile profile = diagnose(facts);
    ASSERT_EQ(profile.bottlenecks.size(), 1u) << profile_json(facts, profile).dump(1);
    EXPECT_TRUE(is_limit(profile.bottlenecks.front().cause));
  }
  EXPECT_EQ(first_cause(measured_facts()), Cause::kTensorCores);
}

TEST(Profile, NamesThePlantedCauseFirstFromCounts) {
  EXPECT_EQ(first_cause(counted_facts([](auto& c) { c["shared_load"]["passes"] = 8 * 36000; })), Cause::kBankConflicts);
  EXPECT_EQ(first_cause(counted_facts([](auto& c) { c["global_load"]["sectors"] = 2 * 34816; })), Cause::kUncoalesced);
  EXPECT_EQ(first_cause(counted_facts([](auto& c) { c["mma_with_copies_in_flight"] = 0.0; })), Cause::kNoOverlap);
  EXPECT_EQ(first_cause(counted_facts([](auto& c) {
              c["shared_load"]["lanes"] = 9000 * 4;
              c["global_load"]["lanes"] = 2176 * 4;
            })),
            Cause::kDivergence);
  EXPECT_EQ(first_cause(counted_facts([](auto& c) { c["waits"][0]["threads"] = 8 * 128 * 400; })), Cause::kBarriers);
}

TEST(Profile, NamesThePlantedCauseFirstFromWhatTheCompilerSays) {
  ProfileFacts spills = counted_facts();
  spills.artifact->spill_store_bytes = 96;
  spills.artifact->spill_load_bytes = 128;
  EXPECT_EQ(first_cause(spills), Cause::kSpills);
  ProfileFacts second = counted_facts();
  second.artifact->more_kernels.emplace_back().spill_store_bytes = 200;
  EXPECT_EQ(first_cause(second), Cause::kSpills) << "of the module's second kernel";
  EXPECT_EQ(row(indicators_of(second), "spilled bytes per thread").value, std::optional(200.0));
  ProfileFacts stack = counted_facts();
  stack.artifact->stack_bytes = 64;
  EXPECT_EQ(first_cause(stack), Cause::kStack);
  ProfileFacts occupancy = counted_facts();
  occupancy.artifact->threads_per_block = 32;
  occupancy.artifact->dynamic_shared_bytes = 200000;
  occupancy.occupancy = occupancy_of(*occupancy.artifact, occupancy.limits, 8192);
  EXPECT_EQ(first_cause(occupancy), Cause::kLowOccupancy);
  ProfileFacts grid = counted_facts();
  grid.occupancy = occupancy_of(*grid.artifact, grid.limits, 16);
  EXPECT_EQ(first_cause(grid), Cause::kSmallGrid);
  ProfileFacts wave = counted_facts();
  wave.occupancy = occupancy_of(*wave.artifact, wave.limits, 132 * wave.occupancy->ctas_per_sm + 10);
  EXPECT_EQ(first_cause(wave), Cause::kLastWave);
}

TEST(Profile, NamesThePlantedCauseFirstFromCounters) {
  EXPECT_EQ(first_cause(measured_facts({{"l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum", 1.4e8},
                                        {"l1tex__data_pipe_lsu_wavefronts_mem_shared.sum", 1.6e8}})),
            Cause::kBankConflicts);
  EXPECT_EQ(first_cause(measured_facts({{"smsp__sass_average_data_bytes_per_sector_mem_global_op_ldgsts.pct", 50},
                                        {"lts__throughput.avg.pct_of_peak_sustained_elapsed", 75}})),
            Cause::kUncoalesced);
  EXPECT_EQ(first_cause(measured_facts({{"smsp__inst_executed_op_local_ld.sum", 4e7},
                                        {"smsp__inst_executed_op_local_st.sum", 2e7},
                                        {stall_metric("long_scoreboard"), 50}})),
            Cause::kSpills);
  EXPECT_EQ(first_cause(measured_facts({{"sm__warps_active.avg.per_cycle_active", 1.0},
                                        {"sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active", 20},
                                        {stall_metric("long_scoreboard"), 35}})),
            Cause::kLowOccupancy);
  EXPECT_EQ(first_cause(measured_facts({{"sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active", 33},
                                        {stall_metric("long_scoreboard"), 55}})),
            Cause::kNoOverlap);
  EXPECT_EQ(first_cause(measured_facts({{"smsp__thread_inst_executed_per_inst_executed.ratio", 9}})),
            Cause::kDivergence);
  EXPECT_EQ(first_cause(measured_facts({{"sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active", 33},
                                        {stall_metric("barrier"), 40}})),
            Cause::kBarriers);
  EXPECT_EQ(first_cause(measured_facts({{"sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active", 12},
                                        {"gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed", 93}})),
            Cause::kDram);
  EXPECT_EQ(first_cause(measured_facts({{"sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active", 12}})),
            Cause::kLatency);
}

// What counters said of Hopper's kernels on an H200, whose consumers take turns by named barriers: tensor cores busy
// 75% and 59%, warps at barriers 22.5% and 13.6% of their time.
TEST(Profile, WaitsForATurnAreNoFault) {
  const auto names_barriers = [](double tensor, double waits, int barriers) {
    ProfileFacts facts = healthy_facts();
    facts.counters = measured_facts({{"sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active", tensor},
                                     {stall_metric("barrier"), waits}})
                         .counters;
    facts.artifact->barriers = barriers;
    const std::vector<Bottleneck> faults = faults_of(facts);
    return std::any_of(faults.begin(), faults.end(), [](const Bottleneck& b) { return b.cause == Cause::kBarriers; });
  };
  EXPECT_FALSE(names_barriers(75, 22.5, 16));
  EXPECT_FALSE(names_barriers(45, 22.5, 16)) << "nor where they may be waits in vain: the counter does not tell";
  EXPECT_FALSE(names_barriers(75, 22.5, 1)) << "multiplies cover them";
  EXPECT_TRUE(names_barriers(45, 22.5, 1));
}

// What Nsight Compute 2025.3 said on an H200 of a kernel without loads whose copies use half of their sectors: the
// loads' sectors hold those of copies.
TEST(Profile, SectorsOfCopiesAmongThoseOfLoadsAreCountedOnce) {
  CounterValues seen = {{"smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct", 0},
                        {"smsp__sass_average_data_bytes_per_sector_mem_global_op_ldgsts.pct", 50},
                        {"smsp__sass_average_data_bytes_per_sector_mem_global_op_st.pct", 100},
                        {"l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum", 68157440},
                        {"l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum", 540672},
                        {"sm__sass_l1tex_t_sectors_pipe_lsu_mem_global_op_ldgsts_cache_access.sum", 0},
                        {"sm__sass_l1tex_t_sectors_pipe_lsu_mem_global_op_ldgsts_cache_bypass.sum", 68143904}};
  const auto use = sector_use(seen);
  ASSERT_TRUE(use);
  EXPECT_DOUBLE_EQ(use->touched, 68143904 + 540672);
  EXPECT_DOUBLE_EQ(use->needed, 68143904 / 2 + 540672);
  // A few loads besides.
  seen["smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct"] = 25;
  seen["l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"] = 68143904 + 1000;
  EXPECT_DOUBLE_EQ(sector_use(seen)->needed, 68143904 / 2 + 540672 + 250);
}

// A warp's own pace is no wait: a latency that every instruction has comes first in most kernels.
TEST(Profile, AWaitForCopiesIsSeenBesideTheLatencyOfInstructions) {
  CounterValues waits = {{"sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active", 33},
                         {stall_metric("wait"), 40},
                         {stall_metric("math_pipe_throttle"), 2},
                         {stall_metric("long_scoreboard"), 35}};
  EXPECT_EQ(first_cause(measured_facts(waits)), Cause::kNoOverlap);
  waits[stall_metric("gmma")] = 38;
  EXPECT_NE(first_cause(measured_facts(waits)), Cause::kNoOverlap);
}

// A TMA kernel: few loads of threads, each of one lane, beside the copies of the TMA unit.
TEST(Profile, AFewScatteredLoadsAreNotAccused) {
  const ProfileFacts facts = measured_facts({{"smsp__sass_average_data_bytes_per_sector_mem_global_op_ldgsts.pct", 0},
                                             {"l1tex__t_sectors_pipe_lsu_mem_global_op_ldgsts.sum", 0},
                                             {"smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct", 12.5},
                                             {"l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum", 2000},
                                             {"lts__throughput.avg.pct_of_peak_sustained_elapsed", 75}});
  EXPECT_TRUE(is_limit(first_cause(facts)));
  EXPECT_EQ(row(indicators_of(facts), "sectors over the fewest").met, std::optional(true));
}

TEST(Profile, APercentageOfAnUnknownNumberOfSectorsAccusesNobody) {
  const CounterValues wasteful = {{"smsp__sass_average_data_bytes_per_sector_mem_global_op_ldgsts.pct", 50},
                                  {"lts__throughput.avg.pct_of_peak_sustained_elapsed", 75}};
  for (const char* lost : {"l1tex__t_sectors_pipe_lsu_mem_global_op_ldgsts.sum", "lts__t_sectors.sum",
                           "lts__throughput.avg.pct_of_peak_sustained_elapsed"}) {
    ProfileFacts facts = measured_facts(wasteful);
    facts.counters.erase(lost);
    EXPECT_TRUE(is_limit(first_cause(facts))) << lost;
  }
  // Copies through L1 and past it, counted apart: both or none.
  ProfileFacts apart = measured_facts(wasteful);
  apart.counters.erase("l1tex__t_sectors_pipe_lsu_mem_global_op_ldgsts.sum");
  apart.counters["sm__sass_l1tex_t_sectors_pipe_lsu_mem_global_op_ldgsts_cache_access.sum"] = 0;
  EXPECT_TRUE(is_limit(first_cause(apart)));
  apart.counters["sm__sass_l1tex_t_sectors_pipe_lsu_mem_global_op_ldgsts_cache_bypass.sum"] = 9e7;
  EXPECT_EQ(first_cause(apart), Cause::kUncoalesced);
}

TEST(Profile, WithoutIssueSlotsDivergenceHasNoShare) {
  ProfileFacts facts = measured_facts({{"smsp__thread_inst_executed_per_inst_executed.ratio", 9}});
  facts.counters.erase("smsp__issue_active.avg.pct_of_peak_sustained_active");
  EXPECT_EQ(first_cause(facts), Cause::kTensorCores);
}

TEST(Profile, WithoutMatrixInstructionsTheFmaUnitsMultiply) {
  const ProfileFacts facts =
      counted_facts([](auto& c) { c["mma_flops"] = c["mma_instructions"] = c["async_copies"] = 0; });
  EXPECT_EQ(first_cause(facts), Cause::kFmaUnits);
  const std::vector<Indicator> rows = indicators_of(facts);
  EXPECT_EQ(row(rows, "FLOPs done over needed").source, "needs matrix instructions, which the kernel has not");
  EXPECT_EQ(row(rows, "multiplies under copies").source, "needs asynchronous copies, which the kernel has not");
}

TEST(Profile, ASmallGridIsNotTakenForLowOccupancy) {
  ProfileFacts facts = measured_facts({{"sm__warps_active.avg.per_cycle_active", 4.0}});
  facts.artifact = healthy_facts().artifact;
  facts.occupancy = occupancy_of(*facts.artifact, facts.limits, 60);
  EXPECT_EQ(first_cause(facts), Cause::kSmallGrid);
  for (const Bottleneck& b : diagnose(facts).bottlenecks) EXPECT_NE(b.cause, Cause::kLowOccupancy);
}

TEST(Profile, AGridThatAlmostFillsTheGpuIsNotSmall) {
  ProfileFacts facts = counted_facts();
  facts.occupancy = occupancy_of(*facts.artifact, facts.limits, 128);
  EXPECT_TRUE(is_limit(first_cause(facts)));
  facts.occupancy = occupancy_of(*facts.artifact, facts.limits, 66);
  const Bottleneck first = diagnose(facts).bottlenecks.front();
  EXPECT_EQ(first.cause, Cause::kSmallGrid);
  EXPECT_NE(first.sentence.find("50% of it is idle"), std::string::npos) << first.sentence;
}

TEST(Profile, FaultsComeBeforeLimitsAndTheCostlierFirst) {
  ProfileFacts facts = counted_facts([](auto& c) {
    c["shared_load"]["passes"] = 8 * 36000;
    c["global_load"]["sectors"] = 2 * 34816;
  });
  const Profile profile = diagnose(facts);
  ASSERT_EQ(profile.bottlenecks.size(), 3u);
  EXPECT_EQ(profile.bottlenecks[0].cause, Cause::kBankConflicts);
  EXPECT_EQ(profile.bottlenecks[1].cause, Cause::kUncoalesced);
  EXPECT_TRUE(is_limit(profile.bottlenecks[2].cause));
  EXPECT_GT(profile.bottlenecks[0].share, profile.bottlenecks[1].share);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(profile.bottlenecks[i].rank, static_cast<int>(i) + 1);
}

TEST(Profile, TheHotLineIsInTheEvidence) {
  const ProfileFacts facts = counted_facts([](auto& c) {
    c["shared_load"]["passes"] = 8 * 36000;
    c["sites"] = {{{"where", "tile.cuh:7 load"},
                   {"caller", "kernel.cuh:9 scores"},
                   {"kind", "shared load"},
                   {"requests", 100},
                   {"passes_per_request", 4.0},
                   {"least_passes_per_request", 4.0}},
                  {{"where", "tile.cuh:8 load"},
                   {"caller", "kernel.cuh:9 scores"},
                   {"kind", "shared load"},
                   {"requests", 100},
                   {"passes_per_request", 32.0},
                   {"least_passes_per_request", 4.0}}};
  });
  const Bottleneck first = diagnose(facts).bottlenecks.front();
  ASSERT_EQ(first.evidence.size(), 2u);
  EXPECT_EQ(first.evidence[1],
            "shared load at tile.cuh:8 load, called at kernel.cuh:9 scores: 32.0 passes per request, 4.0 would do, 100 "
            "requests");
}

// 106% of hits is a quotient of two passes; by how much it is off nobody knows, so that it meets no target.
TEST(Profile, AShareAboveTheWholeIsShownAndNotJudged) {
  ProfileFacts facts = measured_facts();
  facts.counters["lts__t_sector_hit_rate.pct"] = 106.17;
  const Indicator hits = row(indicators_of(facts), "L2 hits");
  EXPECT_EQ(hits.value, std::optional(106.17));
  EXPECT_FALSE(hits.met);
  EXPECT_NE(hits.source.find("different passes"), std::string::npos) << hits.source;
  facts.counters["lts__t_sector_hit_rate.pct"] = 100;
  EXPECT_EQ(row(indicators_of(facts), "L2 hits").met, std::optional(true));
}

TEST(Profile, EachRowSaysItsSourceOrWhoWouldKnow) {
  const std::vector<Indicator> counted = indicators_of(counted_facts());
  EXPECT_FALSE(row(counted, "SM busy").value);
  EXPECT_FALSE(row(counted, "SM busy").met);
  EXPECT_EQ(row(counted, "SM busy").source, "needs hardware counters");
  EXPECT_EQ(row(counted, "SM busy").target, ">= 70");
  EXPECT_EQ(row(counted, "sectors over the fewest").source, "emulator's counts");
  EXPECT_EQ(row(counted, "sectors over the fewest").met, std::optional(true));
  EXPECT_EQ(row(counted, "spilled bytes per thread").source, "compiler");
  const std::vector<Indicator> measured = indicators_of(measured_facts());
  EXPECT_EQ(row(measured, "SM busy").value, std::optional(78.0));
  EXPECT_EQ(row(measured, "SM busy").source, "hardware counters, sm__throughput.avg.pct_of_peak_sustained_elapsed");
  EXPECT_EQ(row(measured, "L2 hits").source, "hardware counters");
  EXPECT_EQ(row(measured, "SM busy").met, std::optional(true));
  EXPECT_EQ(row(measured, "of warps' time: waits for a math pipe that is full").value, std::optional(31.0));
  EXPECT_EQ(row(measured, "multiplies under copies").source, "needs emulator's counts");
  EXPECT_EQ(row(measured, "spilled bytes per thread").source, "needs compiler");
  EXPECT_EQ(row(indicators_of(healthy_facts()), "lanes of an instruction").source,
            "needs hardware counters or emulator's counts");
}

TEST(Profile, ARowWhoseCountersAreThereHasAValue) {
  // All passes are conflicts; and a kernel without shared memory.
  const auto passes = [](double conflicts, double all) {
    return row(indicators_of(measured_facts({{"l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum", conflicts},
                                             {"l1tex__data_pipe_lsu_wavefronts_mem_shared.sum", all}})),
               "bank passes over the fewest");
  };
  EXPECT_EQ(passes(1e6, 1e6).met, std::optional(false));
  EXPECT_EQ(passes(0, 0).met, std::optional(true));
}

TEST(Profile, RoofsFollowFromCeilings) {
  ProfileFacts facts;
  facts.problem = PlacedProblem::parse("b16_h16_s2048_d64_fp16");
  facts.limits = limits_of_model("sm_90", "h200");
  facts.ceilings = Ceilings{.matmul_tflops_16bit = 600, .read_gbps = 4000, .cache_read_gbps = 8000};
  const std::vector<Roof> roofs = roofs_of(facts);
  ASSERT_EQ(roofs.size(), 4u);
  EXPECT_EQ(roofs[0].cause, Cause::kTensorCores);
  EXPECT_NEAR(roofs[0].least_us, facts.problem.flops() / 600e6, 1e-6);
  EXPECT_EQ(roofs[1].cause, Cause::kSpecialFunctions);  // 16 a cycle and SM
  EXPECT_NEAR(roofs[1].least_us, 16.0 * 16 * 2048 * 2048 / (16.0 * 132 * 1980), 1e-6);
  facts.time_us = roofs[0].least_us / 0.7;
  facts.time_from = "here";
  EXPECT_EQ(first_cause(facts), Cause::kTensorCores);
  facts.time_us = roofs[0].least_us / 0.3;
  EXPECT_EQ(first_cause(facts), Cause::kLatency);
}

// What is measured is the ceiling of 16 bits.
TEST(Profile, EightBitsAreTwiceAsFastWhereTheTensorCoresHaveThem) {
  const Problem fp8 = Problem::parse("b16_h16_s2048_d64_e4m3"), fp16 = Problem::parse("b16_h16_s2048_d64_fp16");
  const std::map<const char*, double> ratios = {{"sm_80", 1}, {"sm_86", 1}, {"sm_89", 2}, {"sm_90", 2}};
  for (const auto& [arch, ratio] : ratios) {
    ProfileFacts facts;
    facts.limits = limits_of_arch(arch);
    EXPECT_EQ(sm_rates(facts.limits, fp8).tensor_flops, ratio * sm_rates(facts.limits, fp16).tensor_flops) << arch;
    facts.problem = PlacedProblem::parse("b16_h16_s2048_d64_e4m3");
    facts.ceilings = Ceilings{.matmul_tflops_16bit = 600, .read_gbps = 4000, .cache_read_gbps = 8000};
    facts.ceilings_from = "ceiling measured here";
    const std::vector<Roof> roofs = roofs_of(facts);
    const auto roof =
        std::find_if(roofs.begin(), roofs.end(), [](const Roof& r) { return r.cause == Cause::kTensorCores; });
    ASSERT_NE(roof, roofs.end());
    EXPECT_NEAR(roof->least_us, fp8.flops() / (ratio * 600e6), 1e-6) << arch;
    EXPECT_EQ(roof->basis == facts.ceilings_from, ratio == 1) << roof->basis;
  }
}

TEST(Profile, OfACpuTimeIsHeldAgainstItsRoofs) {
  ProfileFacts facts;
  facts.problem = PlacedProblem::parse("b1_h8_s512_d64_fp32");
  facts.limits.kind = DeviceKind::kCpu;
  facts.limits.l2_bytes = 1 << 20;
  facts.ceilings = Ceilings{.fma_tflops_fp32 = 0.1, .read_gbps = 20};
  facts.time_us = facts.problem.flops() / 0.1e6 / 0.8;
  facts.time_from = "here";
  EXPECT_EQ(first_cause(facts), Cause::kFmaUnits);
  EXPECT_EQ(diagnose(facts).bottlenecks.front().sentence.find("tensor"), std::string::npos) << "a CPU has none";
  const double time_us = *facts.time_us;
  facts.time_us = 10 * time_us;
  EXPECT_EQ(first_cause(facts), Cause::kLatency);
  EXPECT_EQ(diagnose(facts).bottlenecks.front().sentence.find("timeline"), std::string::npos)
      << "nor has its kernel marks";
  facts.time_us = time_us;
  facts.machine.others_busy = 1;
  facts.machine.cores = 2;
  EXPECT_EQ(first_cause(facts), Cause::kBusyMachine);
  EXPECT_EQ(row(indicators_of(facts), "instructions").source,
            "needs hardware counters of the CPU, which flashcore does not read");
}

TEST(Profile, WithoutASourceNothingIsNamed) {
  ProfileFacts facts = healthy_facts();
  facts.artifact.reset();
  facts.occupancy.reset();
  facts.lost = {{"emulator's counts", "no compiler"}};
  const Profile profile = diagnose(facts);
  EXPECT_TRUE(profile.bottlenecks.empty());
  const nlohmann::json json = profile_json(facts, profile);
  EXPECT_EQ(json.at("lost").at(0).at("why"), "no compiler");
  EXPECT_TRUE(json.at("time_us").is_null());
  EXPECT_EQ(json.at("problem"), "b4_h16_s2048_d64_fp16");
}

TEST(Profile, CountsThatAreNoneAreRefused) {
  nlohmann::json counts = healthy_counts();
  counts.erase("waits");
  EXPECT_THROW(read_counts(counts, Problem::parse("b1_h1_s512_d64_fp16"), 128), Error);
}

TEST(Profile, BigProblemsAreCountedOnASmallOne) {
  const DeviceLimits limits = limits_of_arch("sm_90");
  const auto counted = [&](const char* id, const char* candidate) {
    return counted_problem(PlacedProblem::parse(id), candidate, limits).id();
  };
  EXPECT_EQ(counted("b1_h2_s128_d64_fp16", "sm80_fwd"), "b1_h2_s128_d64_fp16");
  EXPECT_EQ(counted("b4_h16_hk4_s2048_d64_fp16_causal", "sm80_fwd"), "b1_h4_hk1_s512_d64_fp16_causal");
  EXPECT_EQ(counted("b4_h16_hk1_s2048_d128_fp16", "sm80_fwd"), "b1_h16_hk1_s128_d128_fp16");
  // The naive kernel refuses on an emulated GPU what takes it long.
  EXPECT_EQ(counted("b4_h16_s2048_d64_fp16", "ref_fwd"), "b1_h1_s256_d64_fp16");
}

TEST(SlowKernels, AreReadAndPlantEachCauseOnce) {
  std::map<Cause, int> planted;
  for (const SlowKernel& kernel : slow_kernels()) ++planted[kernel.bottleneck];
  const std::map<Cause, int> each = {{Cause::kSpills, 1},
                                     {Cause::kLowOccupancy, 1},
                                     {Cause::kBankConflicts, 1},
                                     {Cause::kUncoalesced, 1},
                                     {Cause::kNoOverlap, 1}};
  EXPECT_EQ(planted, each);
}

TEST(SlowKernels, JudgeAProfile) {
  const SlowKernel& conflicts = slow_kernels().front();
  Profile profile;
  EXPECT_EQ(why_not_named(conflicts, profile), "no bottleneck is named");
  profile.bottlenecks = {{1, Cause::kSpills, 0.5, "", {}}, {2, Cause::kBankConflicts, 0.2, "", {}}};
  EXPECT_EQ(why_not_named(conflicts, profile), "spills comes first (50%), not bank conflicts");
  EXPECT_EQ(wrongly_named(slow_kernels(), profile), "spills, bank conflicts");
  profile.bottlenecks = {{1, Cause::kBankConflicts, 0.2, "", {}}};
  EXPECT_EQ(why_not_named(conflicts, profile), "");
}

TEST(SlowKernels, AreJudgedByTheSourceThatShowsTheCause) {
  using enum SlowJudgement::Verdict;
  const SlowKernel& conflicts = slow_kernels().front();
  const SlowSide slow{counted_facts([](auto& c) { c["shared_load"]["passes"] = 8 * 36000; }), ""};
  const SlowSide without{counted_facts(), ""};
  EXPECT_EQ(judge_slow(conflicts, slow, without).verdict, kNamed);
  EXPECT_EQ(judge_slow(conflicts, slow, without).why, "");
  // Another source that is lost excuses no miss.
  SlowSide missed = without;
  missed.facts.lost = {{"hardware counters", "no ncu"}};
  EXPECT_EQ(judge_slow(conflicts, missed, without).verdict, kMissed);
  // The compiler's facts alone show no bank conflict, on either side.
  const SlowSide compiled{healthy_facts(), ""};
  EXPECT_EQ(judge_slow(conflicts, compiled, without).verdict, kLacking);
  EXPECT_EQ(judge_slow(conflicts, slow, compiled).verdict, kLacking);
  EXPECT_EQ(judge_slow(conflicts, slow, slow).verdict, kMissed);
  EXPECT_EQ(judge_slow(conflicts, {slow.facts, "wrong"}, without).verdict, kMissed);
  EXPECT_EQ(judge_slow(conflicts, slow, {without.facts, "wrong"}).verdict, kMissed);
}

TEST(SlowKernels, EachCauseShowsInSomeSourceAndInNoneWithoutFacts) {
  ProfileFacts none = healthy_facts();
  none.artifact.reset();
  none.occupancy.reset();
  for (const SlowKernel& kernel : slow_kernels()) {
    EXPECT_TRUE(could_show(kernel.bottleneck, counted_facts())) << kernel.name;
    EXPECT_TRUE(could_show(kernel.bottleneck, measured_facts())) << kernel.name;
    EXPECT_FALSE(could_show(kernel.bottleneck, none)) << kernel.name;
  }
  // A limit is no fault that a source could have shown.
  for (const auto& [cause, word] : WordsOf<Cause>::table)
    if (is_limit(cause)) EXPECT_FALSE(could_show(cause, measured_facts())) << word;
    else EXPECT_NO_THROW((void)could_show(cause, measured_facts())) << word;
}

TEST(SlowKernels, ComplaintsNameTheLine) {
  try {
    parse_slow_kernels("slow:\n  - {name: a, does: b, bottleneck: sloth, candidate: c, problem: b1_h1_s8_d64_fp16}\n",
                       "s.yaml");
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("s.yaml:2"), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("'sloth'"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace flashcore
