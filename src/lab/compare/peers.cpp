#include "lab/compare/peers.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <set>
#include <thread>

#include "core/error.h"
#include "core/parallel.h"
#include "core/problem_fields.h"
#include "core/problem_row.h"
#include "core/scratch_folder.h"
#include "lab/compare/bench.h"
#include "lab/compare/peer_files.h"
#include "lab/compare/peer_rows.h"
#include "lab/compare/peer_sessions.h"
#include "lab/compare/peer_table.h"
#include "lab/measure/engine.h"
#include "lab/measure/floor.h"
#include "lab/measure/race.h"
#include "lab/process/worker.h"

namespace flashcore {
namespace {

using nlohmann::json;

// The thread pools of onnxruntime and of OpenMP spin for some milliseconds after a call, and disturb whoever is next.
// After 1 ms the party behind onnxruntime took 17.6% longer on 2 cores; on 16 there were stalls of 8 ms, and factors of
// 7 between the peers' process and the laboratory's.
constexpr double kPeerGapMsGpu = 10, kPeerGapMsCpu = 50;
constexpr double kSustainedWarmUpMs = 100, kSustainedMs = 200, kSustainedSampleUs = 5000;
constexpr double kSlowSetUpSeconds = 20, kSecondsPerProblem = 8;
constexpr std::int64_t kReferenceShare = 10;  // the gates saw ten times as many rows

class PeerRun {
 public:
  PeerRun(const PeersOptions& options, Store* store, const std::function<bool()>& stop)
      : options_(options),
        store_(store),
        stop_(stop),
        started_(steady_seconds()),
        programs_(options.device, options.deadlines, stop, [this] { return seconds_left(); }),
        random_(options.order_seed ? options.order_seed : std::random_device{}()) {
    result_.run = fmt::format("peers-{}-{}", now_iso8601(), getpid());
    programs_.join(options.programs, options.parties);
    programs_.start_laboratory(options.laboratory);
    result_.absent = programs_.absent();
  }

  PeersResult run(const PeersProgress& progress) {
    int left = static_cast<int>(options_.suite.problems.size());
    try {
      for (const NamedProblem& named : options_.suite.problems) {
        if (stop_ && stop_()) throw Cancelled("stopped between two problems");
        json row = measure(named, left--);
        if (progress) progress(row, result_.absent);
        result_.rows.push_back(std::move(row));
      }
    } catch (const Cancelled&) {
      result_.interrupted = true;
    }
    return std::move(result_);
  }

 private:
  double seconds_left() const { return options_.budget_seconds - (steady_seconds() - started_); }

  json measure(const NamedProblem& named, int problems_left) {
    began_at_ = now_iso8601();
    Trial trial;
    std::string why;
    json question = {{"op", "judge"},
                     {"name", named.name},
                     {"suite", options_.suite.name},
                     {"regime", regime()},
                     {"seed", options_.seed}};
    put_problem(question, named.problem);
    if (options_.candidate) question["candidate"] = *options_.candidate;
    try {
      const json judged = programs_.ask_laboratory(question);
      trial = judged.at("trial").get<Trial>();
      why = judged.at("why").get<std::string>();
    } catch (const std::runtime_error& e) {
      if (dynamic_cast<const Cancelled*>(&e)) throw;
      trial.problem = named.problem;
      trial.problem_name = named.name;
      trial.suite = options_.suite.name;
      trial.device = programs_.device();
      trial.created_at = now_iso8601();
      trial.phase = Phase::kBench;
      return without_time(trial, dynamic_cast<const PeerError*>(&e) ? Ended::kInvalid : Ended::kCrashed, e.what());
    }
    trial.run = result_.run;
    if (trial.ended != Ended::kPassed || !trial.timing) return without_time(trial, trial.ended, trial.message);
    // A party that fails is left out, and the rest begins anew.
    std::map<std::string, std::string> refused = programs_.absent();
    for (;;) {
      try {
        json row = race(trial, why, problems_left, refused);
        programs_.release_all();
        return row;
      } catch (const PartyFailed& failed) {
        programs_.release_all();
        if (failed.party == kOurParty || failed.party == kLaboratory)
          return without_time(trial, Ended::kCrashed, failed.what());
        refused[failed.party] = failed.what();
      }
    }
  }

