#include "lab/tune/arms.h"

#include <algorithm>
#include <utility>

#include "kernels/embedded.h"
#include "lab/process/confined.h"
#include "lab/process/worker.h"
#include "lab/record/json_io.h"

namespace flashcore {
namespace {

using nlohmann::json;

// A proposer may think, ask a model, or compile; it may not stop the run, nor draw it out: once the budget is over it
// has a moment more, for it may be about to answer.
constexpr double kPatienceSeconds = 120, kGraceSeconds = 3;
constexpr int kAttempts = 5;
constexpr std::size_t kMaxAnswer = std::size_t{1} << 20;
constexpr std::size_t kQuoted = 200;  // of an answer that is rejected

class SearchArm final : public Arm {
 public:
  SearchArm(std::string strategy, const std::vector<const Family*>& families, const Problem& problem,
            const DeviceLimits& limits, std::uint64_t seed)
      : strategy_(std::move(strategy)) {
    for (const Family* family : families) {
      SearchSpace space{family->space(), feasible_configs(*family, problem, limits),
                        family->default_config(problem, limits)};
      searches_.push_back({family, make_search(strategy_, std::move(space), seed)});
    }
  }
  std::string name() const override { return strategy_; }

  std::optional<Proposal> propose() override {
    while (!searches_.empty()) {
      auto& [family, search] = searches_[turn_ % searches_.size()];
      if (const auto config = search->propose()) {
        ++turn_;
        return Proposal{Candidate{family, *config}.print(), std::nullopt};
      }
      searches_.erase(searches_.begin() + static_cast<std::ptrdiff_t>(turn_ % searches_.size()));
    }
    return std::nullopt;
  }

  void observe(const Trial& trial) override {
    for (auto& [family, search] : searches_)
      if (family->name() == trial.family) search->observe(trial);
  }

 private:
  std::string strategy_;
  std::vector<std::pair<const Family*, std::unique_ptr<Search>>> searches_;
  std::size_t turn_ = 0;
};

json family_json(const Family& family, const Problem& problem, const DeviceLimits& limits) {
  json fields = json::array();
  for (const Field& field : family.space().fields()) fields.push_back({{"name", field.name}, {"values", field.values}});
  json source = json::object();
  for (const auto& [path, text] : device_sources())
    if (path.starts_with(family.name() + "/")) source[path] = text;
  return {{"name", family.name()},
          {"description", family.description()},
          {"default", family.space().to_json(family.default_config(problem, limits))},
          {"fields", fields},
          {"source", source}};
}

class ProposerArm final : public Arm {
 public:
  ProposerArm(const ProposerCommand& command, const std::vector<const Family*>& families, const Problem& problem,
              const DeviceInfo& device, const std::vector<std::string>& notes, std::function<bool()> stop,
              std::function<std::optional<double>()> seconds_left)
      : stop_(std::move(stop)),
        seconds_left_(std::move(seconds_left)),
        families_(families),
        child_(command.writes.empty() ? std::vector<std::string>{"/bin/sh", "-c", command.shell}
                                      : confined_command(command.shell, command.writes),
               kMaxAnswer) {
    json list = json::array();
    for (const Family* family : families) list.push_back(family_json(*family, problem, device.limits));
    send({{"event", "start"},
          {"schema", "flashcore.proposer/1"},
          {"problem", problem.id()},
          {"device", device},
          {"families", list},
          {"ledger", notes}});
  }
  std::string name() const override { return "proposer"; }
  std::string why_ended() const override { return why_ended_; }
  bool died_at_once() const override { return died_at_once_; }
  bool failed() const override { return ended_ && proposals_ == 0 && !why_ended_.empty(); }
  bool was_asked() const override { return asked_; }
  std::vector<Rejection> take_rejections() override { return std::exchange(rejections_, {}); }

  std::optional<Proposal> propose() override {
    asked_ = true;
    for (int attempt = 0; !ended_ && attempt < kAttempts; ++attempt) {
      const auto line = ask();
      if (!line) return std::nullopt;
      try {
        std::optional<Proposal> proposal = parse_proposal(*line);
        if (!proposal) return end("");
        if (proposal->patch) {
          // Everything that can be wrong with it, another patch of that name included, is found here, where it is an
          // answer to reject.
          const PatchScope probe({*proposal->patch});
        }
        ++proposals_;
        return proposal;
      } catch (const Cancelled&) {
        throw;
      } catch (const std::bad_alloc&) {
        throw;
      } catch (const std::exception& e) {
        rejections_.push_back({line->substr(0, kQuoted), e.what()});
        why_ended_ = fmt::format("{} answers in a row were no proposals; the last: {}", kAttempts, e.what());
        const std::string why = why_ended_;
        if (!send({{"event", "rejected"}, {"message", e.what()}})) why_ended_ = why_ended_ + "; before that: " + why;
      }
    }
    return ended_ ? std::nullopt : end(why_ended_);
  }

