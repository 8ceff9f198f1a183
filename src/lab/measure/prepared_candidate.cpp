#include "lab/measure/prepared_candidate.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "lab/harness/amax.h"
#include "lab/record/checks.h"

namespace flashcore {
namespace {

constexpr int kMaxCopies = 64;
constexpr double kShortestSampleUs = 1;

// How many sets of buffers a cold measurement rotates through: more than twice the last-level cache, while they fit
// into a quarter of the memory.
int copies_for(const PlacedProblem& problem, const DeviceInfo& device, Regime regime) {
  if (regime != Regime::kCold) return 1;
  const auto each = static_cast<double>(std::max<std::size_t>(Operands::total_bytes(problem), 1));
  const double wanted = std::floor(2.0 * static_cast<double>(device.limits.l2_bytes) / each) + 2;
  const double affordable = device.memory_bytes > 0 ? 0.25 * static_cast<double>(device.memory_bytes) / each : wanted;
  return static_cast<int>(std::clamp(std::min(wanted, affordable), 1.0, static_cast<double>(kMaxCopies)));
}

}  // namespace

BufferSet::BufferSet(Device& device, const PlacedProblem& problem, Regime regime, const AttentionInputs& inputs) {
  const int copies = copies_for(problem, device.info(), regime);
  for (int i = 0; i < copies; ++i) {
    copies_.push_back(std::make_unique<Operands>(device, problem));
    copies_.back()->upload(inputs);
    copies_.back()->poison_outputs();
  }
}

void BufferSet::poison_outputs() {
  for (const auto& copy : copies_) copy->poison_outputs();
}

PreparedCandidate::PreparedCandidate(Device& device, const PlacedProblem& problem, const CompiledCandidate& compiled,
                                     const PrepareOptions& options, const std::vector<BufferSet*>& sets,
                                     LaunchWrapper wrapper)
    : device_(&device),
      options_(options),
      wrapper_(std::move(wrapper)),
      loaded_(device, compiled.candidate, problem, compiled.artifact) {
  FC_CHECK(!sets.empty());
  for (BufferSet* set : sets) {
    places_.push_back(std::make_unique<Place>());
    places_.back()->buffers = set;
    bind(*places_.back(), options.sample_us);
  }
  use_launches(launches_per_sample());
}

void PreparedCandidate::bind(Place& place, double sample_us) {
  std::vector<Launch> launches;
  for (int i = 0; i < place.buffers->copies(); ++i) {
    Launch launch = loaded_.bind(place.buffers->copy(i).args());
    launches.push_back(wrapper_ ? wrapper_(std::move(launch)) : std::move(launch));
  }
  place.timer = device_->make_timer(launches, options_.regime, sample_us);
  place.launches = std::move(launches);
}

void PreparedCandidate::bind_again() {
  constexpr std::size_t kPaddings = 8, kMaxPages = 64, kPage = 4096;
  const int launches = launches_per_sample();
  for (const auto& place : places_) {
    padding_.emplace_back((1 + random_.below(kMaxPages)) * kPage);
    // The number of launches is known: the shortest sample spares the timer from finding it.
    bind(*place, kShortestSampleUs);
  }
  if (padding_.size() > kPaddings) padding_.erase(padding_.begin(), padding_.end() - kPaddings);
  use_launches(launches);
}

void PreparedCandidate::use_launches(int launches) {
  for (const auto& place : places_) place->timer->use_launches(launches);
}

void PreparedCandidate::refresh_outputs(int set) {
  if (is_on(Check::kTimedPoison)) buffers(set).poison_outputs();
  for (int i = 0; i < buffers(set).copies(); ++i) sample(set);
  device_->synchronize();
}

JudgedOutputs PreparedCandidate::judge_outputs(int set, const PlacedProblem& problem, const Oracle& oracle) const {
  const AttentionOutputs first = buffers(set).copy(0).download_outputs();
  const OutputError error = compare(problem, oracle.reference, gather_rows(first.o, oracle.rows),
                                    gather_lse(problem, first.lse, oracle.rows));
  const auto wrong = [&]() -> std::string {
    for (int i = 0; i < buffers(set).copies() && is_on(Check::kRedZones); ++i)
      if (const auto name = buffers(set).copy(i).broken_red_zone())
        return fmt::format("the red zone around {} is broken", *name);
    if (const std::int64_t unwritten = is_on(Check::kUnwritten) ? count_unwritten(first) : 0)
      return fmt::format("{} elements were never written", unwritten);
    if (exceeded(error, oracle.bound)) return describe_error(error, oracle.bound);
    if (auto amax = find_wrong_amax(problem, oracle.reference, oracle.rows, first)) return *amax;
    for (int i = 1; i < buffers(set).copies(); ++i)
      if (!bitwise_equal(first, buffers(set).copy(i).download_outputs()))
        return "two copies of the same inputs gave different bits";
    return "";
  };
  return {wrong(), error};
}

}  // namespace flashcore