  json race(Trial trial, const std::string& why, int problems_left, std::map<std::string, std::string>& refused) {
    const PlacedProblem problem = trial.problem;
    std::map<std::string, json> wrong_peers;
    const auto oracle = shared_oracles().get(problem, Pattern::kNormal, timing_seed(options_.seed),
                                             EvaluateRequest().max_reference_flops / kReferenceShare);
    std::vector<Party> parties = prepare(trial, oracle->inputs, problems_left, refused);
    const std::uint64_t order_seed = random_.next();
    const LoadMeter meter;
    take_rounds(parties, order_seed);
    meter.read(trial.machine);
    const json environment = programs_.ask_laboratory({{"op", "environment"}});
    std::vector<OutputJudgement> judged;
    for (const Party& party : parties) judged.push_back(judge(party, problem, *oracle));

    const std::size_t ours = index_of_ours(parties);
    const Party& own = parties[ours];
    for (std::size_t i = 0; i < parties.size(); ++i)
      if (!judged[i].wrong.empty() && (i == ours || parties[i].name == kLaboratory))
        return without_time(trial, Ended::kIncorrect,
                            fmt::format("the timed output ({}) is wrong: {}", parties[i].name, judged[i].wrong));
    set_timing(trial, own);
    if (const auto below = why_below_floor(*trial.timing)) return without_time(trial, Ended::kError, *below);

    json row = bench_row(trial);
    row["why"] = why;
    row["device"]["driver"] = trial.device.driver;
    row["device"]["ceilings"] = programs_.ceilings();
    // The row's bound is of the data that came nearest to its own, which need not be the data that was timed.
    row["correct"]["timed_rel_error"] = judged[ours].rel_error;
    row["correct"]["timed_bound"] = oracle->bound.rel;
    row["registers"] = trial.artifact ? json(trial.artifact->registers) : json();
    put_checkout(row["environment"], options_.checkout);
    row["peers"] = json::array();
    row["correct"]["timed_rows"] = oracle->rows.all ? "all" : "sampled";
    json session = this_session();
    session.update({{"driver", trial.device.driver},
                    {"rounds", options_.rounds},
                    {"order_seed", order_seed},
                    {"condition", to_string(options_.condition)},
                    {"launches", own.launches},
                    {"measure_ms", measure_ms()},
                    {"timed_in", own.name == kLaboratory ? "the laboratory" : "the peers' process"},
                    {"clock_mhz", own.clock_mhz()},
                    {"load_average", {trial.machine.load_before, trial.machine.load_after}},
                    {"others_busy", trial.machine.others_busy >= 0 ? json(trial.machine.others_busy) : json()},
                    {"cores", hardware_threads()},
                    {"environment", environment},
                    {"samples_us", own.rounded_samples()}});
    // Its program has a compiler of its own. On a CPU the module is another in any case.
    if (options_.on_gpu && !own.code_hash.empty()) session["code_hash"] = own.code_hash;
    for (std::size_t i = 0; i < parties.size(); ++i) {
      const Party& party = parties[i];
      if (party.name == kLaboratory) {
        if (i != ours) session["laboratory_us"] = party.rounded_samples();
      } else if (i != ours) {
        add_peer(row, party, judged[i], trial.timing->floor_us, refused);
        if (!judged[i].wrong.empty()) wrong_peers[party.name] = {{"version", party.version}, {"why", judged[i].wrong}};
      }
    }
    if (!wrong_peers.empty()) row["wrong_peers"] = wrong_peers;
    row["measured"] = json::array({session});
    row["refused"] = refused;
    derive_figures(row, options_.margin);
    if (std::string apart = compare_with_laboratory(row, parties, ours); !apart.empty())
      return refuse(std::move(row), std::move(apart));
    record(trial, row);
    return row;
  }

  // The laboratory times such a problem alone.
  static const char* why_no_party(const PlacedProblem& problem) {
    return problem.kv_dtype == DType::kInt4 ? "PyTorch has no int4, and no peer is handed a cache of it" : nullptr;
  }

