#include "lab/verify/evidence.h"

#include <fmt/format.h>

#include <cmath>
#include <set>

#include "lab/compare/peer_files.h"
#include "lab/compare/peer_rows.h"
#include "lab/compare/peer_sessions.h"
#include "lab/measure/floor.h"
#include "lab/record/checks.h"
#include "lab/statistics/statistics.h"

namespace flashcore {
namespace {

using nlohmann::json;

constexpr double kRoundedApart = 5e-4;       // samples are rounded to 0.1 ns, of times from 1 us
constexpr double kRoundedLaboratory = 2e-4;  // relative

json part_of(const json& object, const char* key) { return object.is_object() ? object.value(key, json()) : json(); }

bool is_finite_number(const json& value) { return value.is_number() && std::isfinite(value.get<double>()); }

std::vector<double> evidence_times(const json& session, const char* key) {
  const json list = part_of(session, key);
  return list.is_array() ? list.get<std::vector<double>>() : std::vector<double>();
}

class EvidenceAudit {
 public:
  explicit EvidenceAudit(const json& row)
      : row_(row), sampled_(row.contains("measured")), on_cpu_(kind_of(row) == json("cpu")) {
    const json named = part_of(row, "problem");
    id_ = named.is_string() ? named.get<std::string>() : "?";
  }

  std::vector<std::string> run() {
    outcome();
    peers();
    if (sampled_) sessions();
    return std::move(wrong_);
  }

 private:
  static json kind_of(const json& row) { return part_of(part_of(part_of(row, "device"), "limits"), "kind"); }

  template <typename... Args>
  void complain(fmt::format_string<Args...> format, Args&&... args) {
    wrong_.push_back(id_ + ": " + fmt::format(format, std::forward<Args>(args)...));
  }

  // Whoever is told to have a time is right and passed.
  void outcome() {
    const json ended = row_.value("ended", json("passed"));
    if (ended != "passed") complain("it has a time, and ended {}", ended.dump());
    const json correct = part_of(row_, "correct"), bound = part_of(correct, "bound");
    if (!correct.is_object())
      return complain("it has a time, and no \"correct\", which says that the correctness gate passed");
    if (!is_finite_number(bound) || bound.get<double>() <= 0)
      return complain("it has a time, and its \"correct\" has no bound that an error could be within: {}",
                      bound.dump());
    const json of_timed = timed_bound();
    if (!is_finite_number(of_timed) || of_timed.get<double>() <= 0)
      return complain("it has a time, and its \"timed_bound\" is no bound: {}", of_timed.dump());
    const auto is_within = [&](const char* key, const json& limit, bool needed) {
      const json error = part_of(correct, key);
      if (error.is_null() && !needed) return;
      if (!is_finite_number(error) || error.get<double>() < 0 || error.get<double>() > limit.get<double>())
        complain("it has a time, and its {} of {} is not within its bound of {:.3g}", key, error.dump(),
                 limit.get<double>());
    };
    is_within("rel_error", bound, true);
    is_within("timed_rel_error", of_timed, sampled_);
    // Files from before both were written have neither, and no raw samples.
    const json passed = part_of(correct, "passed"), level = part_of(correct, "level");
    const bool needed = has_samples(row_);
    if (passed != json(true) && (needed || !passed.is_null()))
      complain("it has a time, and did not pass the correctness gate: \"passed\" is {}", passed.dump());
    const bool full = level.is_string() && level.get<std::string>().starts_with("full");
    if (!full && (needed || !level.is_null()))
      complain("it has a time, and its correctness gate was not the full one: \"level\" is {}", level.dump());
  }

  // Of the outputs that were timed. Files from before it was written have the bound of the data that came nearest to
  // its own alone.
  json timed_bound() const {
    const json correct = part_of(row_, "correct"), bound = part_of(correct, "timed_bound");
    return bound.is_null() ? part_of(correct, "bound") : bound;
  }

  void peers() {
    const json bound = timed_bound(), floor = part_of(row_, "floor_us");
    std::set<std::string> names;
    for (const json& peer : row_.value("peers", json::array())) {
      const std::string name = part_of(peer, "name").dump();
      if (!names.insert(name).second) complain("the peer {} is there twice, and would count twice in a mean", name);
      const json correct = part_of(peer, "correct"), error = part_of(peer, "rel_error");
      if (correct != json(true) && (sampled_ || !correct.is_null()))
        complain("the peer {} has a time, and is not correct: \"correct\" is {}", name, correct.dump());
      if (sampled_ && (!is_finite_number(error) || error.get<double>() < 0))
        complain("the peer {} has a time, and its relative error is {}", name, error.dump());
      else if (is_finite_number(bound) && is_finite_number(error) &&
               error.get<double>() > kPeerFactor * bound.get<double>())
        complain("the peer {} has a time, and its relative error of {:.3g} is above {:.0f} times the bound of {:.3g}",
                 name, error.get<double>(), kPeerFactor, bound.get<double>());
      const json lists = part_of(peer, "samples_us");
      if (!sampled_ || !lists.is_array() || !is_finite_number(floor) || !is_on(Check::kFloor)) continue;
      for (std::size_t s = 0; s < lists.size(); ++s)
        if (lists[s].is_array() && !lists[s].empty())
          if (const double time = median(lists[s].get<std::vector<double>>());
              time < kFloorTolerance * floor.get<double>())
            complain("the peer {} takes {:.3f} us in session {}, which is below the floor of {:.3f} us", name, time,
                     s + 1, floor.get<double>());
    }
  }

