// The table of targets: each row asks the sources in turn, and says which would answer where none does.

#include <algorithm>

#include "lab/diagnose/metrics.h"
#include "lab/diagnose/profile.h"
#include "lab/diagnose/targets.h"

namespace flashcore {
namespace {

constexpr const char* kNsightSource = "hardware counters";
constexpr const char* kCountsSource = "emulator's counts";
constexpr const char* kCompilerSource = "compiler";

// Nsight Compute replays the kernel for counters that do not fit into one pass, and what two replays count differs:
// 106% of hits, where the lookups are of another pass than the hits. By how much such a share is off is not known, and
// it is held against no target.
constexpr const char* kOfTwoPasses = " of different passes, or no share would be above 100%: not judged";

struct IndicatorTarget {
  enum class Kind { kNone, kAtLeast, kAtMost } kind = Kind::kNone;
  double value = 0;
};
IndicatorTarget at_least(double value) { return {IndicatorTarget::Kind::kAtLeast, value}; }
IndicatorTarget at_most(double value) { return {IndicatorTarget::Kind::kAtMost, value}; }

struct IndicatorReading {
  std::optional<double> value;
  std::string source;
};

class IndicatorTable {
 public:
  explicit IndicatorTable(const ProfileFacts& facts) : facts_(facts) {}

  // The first reading with a value counts; without one the row says whom to ask.
  void add(std::string name, std::string unit, IndicatorTarget target, const std::vector<IndicatorReading>& readings) {
    Indicator row{std::move(name), std::nullopt, std::move(unit), "", std::nullopt, ""};
    if (target.kind != IndicatorTarget::Kind::kNone)
      row.target = fmt::format("{} {:g}", target.kind == IndicatorTarget::Kind::kAtLeast ? ">=" : "<=", target.value);
    for (const IndicatorReading& reading : readings) {
      if (!reading.value) continue;
      row.value = reading.value;
      row.source = reading.source;
      if (row.unit == "%" && *row.value > 100 && row.source.starts_with(kNsightSource)) {
        row.source += kOfTwoPasses;
        break;
      }
      if (target.kind == IndicatorTarget::Kind::kAtLeast) row.met = *row.value >= target.value;
      if (target.kind == IndicatorTarget::Kind::kAtMost) row.met = *row.value <= target.value;
      break;
    }
    if (!row.value) {
      row.source = "needs ";
      for (std::size_t i = 0; i < readings.size(); ++i)
        row.source += (i == 0 ? "" : i + 1 == readings.size() ? " or " : ", ") + readings[i].source;
    }
    rows_.push_back(std::move(row));
  }

  IndicatorReading of(Metric metric, double factor = 1) const {
    auto value = value_of(facts_.counters, metric);
    if (value) *value *= factor;
    // The further names of a metric are near to its first one, not the same.
    if (value && names_of(metric).size() > 1)
      return {value, fmt::format("{}, {}", kNsightSource, name_of_value(facts_.counters, metric))};
    return {value, kNsightSource};
  }
  template <class Get>
  IndicatorReading counted(const Get& get) const {
    return {facts_.counts ? std::optional<double>(get(*facts_.counts)) : std::nullopt, kCountsSource};
  }
  template <class Get>
  IndicatorReading compiled(const Get& get) const {
    return {facts_.artifact ? std::optional<double>(get(*facts_.artifact)) : std::nullopt, kCompilerSource};
  }
  template <class Get>
  IndicatorReading occupied(const Get& get) const {
    return {facts_.occupancy ? std::optional<double>(get(*facts_.occupancy)) : std::nullopt, kCompilerSource};
  }
  std::vector<Indicator> take() { return std::move(rows_); }