  std::vector<Party> prepare(const Trial& trial, const AttentionInputs& inputs, int problems_left,
                             std::map<std::string, std::string>& refused) {
    const PlacedProblem& problem = trial.problem;
    json question = {{"op", "prepare"},
                     {"fields", problem_json(problem)},
                     {"layout", to_string(problem.layout)},
                     {"candidate", trial.candidate()},
                     {"regime", regime()},
                     {"seed", options_.seed},
                     {"sample_us", is_sustained() ? kSustainedSampleUs : 0.0}};
    put_problem(question, problem);
    std::vector<Party> parties;
    int launches = 0;
    const char* none_can = why_no_party(problem);
    if (programs_.any() && !none_can) question["inputs"] = write_inputs(scratch_.path(), problem, inputs);
    for (Party party : programs_.offered()) {
      if (refused.contains(party.name)) continue;
      if (none_can) {
        if (party.name != kOurParty) refused[party.name] = none_can;
        continue;
      }
      double& spent = set_up_seconds_[party.name];
      if (party.name != kOurParty && seconds_left() < kSecondsPerProblem * problems_left && spent > kSlowSetUpSeconds) {
        refused[party.name] =
            fmt::format("left out here: setting it up took {:.0f} s before, and the budget of {:.0f} s would not last",
                        spent, options_.budget_seconds);
        continue;
      }
      const double begin = steady_seconds();
      const std::string why_not = programs_.prepare(party, question);
      spent += steady_seconds() - begin;
      if (!why_not.empty() && party.name == kOurParty)
        throw PartyFailed(kOurParty, "the peers' process cannot run it: " + why_not);
      if (!why_not.empty()) {
        refused[party.name] = why_not;
        continue;
      }
      if (party.name == kOurParty) launches = party.launches;
      parties.push_back(std::move(party));
    }
    Party laboratory{.name = kLaboratory};
    question.erase("inputs");
    // Timers with the same number of launches, for the first after a pause are slow. A CPU's counts its own.
    if (options_.on_gpu) question["launches"] = launches;
    if (const std::string why_not = programs_.prepare(laboratory, question); !why_not.empty())
      throw PartyFailed(kLaboratory, why_not);
    parties.push_back(std::move(laboratory));
    return parties;
  }

  void take_rounds(std::vector<Party>& parties, std::uint64_t order_seed) {
    SplitMix random(order_seed);
    const double gap_ms = options_.gap_ms >= 0 ? options_.gap_ms : options_.on_gpu ? kPeerGapMsGpu : kPeerGapMsCpu;
    std::vector<std::size_t> order(parties.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    for (int round = 0; round < options_.rounds; ++round) {
      for (std::size_t i = order.size(); i > 1; --i)
        std::swap(order[i - 1], order[static_cast<std::size_t>(random.below(static_cast<std::uint64_t>(i)))]);
      for (const std::size_t i : order) {
        if (stop_ && stop_()) throw Cancelled("stopped between two samples");
        std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(gap_ms));
        programs_.sample(parties[i], is_sustained() ? kSustainedWarmUpMs : 0, measure_ms());
      }
    }
  }

  OutputJudgement judge(const Party& party, const PlacedProblem& problem, const Oracle& oracle) {
    const json answer = programs_.output(party, scratch_.path());
    if (party.name == kLaboratory) return read_laboratory_judgement(answer);
    return judge_outputs(problem, oracle, answer, party.name == kOurParty ? Strictness::kOurs : Strictness::kPeer);
  }

  static std::size_t index_of_ours(const std::vector<Party>& parties) {
    for (std::size_t i = 0; i < parties.size(); ++i)
      if (parties[i].name == kOurParty) return i;
    return parties.size() - 1;  // the laboratory
  }

  void set_timing(Trial& trial, const Party& own) const {
    Timing timing;
    for (std::size_t i = 0; i < own.times.size(); ++i) timing.samples.push_back({own.times[i], own.clocks[i]});
    timing.p10_us = quantile(own.times, 0.1);
    timing.p50_us = median(own.times);
    timing.p90_us = quantile(own.times, 0.9);
    timing.launches_per_sample = own.launches;
    timing.regime = parse_regime(regime());
    timing.condition = options_.condition;
    timing.floor_us = floor_us(trial.problem, trial.device, programs_.ceilings());
    timing.kcycles = timing.p50_us * own.clock_mhz() / 1000;
    trial.timing = std::move(timing);
  }

