#include "lab/verify/runs.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "core/foreign_text.h"
#include "lab/verify/row_facts.h"

namespace flashcore {
namespace {

using nlohmann::json;

constexpr const char* kOfProcess[] = {"boot",  "commit", "dirty",     "driver",
                                      "cores", "rounds", "condition", "measure_ms"};
// Fewer may be alike by chance.
constexpr std::size_t kManySamples = 8;

class RunsAudit {
 public:
  void session(const std::string& row, std::size_t number, const json& session) {
    const std::string place = fmt::format("{}: session {}", row, number);
    if (const std::string run = text_in(session, "run"); !run.empty())
      for (const char* key : kOfProcess) compare(place, run, key, session.value(key, json()));
    const json samples = session.value("samples_us", json());
    if (!samples.is_array()) return;
    const json rounds = session.value("rounds", json());
    if (rounds.is_number_integer() && rounds != json(samples.size()))
      wrong.push_back(fmt::format("{} has {} rounds and {} samples", place, rounds.dump(), samples.size()));
    // A coarse clock gives one number.
    if (samples.size() < kManySamples ||
        std::all_of(samples.begin(), samples.end(), [&](const json& each) { return each == samples[0]; }))
      return;
    const auto [known, is_new] = samples_.try_emplace(samples.dump(), place);
    if (!is_new) wrong.push_back(fmt::format("{} has the same samples as {}", place, known->second));
  }

  std::vector<std::string> wrong;

 private:
  void compare(const std::string& place, const std::string& run, const char* key, const json& value) {
    if (value.is_null()) return;  // a session that ended early says less
    const auto [known, is_new] = of_run_.try_emplace({run, key}, value, place);
    if (is_new || known->second.first == value) return;
    wrong.push_back(fmt::format("{} of {} has the {} {}, and {} of the same run {}", place, excerpt(run), key,
                                excerpt(value.dump()), known->second.second, excerpt(known->second.first.dump())));
  }

  std::map<std::pair<std::string, std::string>, std::pair<json, std::string>> of_run_;  // value and where it was seen
  std::map<std::string, std::string> samples_;                                          // and where they were seen
};

}  // namespace

std::vector<std::string> audit_runs(const json& rows) {
  RunsAudit audit;
  for (const json& row : rows) {
    const json sessions = part(row, "measured");
    if (!sessions.is_array()) continue;
    std::size_t number = 0;
    for (const json& session : sessions)
      if (++number; session.is_object()) audit.session(name_of_row(row), number, session);
  }
  return std::move(audit.wrong);
}

}  // namespace flashcore