  void observe(const Trial& trial) override {
    if (!ended_) send({{"event", "trial"}, {"trial", trial_summary(trial)}});
  }

 private:
  std::optional<std::string> ask() {
    if (!send({{"event", "propose"}})) return std::nullopt;
    std::string line;
    const auto until = deadline();
    if (!went_well(child_.read_line(line, until, stop_))) return std::nullopt;
    return line;
  }

  bool send(const json& message) {
    const auto until = deadline();
    return went_well(child_.send_line(dump_line(message), until, stop_));
  }

  ChildProcess::Clock::time_point deadline() {
    const std::optional<double> left = seconds_left_();
    patience_ = left ? std::clamp(*left + kGraceSeconds, kGraceSeconds, kPatienceSeconds) : kPatienceSeconds;
    return ChildProcess::Clock::now() +
           std::chrono::duration_cast<ChildProcess::Clock::duration>(std::chrono::duration<double>(patience_));
  }

  // False: the conversation is over, and why_ended_ says why.
  bool went_well(ChildProcess::Talk talk) {
    using Talk = ChildProcess::Talk;
    if (talk == Talk::kDone) return true;
    if (talk == Talk::kCancelled) throw Cancelled("stopped while a proposer was thinking");
    std::string why = talk == Talk::kTimeout ? fmt::format("no answer after {:.0f} s{}", patience_,
                                                           patience_ < kPatienceSeconds ? ", with the budget over" : "")
                      : talk == Talk::kFlood ? fmt::format("more than {} bytes without a newline", kMaxAnswer)
                                             : "it " + child_.how_it_ended();
    died_at_once_ = talk == Talk::kClosed && proposals_ == 0 && rejections_.empty() && why_ended_.empty();
    const std::string words = child_.stderr_tail();
    end(why + (words.empty() ? "" : "; its stderr ends: " + words));
    return false;
  }

  std::nullopt_t end(std::string why) {
    ended_ = true;
    why_ended_ = std::move(why);
    child_.kill();
    return std::nullopt;
  }

  std::function<bool()> stop_;
  std::function<std::optional<double>()> seconds_left_;
  std::vector<const Family*> families_;
  ChildProcess child_;
  bool ended_ = false, died_at_once_ = false, asked_ = false;
  int proposals_ = 0;
  double patience_ = kPatienceSeconds;  // of the last wait
  std::string why_ended_;
  std::vector<Rejection> rejections_;
};

}  // namespace

json trial_summary(const Trial& t) {
  json j = {{"candidate", t.candidate()}, {"ended", t.ended}, {"message", t.message}, {"p50_us", nullptr}};
  if (t.timing) j["p50_us"] = t.timing->p50_us;
  if (t.comparison)
    j["comparison"] = {{"against", t.comparison->against},
                       {"speedup", t.comparison->speedup},
                       {"ci95", {t.comparison->ci95_low, t.comparison->ci95_high}},
                       {"verdict", t.comparison->verdict}};
  if (t.artifact)
    j["artifact"] = {{"registers", t.artifact->registers},
                     {"stack_bytes", t.artifact->stack_bytes},
                     {"spill_store_bytes", t.artifact->spill_store_bytes},
                     {"shared_bytes", t.artifact->static_shared_bytes + t.artifact->dynamic_shared_bytes}};
  return encode_nonfinite(std::move(j));
}

std::unique_ptr<Arm> make_search_arm(const std::string& strategy, const std::vector<const Family*>& families,
                                     const Problem& problem, const DeviceLimits& limits, std::uint64_t seed) {
  return std::make_unique<SearchArm>(strategy, families, problem, limits, seed);
}

std::unique_ptr<Arm> make_proposer_arm(const ProposerCommand& command, const std::vector<const Family*>& families,
                                       const Problem& problem, const DeviceInfo& device,
                                       const std::vector<std::string>& notes, std::function<bool()> stop,
                                       std::function<std::optional<double>()> seconds_left) {
  return std::make_unique<ProposerArm>(command, families, problem, device, notes, std::move(stop),
                                       std::move(seconds_left));
}

}  // namespace flashcore