  // Who is wrong, or faster than the hardware can be, has no time.
  static void add_peer(json& row, const Party& party, const OutputJudgement& judged, double floor,
                       std::map<std::string, std::string>& refused) {
    if (!judged.wrong.empty()) {
      refused[party.name] = "its timed output is wrong: " + judged.wrong;
      return;
    }
    Timing timing;
    timing.p50_us = median(party.times);
    timing.floor_us = floor;
    if (const auto below = why_below_floor(timing)) {
      refused[party.name] = *below;
      return;
    }
    row["peers"].push_back({{"name", party.name},
                            {"version", party.version},
                            {"notes", party.notes},
                            {"rel_error", judged.rel_error},
                            {"correct", true},
                            {"launches", party.launches},
                            {"samples_us", {party.rounded_samples()}}});
  }

  // Fills "laboratory"; in words if both timings of ours are too far apart.
  std::string compare_with_laboratory(json& row, const std::vector<Party>& parties, std::size_t ours) const {
    const Party& laboratory = parties.back();
    if (laboratory.name == parties[ours].name) return "";
    row["laboratory"] = {{"p50_us", median(laboratory.times)},
                         {"apart", disagreement(parties[ours].times, laboratory.times)},
                         {"limit", options_.on_gpu ? kAgreement : kCpuAgreement}};
    return options_.on_gpu ? judge_agreement(parties[ours].times, laboratory.times)
                           : judge_cpu_agreement(parties[ours].times, laboratory.times);
  }

  json refuse(json row, std::string message) const {
    row["ended"] = Ended::kError;
    row["message"] = std::move(message);
    row["time_us"] = nullptr;
    row["refused_peers"] = std::exchange(row["peers"], json::array());
    for (json& session : row["measured"]) session.update({{"ended", row["ended"]}, {"message", row["message"]}});
    return row;
  }

  json without_time(Trial& trial, Ended ended, const std::string& message) {
    trial.ended = ended;
    trial.message = message;
    trial.timing.reset();
    trial.run = result_.run;
    if (store_) store_->append_or_note(trial);
    json row = bench_row(trial), session = this_session();
    session.update({{"ended", ended}, {"message", message}});
    row["measured"] = json::array({session});
    return row;
  }

  // When and where it is, which tells sessions apart.
  json this_session() const {
    json session = {
        {"began_at", began_at_}, {"measured_at", now_iso8601()}, {"run", result_.run}, {"boot", read_boot_id()}};
    put_checkout(session, options_.checkout);
    return session;
  }

  void record(Trial& trial, const json& row) {
    if (!store_) return;
    for (const json& peer : row["peers"]) {
      trial.comparison = compare_sessions(log_ratios_of(row, peer), options_.margin);
      trial.comparison->against =
          fmt::format("{} ({})", peer["name"].get<std::string>(), peer["version"].get<std::string>());
      store_->append_or_note(trial);
      // One race against all of them: its seconds were spent once.
      if (trial.seconds) trial.seconds = TrialSeconds{};
    }
    if (row["peers"].empty()) store_->append_or_note(trial);
  }

  bool is_sustained() const { return options_.condition == Condition::kSustained; }
  // Of each sample; 0: one series of launches.
  double measure_ms() const { return is_sustained() ? kSustainedMs : 0; }
  std::string regime() const { return std::string(to_string(options_.on_gpu ? Regime::kGraph : Regime::kWarm)); }

  const PeersOptions& options_;
  Store* store_;
  const std::function<bool()>& stop_;
  double started_;
  PeerTable programs_;
  SplitMix random_;
  ScratchFolder scratch_;
  std::map<std::string, double> set_up_seconds_;
  std::string began_at_;  // the problem's first question
  PeersResult result_;
};

}  // namespace

PeersResult run_peers(const PeersOptions& options, Store* store, const PeersProgress& progress,
                      const std::function<bool()>& stop) {
  if (options.suite.problems.empty())
    throw_bad_input("suite '{}' has no problems; there is nothing to time", options.suite.name);
  if (options.rounds < 2) throw_bad_input("{} rounds were asked for; give at least 2", options.rounds);
  return PeerRun(options, store, stop).run(progress);
}

}  // namespace flashcore
