// Files of `flashcore invert --json`: do verdicts, order and answer follow from the ratios?

#include <algorithm>
#include <set>

#include "core/error.h"
#include "lab/invert/sensitivity.h"
#include "lab/statistics/statistics.h"
#include "lab/verify/judged_file.h"
#include "lab/verify/row_facts.h"

namespace flashcore {
namespace {

using nlohmann::json;

Sensitivity sensitivity_of_row(const json& row) {
  Sensitivity s;
  s.variant = row.at("variant").get<std::string>();
  s.kind = parse_word<VariantKind>(row.at("kind").get<std::string>());
  s.wrong_on_purpose = row.at("wrong_on_purpose").get<bool>();
  s.verdict = parse_word<SpeedVerdict>(row.at("verdict").get<std::string>());
  s.sentence = text_in(row, "sentence");
  if (row.contains("time_ratio")) {
    row.at("time_ratio").get_to(s.time_ratio);
    row.at("ci95").at(0).get_to(s.low), row.at("ci95").at(1).get_to(s.high);
  }
  if (const json count = part(row, "count"); count.is_object())
    s.count = CounterChange{count.at("counter").get<std::string>(), count.at("plain").get<double>(),
                            count.at("variant").get<double>()};
  return s;
}

class InvertAudit {
 public:
  InvertAudit(JudgedFile& file, const json& row) : file_(file), row_(row), name_(name_of_row(row)) {}

  void run(std::size_t index) {
    file_.judge_source(index, name_, row_, row_.at("candidate").get<std::string>(),
                       row_.at("problem").get<std::string>());
    file_.has_known_condition(name_, row_);
    if (!text_in(row_, "failed").empty()) return file_.did_not_pass();
    if (row_.value("stopped", false)) file_.incomplete(name_ + ": it was stopped before all variants were measured");
    std::vector<Sensitivity> ranked;
    std::set<std::string> told;
    for (const json& row : row_.at("ranking")) {
      ranked.push_back(sensitivity_of_row(row));
      variant(ranked.back(), told);
    }
    for (const json& row : row_.at("not_judged")) {
      const std::string name = row.at("variant").get<std::string>();
      if (!told.insert(name).second) file_.complain("{}: {} is in it twice", name_, name);
      if (text_in(row, "why_not").empty()) file_.complain("{}: {} was not judged, and no reason is given", name_, name);
    }
    order(ranked);
    expect_variants(told);
  }

 private:
  JudgedFile& file_;
  const json& row_;
  std::string name_;

  void variant(const Sensitivity& s, std::set<std::string>& told) {
    if (!told.insert(s.variant).second) file_.complain("{}: {} is in it twice", name_, s.variant);
    if (s.count) return;
    if (!(s.low <= s.time_ratio && s.time_ratio <= s.high))
      file_.complain("{}: {} takes {:.6g} of the time, which its interval of {:.6g} to {:.6g} does not hold", name_,
                     s.variant, s.time_ratio, s.low, s.high);
    const SpeedVerdict follows = verdict_of({1 / s.time_ratio, 1 / s.high, 1 / s.low}, row_.at("margin").get<double>());
    if (s.verdict != follows)
      file_.complain("{}: {} is told as {}, and its interval gives {}", name_, s.variant, s.verdict, follows);
    // The sentence repeats the figures.
    const std::string figures = fmt::format("takes {:.2f} of the time ({:.2f} to {:.2f})", s.time_ratio, s.low, s.high);
    if (s.sentence.find(figures) == std::string::npos)
      file_.complain("{}: {} {}, and its sentence says otherwise", name_, s.variant, figures);
  }

  void order(const std::vector<Sensitivity>& ranked) {
    const std::vector<Sensitivity> again = ranking(ranked);
    for (std::size_t i = 0; i < std::min(ranked.size(), again.size()); ++i)
      if (ranked[i].variant != again[i].variant)
        return file_.complain("{}: {} comes {} of its ranking, where {} has the larger effect", name_,
                              ranked[i].variant, i + 1, again[i].variant);
    if (again.size() < ranked.size()) return file_.complain("{}: its ranking holds what was not judged", name_);
    const std::string told = row_.at("answer").get<std::string>();
    if (told != answer(ranked))
      file_.complain("{}: its answer is not what its ranking gives, which is: {}", name_, answer(ranked));
  }

  // Older files do not say which were asked for.
  void expect_variants(const std::set<std::string>& told) {
    std::vector<std::string> asked;
    if (const json names = part(row_, "variants"); names.is_array()) names.get_to(asked);
    if (asked.empty())
      for (const Variant& each : variants()) asked.emplace_back(each.name);
    for (const std::string& name : asked)
      if (!told.contains(name))
        file_.incomplete(fmt::format("{}: the variant {} is not in it: taken out, or not asked for", name_, name));
  }
};

}  // namespace

Verification verify_invert_file(const json& document) {
  JudgedFile file(document);
  file.expect_distinct("problem");
  std::size_t index = 0;
  for (const json& row : file.rows()) InvertAudit(file, row).run(index++);
  return file.finish(index, fmt::format("the answers of {} problems follow from the ratios that it keeps", index));
}

}  // namespace flashcore
