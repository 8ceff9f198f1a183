#include "lab/verify/self_test_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "lab/compare/aa.h"

namespace flashcore {
namespace {

using nlohmann::json;

constexpr double kSameMeasured = 1e-6;

struct Part {
  std::string name;
  AaOptions options;
  AaResult result;
  bool called_passed = false;
  bool says_planted = false;  // how much extra work its samples held; before that was recorded, what was asked for
};

Part read_part(const json& j) {
  Part part;
  j.at("name").get_to(part.name);
  j.at("passed").get_to(part.called_passed);
  j.at("alpha").get_to(part.options.alpha);
  j.at("margin").get_to(part.options.margin);
  AaResult& r = part.result;
  j.at("planted").get_to(r.planted);
  j.at("repeats").get_to(r.repeats);
  j.at("alarms").get_to(r.alarms);
  j.at("launches_per_sample").get_to(r.launches_per_sample);
  j.at("speedups").get_to(r.effects);
  if (j.contains("ci95_low")) j["ci95_low"].get_to(r.lows), j.at("ci95_high").get_to(r.highs);
  j.at("failure").get_to(r.failure);
  const json& verdicts = j.at("verdicts");
  verdicts.at("FASTER").get_to(r.faster);
  verdicts.at("SLOWER").get_to(r.slower);
  verdicts.at("SAME").get_to(r.same);
  verdicts.at("INCONCLUSIVE").get_to(r.inconclusive);
  part.says_planted = j.contains("planted_wanted");
  const double wanted = part.says_planted ? j.at("planted_wanted").get<double>() : r.planted;
  part.options.planted_permille = static_cast<int>(std::lround(1000 * wanted));
  // How many were asked for is not in the file: who broke off says so in "failure", and has fewer in all.
  part.options.repeats = r.failure.empty() ? r.repeats : r.repeats + 1;
  return part;
}

// What the races of a part do not give.
std::string why_wrong(const Part& part, const json& j) {
  const AaResult& r = part.result;
  if (r.effects.size() != static_cast<std::size_t>(r.repeats) ||
      r.faster + r.slower + r.same + r.inconclusive != r.repeats)
    return fmt::format("{} races are told, {} have a speed-up and {} a verdict", r.repeats, r.effects.size(),
                       r.faster + r.slower + r.same + r.inconclusive);
  if (r.lows.size() != r.highs.size() || (!r.lows.empty() && r.lows.size() != r.effects.size()))
    return fmt::format("{} races have a speed-up, {} a lower and {} an upper end of its interval", r.effects.size(),
                       r.lows.size(), r.highs.size());
  AaResult recounted;
  for (std::size_t i = 0; i < r.lows.size(); ++i)
    count_race({r.effects[i], r.lows[i], r.highs[i]}, part.options.margin, recounted);
  const auto counts = [](const AaResult& of) {
    return fmt::format("{} alarms, {} FASTER, {} SLOWER, {} SAME, {} INCONCLUSIVE", of.alarms, of.faster, of.slower,
                       of.same, of.inconclusive);
  };
  if (!r.lows.empty() && counts(r) != counts(recounted))
    return fmt::format("it counts {}, and its races give {}", counts(r), counts(recounted));
  if (j.contains("measured") && std::abs(j["measured"].get<double>() - r.measured()) > kSameMeasured)
    return fmt::format("\"measured\" is {}, and its races give {:.6f}", j["measured"].dump(), r.measured());
  return "";
}

}  // namespace

Verification verify_self_test(const json& document, const std::string& origin) {
  Verification v;
  const json rows = document.value("results", json());
  if (!rows.is_array() || rows.empty())
    throw_bad_input("'{}' holds no part of a self-test: `flashcore ab --self-test --json FILE` writes them", origin);
  std::vector<std::string> failed;  // as the file itself says
  for (std::size_t i = 0; i < rows.size(); ++i) try {
      const Part part = read_part(rows[i]);
      if (!part.called_passed) failed.push_back(part.name);
      if (const std::string why = why_wrong(part, rows[i]); !why.empty()) {
        v.wrong.push_back(fmt::format("{}: {}", part.name, why));
        continue;
      }
      const AaJudgement judged = judge_aa(part.options, part.result);
      if (part.called_passed && !judged.passed && part.says_planted)
        v.wrong.push_back(fmt::format("{}: it says that it passed, and did not: {}", part.name, judged.sentence));
      else if (part.called_passed && !judged.passed)
        v.stale.push_back(
            {i, part.name, "it passed by an older rule, and does not by the present one: " + judged.sentence});
      // Nobody can count anew what it counts.
      else if (part.called_passed && part.result.lows.empty())
        v.stale.push_back({i, part.name, "it says that it passed, and does not keep the intervals that it counts"});
      if (part.result.lows.empty())
        v.remarks.push_back(fmt::format("{}: it does not keep the intervals that it counts", part.name));
      if (!part.says_planted && part.options.planted_permille > 0)
        v.remarks.push_back(fmt::format("{}: it does not say how much extra work its samples held", part.name));
    } catch (const std::exception& e) {
      throw_bad_input("part {} of '{}' cannot be read ({}): run the self-test again", i + 1, origin, e.what());
    }
  if (document.value("passed", json()) == json(true) && !failed.empty())
    v.wrong.emplace_back("it says that it passed, and one of its parts did not");
  v.fresh = v.stale.empty() && v.wrong.empty();
  v.reason =
      !v.wrong.empty()   ? "what it says does not hold together: " + v.wrong.front()
      : !v.stale.empty() ? v.stale.front().name + ": " + v.stale.front().why
      : failed.empty()
          ? fmt::format("what it calls passed passes by the present rule, in {} parts", rows.size())
          : fmt::format("it says itself that it did not pass: {}; the other {} of {} parts pass by the present rule",
                        fmt::join(failed, ", "), rows.size() - failed.size(), rows.size());
  return v;
}

}  // namespace flashcore
