#include "lab/compare/peer_rows.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/problem_row.h"
#include "lab/measure/race.h"
#include "lab/record/json_io.h"

namespace flashcore {
namespace {

using nlohmann::json;

constexpr std::uint64_t kResamplingSeed = 1;  // figures are a function of the samples alone
constexpr int kSampleDigits = 4;              // of microseconds

double round_digits(double value, int digits) {
  const double scale = std::pow(10.0, digits);
  return std::round(value * scale) / scale;
}

json quantiles_json(const std::vector<double>& samples) {
  return {{"p10", round_digits(quantile(samples, 0.1), 4)},
          {"p50", round_digits(median(samples), 4)},
          {"p90", round_digits(quantile(samples, 0.9), 4)}};
}

std::vector<double> sample_list(const json& list) {
  return list.is_array() ? list.get<std::vector<double>>() : std::vector<double>();
}

void derive_peer(json& peer, const json& row, double margin) {
  const auto ratios = log_ratios_of(row, peer);
  std::vector<double> all;
  for (const json& session : peer.at("samples_us")) {
    const auto samples = sample_list(session);
    all.insert(all.end(), samples.begin(), samples.end());
  }
  const Comparison comparison = compare_sessions(ratios, margin);
  peer["time_us"] = quantiles_json(all);
  peer["speedup"] = round_digits(comparison.speedup, 4);
  peer["sessions"] = ratios.size();
  peer["verdict"] = comparison.verdict;
  peer["p_value"] = comparison.p_value;
  peer.erase("no_interval");
  if (std::isfinite(comparison.detectable) && std::isfinite(comparison.ci95_high)) {
    peer["ci95"] = {round_digits(comparison.ci95_low, 4), round_digits(comparison.ci95_high, 4)};
    peer["detectable"] = round_digits(comparison.detectable, 5);
    return;
  }
  peer["ci95"] = nullptr;
  peer["detectable"] = nullptr;
  std::size_t fewest = ratios.front().size();
  for (const auto& session : ratios) fewest = std::min(fewest, session.size());
  peer["no_interval"] = fmt::format("{} rounds in a session; at least {} make an interval", fewest, kMinRounds);
}

// Of a session that is published; none of one that went wrong.
std::vector<double> samples_of(const json& session) { return sample_list(session.value("samples_us", json())); }

void put_own_figures(json& row, const std::vector<double>& samples, const std::vector<double>& clocks_mhz) {
  if (samples.empty()) throw_bad_input("{}: it has a time, and no session with samples", row.value("problem", "?"));
  const PlacedProblem problem = problem_of(row);
  const double p50 = round_digits(median(samples), 4);
  row["time_us"] = quantiles_json(samples);
  row["tflops"] = problem.flops() / p50 * 1e-6;
  row["gbps"] = problem.bytes() / p50 * 1e-3;
  row["kcycles"] = clocks_mhz.empty() ? 0.0 : round_digits(p50 * median(clocks_mhz) / 1000, 3);
  row["samples"] = samples.size();
}

}  // namespace

double disagreement(const std::vector<double>& beside_us, const std::vector<double>& laboratory_us) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < std::min(beside_us.size(), laboratory_us.size()); ++i)
    ratios.push_back(std::log(beside_us[i] / laboratory_us[i]));
  return ratios.empty() ? 0 : std::expm1(median(ratios));
}

std::string judge_agreement(const std::vector<double>& beside_us, const std::vector<double>& laboratory_us) {
  const double apart = disagreement(beside_us, laboratory_us);
  // In the logarithm, so that neither side is favoured.
  if (std::abs(std::log1p(apart)) <= std::log1p(kAgreement)) return "";
  return fmt::format(
      "the same candidate took {:.3f} us beside the peers and {:.3f} us in the laboratory's own process, in the same "
      "rounds: {:+.1f}%, and {:.0f}% is the limit, so that neither is published",
      median(beside_us), median(laboratory_us), 100 * apart, 100 * kAgreement);
}