 private:
  const ProfileFacts& facts_;
  std::vector<Indicator> rows_;
};

std::optional<double> ratio_of(std::optional<double> part, std::optional<double> whole) {
  return part && whole && *whole > 0 ? std::optional(*part / *whole) : std::nullopt;
}

// Over the fewest sectors that could hold the bytes.
IndicatorReading sectors_of_hardware(const ProfileFacts& facts) {
  const auto use = sector_use(facts.counters);
  return {use ? std::optional(use->excess()) : std::nullopt, kNsightSource};
}

IndicatorReading passes_of_hardware(const ProfileFacts& facts) {
  const auto conflicts = value_of(facts.counters, Metric::kBankConflicts);
  const auto passes = value_of(facts.counters, Metric::kSharedPasses);
  if (!conflicts || !passes) return {std::nullopt, kNsightSource};
  return {*passes > 0 ? *passes / std::max(*passes - *conflicts, 1.0) : 1, kNsightSource};
}

double lanes_of_counts(const EmulatorCounts& c) {
  const CountedTraffic global = c.global(), shared = c.shared();
  const double possible = global.possible_lanes + shared.possible_lanes;
  return possible > 0 ? 32 * (global.lanes + shared.lanes) / possible : 32;
}

void add_gpu_rows(IndicatorTable& table, const ProfileFacts& f) {
  using namespace target;
  const IndicatorTarget none;
  const SmRates rates = sm_rates(f.limits, f.problem);
  table.add(kSmBusyIndicator, "%", at_least(kSmBusy), {table.of(Metric::kSmBusy)});
  table.add("SMs with work", "%", at_least(90), {table.of(Metric::kSmsWithWork)});
  table.add("warps per SM", "warps", at_least(kWarpsPerSm),
            {table.of(Metric::kWarpsPerSm),
             table.occupied([&](const Occupancy& o) { return f.artifact ? warps_per_sm(o, *f.artifact) : 0; })});
  table.add("waves of CTAs", "", none, {table.occupied([](const Occupancy& o) { return o.waves; })});
  table.add("last wave full", "%", none, {table.occupied([](const Occupancy& o) { return 100 * o.last_wave; })});
  table.add("tensor cores", "%", at_least(kTensor), {table.of(Metric::kTensor)});
  table.add("special-function units", "%", at_most(kThroughput), {table.of(Metric::kSpecial)});
  table.add("FMA units", "%", at_most(kThroughput), {table.of(Metric::kFma)});
  table.add("DRAM throughput", "%", at_most(kThroughput), {table.of(Metric::kDram)});
  table.add("L2 throughput", "%", at_most(kThroughput), {table.of(Metric::kL2)});
  table.add("L1 hits", "%", none, {table.of(Metric::kL1Hits)});
  table.add("L2 hits", "%", at_least(kL2Hits), {table.of(Metric::kL2Hits)});
  table.add("sectors over the fewest", "x", at_most(kExcess),
            {sectors_of_hardware(f), table.counted([](const EmulatorCounts& c) { return c.global().excess(); })});
  table.add(kBankPassesIndicator, "x", at_most(kExcess),
            {passes_of_hardware(f), table.counted([](const EmulatorCounts& c) { return c.shared().excess(); })});
  table.add("lanes of an instruction", "of 32", at_least(32 * kLanes),
            {table.of(Metric::kLanesPerIssue), table.counted(lanes_of_counts)});
  table.add("issue slots used", "%", none, {table.of(Metric::kIssueSlots)});
  const auto stalls = stalls_of(f.counters);
  for (std::size_t i = 0; i < 3; ++i) {
    if (i > 0 && i >= stalls.size()) break;
    table.add(i < stalls.size() ? fmt::format("of warps' time: waits for {}", stalls[i].first.words) : "why warps wait",
              "%", none, {{i < stalls.size() ? std::optional(stalls[i].second) : std::nullopt, kNsightSource}});
  }
  const bool overlap = f.counts && f.counts->knows_overlap();
  table.add("multiplies under copies", "%", at_least(100 * kUnderCopies),
            {{overlap ? std::optional(100 * f.counts->mma_under_copies) : std::nullopt,
              overlap || !f.counts ? kCountsSource : "asynchronous copies, which the kernel has not"}});
  const bool multiplies = f.counts && f.counts->mma_instructions > 0 && f.counts->flops > 0;
  table.add("FLOPs done over needed", "x", none,
            {{multiplies ? std::optional(f.counts->mma_flops / f.counts->flops) : std::nullopt,
              multiplies || !f.counts ? kCountsSource : "matrix instructions, which the kernel has not"}});
  table.add("exponentials done over needed", "x", none,
            {table.counted([](const EmulatorCounts& c) { return c.exps > 0 ? c.ex2 / c.exps : 0; })});
  table.add("barrier waits per thread", "", none, {table.counted([](const EmulatorCounts& c) {
              return c.ctas > 0 && c.threads_per_cta > 0 ? c.barrier_waits / (c.ctas * c.threads_per_cta) : 0;
            })});
  const std::pair<const char*, double PipeCycles::*> pipes[] = {{"tensor cores", &PipeCycles::tensor},
                                                                {"FMA units", &PipeCycles::fma},
                                                                {"special functions", &PipeCycles::special},
                                                                {"shared memory", &PipeCycles::shared},
                                                                {"L2", &PipeCycles::l2}};
  for (const auto& [name, member] : pipes)
    table.add(fmt::format("cycles of {}, by the model", name), "%", none, {table.counted([&](const EmulatorCounts& c) {
                const PipeCycles cycles = cycles_of(c, rates);
                return cycles.sum() > 0 ? 100 * cycles.*member / cycles.sum() : 0;
              })});
  table.add("registers per thread", "", at_most(255),
            {table.of(Metric::kRegistersPerThread), table.compiled([](const Artifact& a) { return a.registers; })});
  table.add("spilled bytes per thread", "bytes", at_most(0),
            {table.compiled([](const Artifact& a) { return target::spills_of(a).sum(); })});
  table.add("stack per thread", "bytes", at_most(0), {table.compiled([](const Artifact& a) { return a.stack_bytes; })});
  table.add("shared memory per CTA", "bytes", none,
            {table.compiled([](const Artifact& a) { return a.static_shared_bytes + a.dynamic_shared_bytes; })});
}

void add_cpu_rows(IndicatorTable& table, const ProfileFacts& f) {
  const IndicatorTarget none;
  const auto known = [](double value) { return value > 0 ? std::optional(value) : std::nullopt; };
  table.add("threads", "", none, {{known(f.threads), "config"}});
  table.add("cores", "", none, {{known(f.machine.cores), "system"}});
  table.add("cores that other programs used", "", at_most(kBusyCores),
            {{f.machine.others_busy >= 0 ? std::optional(f.machine.others_busy) : std::nullopt, "system"}});
  for (const char* name : {"cycles", "instructions", "cache misses"})
    table.add(name, "", none, {{std::nullopt, "hardware counters of the CPU, which flashcore does not read"}});
}

void add_time_rows(IndicatorTable& table, const ProfileFacts& f) {
  const auto rate = [&](double units) {
    return f.time_us && *f.time_us > 0 ? std::optional(units / *f.time_us) : std::nullopt;
  };
  const char* source = "a time";
  table.add("TFLOP/s", "", {}, {{rate(f.problem.flops() * 1e-6), source}});
  table.add("GB/s of q, k, v and o", "", {}, {{rate(f.problem.bytes() * 1e-3), source}});
  double highest = 0;
  for (const Roof& roof : roofs_of(f)) highest = std::max(highest, roof.least_us);
  table.add("of the highest roof", "%", at_least(100 * target::kRoof),
            {{f.ceilings ? ratio_of(100 * highest, f.time_us) : std::nullopt, "a time and ceilings"}});
}

}  // namespace

std::vector<Indicator> indicators_of(const ProfileFacts& facts) {
  IndicatorTable table(facts);
  add_time_rows(table, facts);
  if (facts.limits.kind == DeviceKind::kCuda) add_gpu_rows(table, facts);
  else add_cpu_rows(table, facts);
  return table.take();
}

}  // namespace flashcore
