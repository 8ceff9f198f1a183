#include "lab/verify/self_test_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <ctime>

#include "core/error.h"
#include "core/foreign_text.h"
#include "lab/compare/aa.h"
#include "lab/record/digest.h"
#include "lab/verify/row_facts.h"

namespace flashcore {
namespace {

using nlohmann::json;

constexpr double kSameMeasured = 1e-6;
// What all parts of one self-test have alike.
constexpr const char* kOfSelfTest[] = {"device", "problem", "candidate", "regime", "condition", "margin"};

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
  if (part.options.alpha != kAaAlpha)
    return fmt::format("its alpha is {}, and that of its intervals {}", part.options.alpha, kAaAlpha);
  if (const json rate = j.value("alarm_rate", json()); rate.is_number() && rate != json(r.alarm_rate()))
    return fmt::format("an alarm rate of {} is not {} of {}", rate.dump(), r.alarms, r.repeats);
  const double extra = part.says_planted ? r.planted * r.launches_per_sample : 0;
  if (std::abs(extra - std::round(extra)) > kSameMeasured)
    return fmt::format("{}% of {} launches are no whole number of launches", 100 * r.planted, r.launches_per_sample);
  if (j.contains("measured") && std::abs(j["measured"].get<double>() - r.measured()) > kSameMeasured)
    return fmt::format("\"measured\" is {}, and its races give {:.6f}", j["measured"].dump(), r.measured());
  return "";
}

// What its parts say of each other and of the whole.
void compare_parts(const json& document, const json& parts, std::vector<std::string>& wrong) {
  std::vector<std::string> names, lacking;
  bool all_passed = true;
  for (const json& part : parts) {
    names.push_back(text_in(part, "name"));
    all_passed = all_passed && part.value("passed", json()) == json(true);
    for (const char* key : kOfSelfTest)
      if (part.value(key, json()) != parts[0].value(key, json()))
        wrong.push_back(fmt::format("its parts have not one {}: {} and {}", key, parts[0].value(key, json()).dump(),
                                    part.value(key, json()).dump()));
  }
  for (const AaPart& known : kAaParts) {
    const auto count = std::count(names.begin(), names.end(), known.name);
    if (count > 1) wrong.push_back(fmt::format("it has the part '{}' {} times", known.name, count));
    if (count == 0) lacking.emplace_back(known.name);
    names.erase(std::remove(names.begin(), names.end(), known.name), names.end());
  }
  for (const std::string& name : names) wrong.push_back(fmt::format("a self-test has no part '{}'", excerpt(name)));
  const json passed = document.value("passed", json());
  if (passed == json(true) && !lacking.empty())
    wrong.push_back(fmt::format("it says that it passed, and lacks the part '{}'", fmt::join(lacking, "' and '")));
  if (passed == json(true) && !all_passed) wrong.emplace_back("it says that it passed, and one of its parts did not");
  if (passed == json(false) && all_passed && lacking.empty())
    wrong.emplace_back("it says that it did not pass, and all of its parts did");
  if (const std::string key = text_in(part(document, "device"), "key"), own = text_in(parts[0], "device"); key != own)
    wrong.push_back(fmt::format("it is of the device '{}', and its parts of '{}'", excerpt(key), excerpt(own)));
  const auto created = time_in(document, "created_at");
  if (created && *created > static_cast<double>(std::time(nullptr)) + kClockSkewSeconds)
    wrong.push_back(fmt::format("it was made at {}, which is later than now", text_in(document, "created_at")));
}

// What a self-test calls so, if it plants the same share.
const AaPart* find_known(const Part& part) {
  const auto* const known = std::find_if(std::begin(kAaParts), std::end(kAaParts), [&](const AaPart& one) {
    return part.name == one.name && part.options.planted_permille == one.planted_permille;
  });
  return known == std::end(kAaParts) ? nullptr : known;
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
      if (const std::string why = why_unknown_condition(rows[i]); !why.empty())
        v.wrong.push_back(fmt::format("{}: {}", part.name, why));
      if (!part.called_passed) failed.push_back(part.name);
      if (const std::string why = why_wrong(part, rows[i]); !why.empty()) {
        v.wrong.push_back(fmt::format("{}: {}", part.name, why));
        continue;
      }
      const AaPart* known = find_known(part);
      if (!known) {
        v.wrong.push_back(fmt::format("{}: {:.2f}% of extra work was to be planted in it", part.name,
                                      part.options.planted_permille / 10.0));
        continue;
      }
      const AaJudgement judged = judge_aa(part.options, part.result, known->least_races);
      // Older files have other words.
      if (const std::string told = text_in(rows[i], "sentence");
          !told.empty() && !part.result.lows.empty() && told != judged.sentence)
        v.wrong.push_back(
            fmt::format("{}: it says '{}', and its races give '{}'", part.name, excerpt(told, 120), judged.sentence));
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
  compare_parts(document, rows, v.wrong);
  switch (seal_of(document)) {
    case Seal::kIntact: break;
    case Seal::kBroken:
      v.wrong.emplace_back("its text is not what the program wrote: its digest is of another one");
      break;
    case Seal::kNone:
      v.remarks.emplace_back(
          "it has no digest (measured before digests): an edit of its races together with what they are counted to is "
          "not seen");
  }
  v.fresh = v.stale.empty() && v.wrong.empty();
  v.timed = rows.size();
  v.did_not_pass = document.value("passed", json()) != json(true);
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