std::string judge_cpu_agreement(const std::vector<double>& beside_us, const std::vector<double>& laboratory_us) {
  const double apart = disagreement(beside_us, laboratory_us), factor = 1 + kCpuAgreement;
  const double beside = median(beside_us), laboratory = median(laboratory_us);
  const bool too_short = 1 + apart < 1 / kCpuShorter;
  const bool too_long = 1 + apart > factor && beside - laboratory > kCpuCallUs;
  if (!too_short && !too_long) return "";
  return fmt::format(
      "the same candidate took {:.3f} us beside the peers and {:.3f} us in the laboratory's own process, in the same "
      "rounds: a factor of {:.3g}, and on a CPU {:.3g} is the limit (or {:.0f} us more), or 1/{:.0f}, so that neither "
      "is published",
      beside, laboratory, 1 + apart, factor, kCpuCallUs, kCpuShorter);
}

std::vector<std::vector<double>> log_ratios_of(const json& row, const json& peer) {
  std::vector<std::vector<double>> ratios;
  const json& sessions = row.at("measured");
  const json& theirs = peer.at("samples_us");
  for (std::size_t s = 0; s < std::min(sessions.size(), theirs.size()); ++s) {
    const auto a = samples_of(sessions[s]), b = sample_list(theirs[s]);
    if (b.empty()) continue;
    if (a.size() != b.size())
      throw_bad_input("{}: {} samples of {} beside {} of flashcore in session {}; they must be of the same rounds",
                      row.value("problem", ""), b.size(), peer.value("name", "?"), a.size(), s + 1);
    std::vector<double>& session = ratios.emplace_back();
    for (std::size_t i = 0; i < a.size(); ++i) session.push_back(std::log(b[i] / a[i]));
  }
  return ratios;
}

Comparison compare_sessions(const std::vector<std::vector<double>>& log_ratios, double margin) {
  FC_CHECK(!log_ratios.empty());
  Comparison comparison = log_ratios.size() == 1 ? compare_blocks(log_ratios.front(), margin, kResamplingSeed)
                                                 : compare_processes(log_ratios, margin, kResamplingSeed);
  const bool few = std::any_of(log_ratios.begin(), log_ratios.end(), [](const auto& session) {
    return session.size() < static_cast<std::size_t>(kMinRounds);
  });
  if (few) {
    comparison.ci95_low = 0;
    comparison.ci95_high = comparison.detectable = std::numeric_limits<double>::infinity();
    comparison.verdict = SpeedVerdict::kInconclusive;
  }
  return comparison;
}

std::vector<double> round_samples(std::vector<double> times_us) {
  for (double& time_us : times_us) time_us = round_digits(time_us, kSampleDigits);
  return times_us;
}

bool has_samples(const json& row) { return row.contains("measured") || row.contains("samples_us"); }

void derive_figures(json& row, double margin) {
  if (!row.contains("measured")) {
    const double clock = row.value("clock_mhz", 0.0);
    return put_own_figures(row, samples_of(row), clock > 0 ? std::vector{clock} : std::vector<double>());
  }
  std::vector<double> all, clocks;
  std::size_t sessions = 0;
  for (const json& session : row.at("measured")) {
    const auto samples = samples_of(session);
    if (samples.empty()) continue;
    ++sessions;
    all.insert(all.end(), samples.begin(), samples.end());
    if (const double clock = session.value("clock_mhz", 0.0); clock > 0) clocks.push_back(clock);
  }
  put_own_figures(row, all, clocks);
  row["sessions"] = sessions;
  for (json& peer : row["peers"]) derive_peer(peer, row, margin);
}

std::string print_rows(const json& document) {
  std::string text = "{\n";
  for (const auto& [key, value] : document.items())
    if (key != "results") text += " " + dump_line(key) + ": " + dump_line(value) + ",\n";
  text += " \"results\": [";
  const json& results = document.at("results");
  for (std::size_t i = 0; i < results.size(); ++i) text += (i ? ",\n  " : "\n  ") + dump_line(results[i]);
  return text + "\n ]\n}\n";
}

}  // namespace flashcore
