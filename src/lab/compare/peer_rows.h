#pragma once
// A row of a peer run: raw samples of every party by session, and the figures that follow from them. Everything printed
// is a function of the samples in the row, so that a session can be added (lab/compare/peer_sessions.h), and anyone can
// check.
//
//   "measured": [{"began_at", "measured_at", "run", "boot", "commit", "driver", "rounds", "order_seed", "timed_in",
//                 "condition", "launches", "measure_ms", "clock_mhz", "load_average", "cores", "environment",
//                 "samples_us": [...], "laboratory_us": [...]},
//                ...]                                                              one entry for each session
//   A session that went wrong has "ended" and "message" and no "samples_us": no figure is made of it.
//   "peers": [{"name", "version", "notes", "samples_us": [[...] or null, ...], ...}]       null: not in that session
//
// A row of bench has one party and one session, and no "measured": its "samples_us" are its own, and its "clock_mhz" is
// there where the clock is known. Files from before bench kept samples have neither.
//
// Sample i of a party and sample i of ours are of one round. A session's ratio is the median over its rounds of
// log(theirs / ours); the published speed-up is exp of the mean over sessions. One session: BCa interval over rounds.
// Several: Student's over sessions, with the spread within from resampling rounds (lab/statistics/bootstrap.h). A
// session of fewer than kMinRounds rounds makes no interval.

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lab/record/trial.h"

namespace flashcore {

inline constexpr int kMinRounds = 12;
// Of ours in the peers' process against ours in the laboratory's own; beyond it a row on a GPU is refused.
inline constexpr double kAgreement = 0.03;
// On a CPU the calls themselves differ: from Python, beside other thread pools, which spin. A time that is a factor of
// 2.5 longer is no timing of the same thing; a call from Python may besides take so many us more. Of the 88 sessions of
// results/cpu_*/peers_*.json whose rows have a time, 86 are at most 1.41 times as long, and the other two 1.82 and 2.29
// (a call of 66 us). The two refused ones had 7.3 and 9.0: other thread pools held the cores. On one thread 1.17
// is the most, so that all of it is of threads. Nothing makes the time beside peers much shorter: a factor of 1.70 is
// the most that was seen (two cores, whose second the laboratory's own process gets late after a pause:
// lab/compare/wake_up.h), and 2 is the limit.
inline constexpr double kCpuAgreement = 1.5, kCpuCallUs = 100, kCpuShorter = 2;
// What rows from before 26 November 2026 name as their limit. They are held to the present one all the same.
inline constexpr double kFormerCpuAgreement = 3;

// Ratio of time beside the peers to the laboratory's, less 1: exp of the median log-ratio over rounds. 0 without both.
double disagreement(const std::vector<double>& beside_us, const std::vector<double>& laboratory_us);
// In words if they are further apart than kAgreement; else "".
std::string judge_agreement(const std::vector<double>& beside_us, const std::vector<double>& laboratory_us);
// The same for a CPU, by kCpuAgreement.
std::string judge_cpu_agreement(const std::vector<double>& beside_us, const std::vector<double>& laboratory_us);

// As rows keep samples: to 0.1 ns.
std::vector<double> round_samples(std::vector<double> times_us);

// Whether its own figures follow from something in the row: it is of a peer run, or of a bench that kept its samples.
bool has_samples(const nlohmann::json& row);

// Writes "time_us", "tflops", "gbps", "kcycles", "samples", "sessions" and each peer's "time_us", "speedup", "ci95",
// "verdict", "sessions", "detectable" and "p_value" from the samples. "ci95" is null where there is none, and
// "no_interval" says why. Of a row of bench all but "sessions" and what is of peers. Error kBadInput for a row without
// samples.
void derive_figures(nlohmann::json& row, double margin);

// The samples of a peer's rounds that are paired with ours, by session.
std::vector<std::vector<double>> log_ratios_of(const nlohmann::json& row, const nlohmann::json& peer);
// What derive_figures makes of them.
Comparison compare_sessions(const std::vector<std::vector<double>>& log_ratios, double margin);

// One line for each result: rows can be compared, and samples take no line each.
std::string print_rows(const nlohmann::json& document);

}  // namespace flashcore