  void sessions() {
    json before = {{"measured", json::array()}};
    const json* last = nullptr;
    std::size_t number = 0;
    for (const json& session : row_.at("measured")) {
      ++number;
      const std::vector<double> ours = evidence_times(session, "samples_us");
      if (ours.empty()) continue;
      // Each pair: the list holds all that come before this one.
      if (const std::string why = why_same_session(before, session); !why.empty())
        complain("session {} is none of its own: {}", number, why);
      before["measured"].push_back(session);
      if (part_of(session, "rounds") != json(ours.size()))
        complain("session {} was of {} rounds and has {} samples: each round gives one", number,
                 part_of(session, "rounds").dump(), ours.size());
      // Files from before it was recorded say nothing of it.
      if (const json code = part_of(session, "code_hash"); !code.is_null() && code != part_of(row_, "code_hash"))
        complain(
            "session {} timed the machine code {}, and the row says {} (let both processes use one NVRTC: "
            "FLASHCORE_NVRTC)",
            number, code.dump(), part_of(row_, "code_hash").dump());
      compare_with_laboratory(number, session, ours);
      last = &session;
    }
    if (last) compare_with_summary(*last);
  }

  void compare_with_laboratory(std::size_t number, const json& session, const std::vector<double>& ours) {
    const std::vector<double> laboratory = evidence_times(session, "laboratory_us");
    if (laboratory.empty()) {
      if (part_of(session, "timed_in") != json("the laboratory"))
        complain("session {} has no \"laboratory_us\": nothing confirms what was measured beside the peers", number);
      return;
    }
    if (laboratory.size() != ours.size())
      return complain("session {} has {} samples of ours and {} of the laboratory's, and must have both of each round",
                      number, ours.size(), laboratory.size());
    const double apart = disagreement(ours, laboratory);
    const bool rounded = std::abs(std::log1p(apart)) <= std::log1p(kAgreement) + kRoundedApart;
    const std::string why = on_cpu_   ? judge_cpu_agreement(ours, laboratory)
                            : rounded ? ""
                                      : judge_agreement(ours, laboratory);
    if (!why.empty()) complain("in session {} {}", number, why);
  }

  // "laboratory" is of the latest session that has samples.
  void compare_with_summary(const json& session) {
    const json summary = part_of(row_, "laboratory");
    const std::vector<double> ours = evidence_times(session, "samples_us"),
                              laboratory = evidence_times(session, "laboratory_us");
    if (laboratory.empty()) {
      if (!summary.is_null()) complain("it has a \"laboratory\", and no samples of the laboratory's to give it");
      return;
    }
    const json apart = part_of(summary, "apart"), p50 = part_of(summary, "p50_us"), limit = part_of(summary, "limit");
    const double honest = disagreement(ours, laboratory), time = median(laboratory);
    if (!is_finite_number(apart) || std::abs(apart.get<double>() - honest) > kRoundedApart * (1 + std::abs(honest)))
      complain("/laboratory/apart is {}, and its raw samples give {:.5f}", apart.dump(), honest);
    if (!is_finite_number(p50) || std::abs(p50.get<double>() - time) > kRoundedLaboratory * time)
      complain("/laboratory/p50_us is {}, and its raw samples give {:.4f}", p50.dump(), time);
    const auto is_limit = [&](double allowed) {
      return is_finite_number(limit) && std::abs(limit.get<double>() - allowed) <= 1e-9;
    };
    const double allowed = on_cpu_ ? kCpuAgreement : kAgreement;
    if (!is_limit(allowed) && !(on_cpu_ && is_limit(kFormerCpuAgreement)))
      complain("/laboratory/limit is {}, and it is {}", limit.dump(), allowed);
  }

  const json& row_;
  bool sampled_, on_cpu_;
  std::string id_;
  std::vector<std::string> wrong_;
};

}  // namespace

std::vector<std::string> audit_evidence(const json& row) { return EvidenceAudit(row).run(); }

}  // namespace flashcore
