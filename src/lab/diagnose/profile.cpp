#include "lab/diagnose/profile.h"

#include <nlohmann/json.hpp>

#include "core/problem_row.h"
#include "lab/record/json_io.h"

namespace flashcore {
namespace {

using nlohmann::json;

json or_null(const std::optional<double>& value) { return value ? json(*value) : json(); }

json counts_json(const EmulatorCounts& c) {
  json lines = json::array(), waits = json::array();
  for (const CountedLine& line : c.lines)
    lines.push_back({{"where", line.where},
                     {"caller", line.caller},
                     {"kind", line.kind},
                     {"requests", line.requests},
                     {"units_per_request", line.units_per_request},
                     {"least_per_request", line.least_per_request}});
  for (const CountedWait& wait : c.waits)
    waits.push_back({{"where", wait.where}, {"caller", wait.caller}, {"kind", wait.kind}, {"threads", wait.threads}});
  return {{"problem", c.problem}, {"lines", std::move(lines)}, {"waits", std::move(waits)}};
}

json indicators_json(const std::vector<Indicator>& indicators) {
  json rows = json::array();
  for (const Indicator& row : indicators)
    rows.push_back({{"name", row.name},
                    {"value", or_null(row.value)},
                    {"unit", row.unit},
                    {"target", row.target},
                    {"met", row.met ? json(*row.met) : json()},
                    {"source", row.source}});
  return rows;
}

}  // namespace

Profile diagnose(const ProfileFacts& facts) {
  Profile profile;
  profile.indicators = indicators_of(facts);
  profile.roofs = roofs_of(facts);
  profile.bottlenecks = faults_of(facts);
  for (Bottleneck& limit : limits_of_profile(facts, profile.roofs)) profile.bottlenecks.push_back(std::move(limit));
  int rank = 0;
  for (Bottleneck& bottleneck : profile.bottlenecks) bottleneck.rank = ++rank;
  return profile;
}

json profile_json(const ProfileFacts& facts, const Profile& profile) {
  json bottlenecks = json::array(), roofs = json::array(), lost = json::array();
  for (const Bottleneck& b : profile.bottlenecks)
    bottlenecks.push_back({{"rank", b.rank},
                           {"name", b.cause},
                           {"kind", is_limit(b.cause) ? "limit" : "fault"},
                           {"share", b.share},
                           {"share_of", b.share_of},
                           {"sentence", b.sentence},
                           {"evidence", b.evidence}});
  for (const Roof& roof : profile.roofs)
    roofs.push_back({{"name", roof.cause},
                     {"least_us", roof.least_us},
                     {"of_time", facts.time_us ? json(roof.least_us / *facts.time_us) : json()},
                     {"basis", roof.basis}});
  for (const LostSource& source : facts.lost) lost.push_back({{"source", source.source}, {"why", source.why}});
  json result = {{"candidate", facts.candidate},
                 {"family", facts.candidate.substr(0, facts.candidate.find(':'))},
                 {"time_us", or_null(facts.time_us)},
                 {"time_from", facts.time_from},
                 {"bottlenecks", std::move(bottlenecks)},
                 {"roofline", std::move(roofs)},
                 {"indicators", indicators_json(profile.indicators)},
                 {"counted", facts.counts ? counts_json(*facts.counts) : json()},
                 {"compiled", facts.artifact ? json(*facts.artifact) : json()},
                 {"occupancy", facts.occupancy ? json(*facts.occupancy) : json()},
                 {"hardware_counters", facts.counters},
                 {"counters_of_another", facts.foreign_kernel.empty() ? json() : json(facts.foreign_kernel)},
                 {"lost", std::move(lost)}};
  put_problem(result, facts.problem);
  return encode_nonfinite(result);
}

}  // namespace flashcore
