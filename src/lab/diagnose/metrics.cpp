#include "lab/diagnose/metrics.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "core/foreign_text.h"

namespace flashcore {
namespace {

struct MetricRow {
  Metric metric;
  std::vector<std::string> names;
};

// Names differ between versions of Nsight Compute and between GPUs; what one does not know is left out.
const std::vector<MetricRow>& metric_rows() {
  static const std::vector<MetricRow> rows = {
      {Metric::kDuration, {"gpu__time_duration.sum"}},
      {Metric::kSmBusy,
       {"sm__instruction_throughput.avg.pct_of_peak_sustained_active",
        "sm__throughput.avg.pct_of_peak_sustained_elapsed"}},
      {Metric::kSmsWithWork, {"sm__cycles_active.avg.pct_of_peak_sustained_elapsed"}},
      {Metric::kWarpsPerSm, {"sm__warps_active.avg.per_cycle_active"}},
      {Metric::kTensor,
       {"sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
        "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_active",
        "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active"}},
      {Metric::kSpecial, {"sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_active"}},
      {Metric::kFma,
       {"sm__pipe_fma_cycles_active.avg.pct_of_peak_sustained_active",
        "sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active"}},
      {Metric::kDram,
       {"gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
        "dram__throughput.avg.pct_of_peak_sustained_elapsed"}},
      {Metric::kL2, {"lts__throughput.avg.pct_of_peak_sustained_elapsed"}},
      {Metric::kL1Hits, {"l1tex__t_sector_hit_rate.pct"}},
      {Metric::kL2Hits, {"lts__t_sector_hit_rate.pct"}},
      {Metric::kLoadedBytes, {"smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct"}},
      {Metric::kStoredBytes, {"smsp__sass_average_data_bytes_per_sector_mem_global_op_st.pct"}},
      {Metric::kCopiedBytes, {"smsp__sass_average_data_bytes_per_sector_mem_global_op_ldgsts.pct"}},
      {Metric::kLoadedSectors, {"l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"}},
      {Metric::kStoredSectors, {"l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum"}},
      {Metric::kCopiedSectors,
       {"l1tex__t_sectors_pipe_lsu_mem_global_op_ldgsts.sum",
        "sm__sass_l1tex_t_sectors_pipe_lsu_mem_global_op_ldgsts_cache_access.sum"}},
      {Metric::kCopiedSectorsPastL1, {"sm__sass_l1tex_t_sectors_pipe_lsu_mem_global_op_ldgsts_cache_bypass.sum"}},
      {Metric::kL2Sectors, {"lts__t_sectors.sum"}},
      {Metric::kBankConflicts, {"l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum"}},
      {Metric::kSharedPasses, {"l1tex__data_pipe_lsu_wavefronts_mem_shared.sum"}},
      {Metric::kSmCycles, {"sm__cycles_elapsed.sum"}},
      {Metric::kLanesPerIssue, {"smsp__thread_inst_executed_per_inst_executed.ratio"}},
      {Metric::kIssueSlots, {"smsp__issue_active.avg.pct_of_peak_sustained_active"}},
      {Metric::kLocalLoads, {"smsp__inst_executed_op_local_ld.sum"}},
      {Metric::kLocalStores, {"smsp__inst_executed_op_local_st.sum"}},
      {Metric::kInstructions, {"smsp__inst_executed.sum"}},
      {Metric::kRegistersPerThread, {"launch__registers_per_thread"}}};
  return rows;
}

}  // namespace

const std::vector<std::string>& names_of(Metric metric) {
  for (const MetricRow& row : metric_rows())
    if (row.metric == metric) return row.names;
  throw_internal("metric {} has no name", static_cast<int>(metric));
}

std::optional<Metric> metric_of(std::string_view name) {
  for (const MetricRow& row : metric_rows())
    if (std::find(row.names.begin(), row.names.end(), name) != row.names.end()) return row.metric;
  return std::nullopt;
}

const std::vector<StallReason>& stall_reasons() {
  static const std::vector<StallReason> reasons = {
      {"long_scoreboard", "data from global or local memory, and copies of cp.async", true},
      {"short_scoreboard", "shared memory or a special function", true},
      {"barrier", "a barrier of the CTA, named ones too", true},
      {"membar", "a memory fence", true},
      {"math_pipe_throttle", "a math pipe that is full"},
      {"mio_throttle", "the queue of shared memory and special functions"},
      {"lg_throttle", "the queue of global memory"},
      {"tex_throttle", "the queue of the texture unit"},
      {"gmma", "the tensor cores (wgmma)", true},
      {"wait", "a fixed latency of the instruction before"},
      {"no_instruction", "the instruction cache"},
      {"imc_miss", "the constant cache"},
      {"branch_resolving", "the target of a branch"},
      {"dispatch_stall", "the dispatcher"},
      {"drain", "stores at the end of the kernel"},
      {"sleeping", "a sleep of its own"},
      {"not_selected", "another warp that issued"},
      {"selected", "nothing: it issued"}};
  return reasons;
}

std::string stall_metric(std::string_view reason) {
  return fmt::format("smsp__warp_issue_stalled_{}_per_warp_active.pct", reason);
}

std::vector<std::string> profile_metrics() {
  std::vector<std::string> all;
  for (const MetricRow& row : metric_rows()) all.insert(all.end(), row.names.begin(), row.names.end());
  for (const StallReason& reason : stall_reasons()) all.push_back(stall_metric(reason.name));
  return all;
}

std::vector<std::string> drop_impossible(CounterValues& counters) {
  // Passes of a profiler differ, and a share that two of them make may come out above the whole.
  constexpr double kMostPercent = 110;
  const auto most = [](const std::string& name) {
    const auto metric = metric_of(name);
    if (metric == Metric::kLanesPerIssue) return 32.0;
    if (metric == Metric::kWarpsPerSm) return 64.0;
    if (metric == Metric::kRegistersPerThread) return 255.0;
    const bool share = name.ends_with(".pct") || name.find(".pct_of_peak") != std::string::npos;
    return share ? kMostPercent : std::numeric_limits<double>::max();
  };
  std::vector<std::string> dropped;
  std::erase_if(counters, [&](const auto& counter) {
    const auto& [name, value] = counter;
    const double least = metric_of(name) == Metric::kDuration ? std::numeric_limits<double>::min() : 0;
    if (value >= least && value <= most(name)) return false;
    if (value > most(name) && std::isfinite(value))
      dropped.push_back(fmt::format("{} is {:g}, and at most {:g} is possible", name, value, most(name)));
    else dropped.push_back(fmt::format("{} is {:g}, which is impossible", name, value));
    return true;
  });
  return dropped;
}

std::optional<double> value_of(const CounterValues& counters, Metric metric) {
  for (const std::string& name : names_of(metric))
    if (const auto found = counters.find(name); found != counters.end()) return found->second;
  return std::nullopt;
}

std::string name_of_value(const CounterValues& counters, Metric metric) {
  for (const std::string& name : names_of(metric))
    if (counters.contains(name)) return name;
  return "";
}

std::optional<SectorUse> sector_use(const CounterValues& counters) {
  std::optional<double> copied = value_of(counters, Metric::kCopiedSectors);
  if (copied && !counters.contains(names_of(Metric::kCopiedSectors).front())) {
    // This version counts copies through L1 and those past it apart.
    const auto past = value_of(counters, Metric::kCopiedSectorsPastL1);
    copied = past ? std::optional(*copied + *past) : std::nullopt;
  }
  // What loads touch holds what copies touch: of a kernel with copies and no load, 34,078,720 sectors of loads beside
  // 34,075,536 of copies on an H200. What two passes of a profiler count may differ a little.
  std::optional<double> loaded = value_of(counters, Metric::kLoadedSectors);
  if (loaded && copied) loaded = std::max(*loaded - *copied, 0.0);
  struct Kind {
    const char* words;
    Metric used;
    std::optional<double> sectors;
  };
  const Kind kinds[] = {
      {"loads", Metric::kLoadedBytes, loaded},
      {"cp.async copies", Metric::kCopiedBytes, copied},
      {"stores", Metric::kStoredBytes, value_of(counters, Metric::kStoredSectors)},
  };
  SectorUse use;
  for (const Kind& kind : kinds) {
    const auto percent = value_of(counters, kind.used);
    // No such access: then its share of used bytes is 0, or unknown beside no sectors.
    if (percent ? *percent <= 0 : kind.sectors.value_or(0) <= 0) continue;
    if (!percent || !kind.sectors) return std::nullopt;
    use.touched += *kind.sectors;
    use.needed += *kind.sectors * std::min(*percent / 100, 1.0);
    use.words.push_back(fmt::format("{} use {:.0f}% of the bytes of each of their {:.0f} sectors", kind.words, *percent,
                                    *kind.sectors));
  }
  return use.touched > 0 ? std::optional(use) : std::nullopt;
}

std::vector<std::pair<StallReason, double>> stalls_of(const CounterValues& counters) {
  std::vector<std::pair<StallReason, double>> stalls;
  for (const StallReason& reason : stall_reasons()) {
    if (reason.name == "selected" || reason.name == "not_selected") continue;
    if (const auto found = counters.find(stall_metric(reason.name)); found != counters.end())
      stalls.emplace_back(reason, found->second);
  }
  std::stable_sort(stalls.begin(), stalls.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  return stalls;
}

void check_metric_name(std::string_view name) {
  const bool letters =
      std::all_of(name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) || c == '_' || c == '.'; });
  if (!letters || name.find("__") == std::string_view::npos)
    throw_bad_input(
        "'{}' is no name of a hardware counter; Nsight Compute's have a unit, two underscores and a quantity, as "
        "sm__cycles_active.avg; `ncu --query-metrics` lists them",
        excerpt(name));
}

}  // namespace flashcore
