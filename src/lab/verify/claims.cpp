#include "lab/verify/claims.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>
#include <optional>
#include <set>

#include "core/foreign_text.h"
#include "core/problem_row.h"
#include "core/suite.h"
#include "device/device.h"
#include "lab/record/digest.h"
#include "lab/record/trial.h"
#include "lab/verify/row_facts.h"

namespace flashcore {
namespace {

using nlohmann::json;

constexpr std::size_t kNamedRows = 4;  // in a remark; of more it says how many
// Of the type's rounding. A bound is kBoundFactor times what rounding costs: under results/ 0.8 to 1.4 units of 16 and
// 8 bits; up to 1,100 of fp32, whose bound is of its sums.
constexpr double kMostUnits = 8, kMostUnitsF32 = 16384;
constexpr int kMostRegisters = 255;  // that a thread of any NVIDIA GPU can have

std::string list_names(const std::vector<std::string>& names) {
  if (names.size() > kNamedRows) return fmt::format("{} results", names.size());
  return fmt::format("{}", fmt::join(names, ", "));
}

class ClaimsAudit {
 public:
  ClaimsAudit(const json& document, double now)
      : document_(document), rows_(document.at("results")), now_(now), written_(time_in(document, "measured_at")) {}

  Claims run() {
    digests();
    if (written_ && *written_ > now_ + kClockSkewSeconds)
      claims_.wrong.push_back(
          fmt::format("the file was written at {}, which is later than now", text_in(document_, "measured_at")));
    for (const json& row : rows_) {
      if (!row.is_object()) continue;
      row_ = &row;
      name_ = name_of_row(row);
      suite();
      words();
      versions();
      correctness_bound();
      choice();
      sessions();
    }
    coverage();
    mixtures();
    return std::move(claims_);
  }

 private:
  template <typename... Args>
  void complain(fmt::format_string<Args...> format, Args&&... args) {
    claims_.wrong.push_back(name_ + ": " + fmt::format(format, std::forward<Args>(args)...));
  }

  void digests() {
    claims_.wrong = find_edited(document_);
    std::vector<std::string> without, before, rederived;
    for (const json& row : rows_) {
      if (!row.is_object()) continue;
      if (seal_of(row) == Seal::kNone) without.push_back(name_of_row(row));
      if (row.contains(kSessionsBeforeDigests)) before.push_back(name_of_row(row));
      if (row.contains(kRederived)) rederived.push_back(name_of_row(row));
    }
    if (without.size() == rows_.size())
      claims_.remarks.emplace_back(
          "it has no digest (measured before digests): an edit of what no figure follows from is not seen, and an edit "
          "of samples together with their figures is not seen either");
    else if (!without.empty())
      claims_.remarks.push_back(
          fmt::format("{} no digest (measured before digests), and other results have one", have(without)));
    else if (seal_of(document_) == Seal::kNone)
      claims_.remarks.emplace_back("its results have digests and the file has none: rows may have been taken out");
    if (!before.empty())
      claims_.remarks.push_back(
          fmt::format("{} sessions from before digests: an edit of those is not seen", have(before)));
    if (!rederived.empty())
      claims_.remarks.push_back(
          fmt::format("{} figures that were derived anew from samples without a digest (verify --record --rederive): "
                      "an edit of the samples before that is not seen",
                      have(rederived)));
  }

  static std::string have(const std::vector<std::string>& names) {
    return list_names(names) + (names.size() == 1 ? " has" : " have");
  }

  const Suite* find_suite(const std::string& name) {
    const auto known = suites_.find(name);
    if (known != suites_.end()) return known->second ? &*known->second : nullptr;
    const std::vector<std::string> shipped = shipped_suites();
    std::optional<Suite>& suite = suites_[name];
    if (std::find(shipped.begin(), shipped.end(), name) != shipped.end()) suite = load_suite(name);
    return suite ? &*suite : nullptr;
  }

  // Who knows a suite by name means the one that ships.
  void suite() {
    const std::string own = text_in(*row_, "suite"), of_file = text_in(document_, "suite");
    const std::string name = own.empty() ? of_file : own;
    const Suite* suite = find_suite(name);
    if (!suite) {
      names_of_suites_.insert(name);
      return;
    }
    const json expected = identity(*row_);
    std::string called;
    bool has_name = false;
    for (const NamedProblem& named : suite->problems) {
      json identity = json::object();
      put_problem(identity, named.problem);
      const bool is_named = named.name == text_in(*row_, "name");
      has_name = has_name || is_named;
      if (identity != expected) continue;
      if (is_named) {
        names_of_suites_.insert(name);
        return;
      }
      called = named.name;
    }
    const std::string id = text_in(*row_, "problem");
    // Asked for by its id, and in no suite: `bench --problem ID` still names its default one.
    if (called.empty() && text_in(*row_, "name") == id) return;
    names_of_suites_.insert(name);
    if (!called.empty()) return complain("the suite {} calls {} '{}'", name, excerpt(id), called);
    if (has_name) return complain("the suite {} has another problem of this name than {}", name, excerpt(id));
    claims_.remarks.push_back(fmt::format("{}: the suite {} has no such problem now", name_, name));
  }

  static json identity(const json& row) {
    json identity = json::object();
    try {
      put_problem(identity, problem_of(row));
    } catch (const std::exception&) {  // whoever judges the row's freshness says what is wrong with it
    }
    return identity;
  }

  void words() {
    check_word("regime", [](const std::string& word) { parse_regime(word); });
    if (const std::string why = why_unknown_condition(*row_); !why.empty()) complain("{}", why);
    if (const std::string condition = text_in(*row_, "condition"); !condition.empty())
      conditions_[condition].push_back(name_);
    else if (is_timed(*row_)) without_condition_.push_back(name_);
    const std::string regime = text_in(*row_, "regime");
    if (!has_samples()) return;
    const std::string_view by_peers = to_string(is_on_gpu() ? Regime::kGraph : Regime::kWarm);
    if (!regime.empty() && regime != by_peers)
      complain("its regime is \"{}\", and sessions beside peers are of {}", excerpt(regime), by_peers);
  }

  void check_word(const char* key, const std::function<void(const std::string&)>& parse) {
    const json value = row_->value(key, json());
    if (value.is_null()) return;
    try {
      parse(value.is_string() ? value.get<std::string>() : value.dump());
    } catch (const std::exception& e) {
      complain("{}", e.what());
    }
  }

  bool has_samples() const { return is_timed(*row_) && row_->value("measured", json()).is_array(); }
  bool is_on_gpu() const { return text_in(part(part(*row_, "device"), "limits"), "kind") == "cuda"; }

  void versions() {
    const std::string compiler = text_in(*row_, "compiler"), code = text_in(*row_, "code_hash");
    unsigned bytes = 0;
    int major = 0, minor = 0, read = 0;
    if (!compiler.empty() && is_on_gpu() &&
        (std::sscanf(compiler.c_str(), "NVRTC %d.%d (%u bytes)%n", &major, &minor, &bytes, &read) != 3 ||
         static_cast<std::size_t>(read) != compiler.size()))
      complain("its compiler '{}' is no NVRTC as flashcore names one", excerpt(compiler));
    const json registers = row_->value("registers", json());
    if (!registers.is_null() && is_on_gpu()) {
      if (!registers.is_number_integer() || registers < json(1) || registers > json(kMostRegisters))
        complain("{} registers are none that a thread of a GPU has", registers.dump());
      const auto [known, is_new] = registers_.try_emplace(code, registers, name_);
      if (!code.empty() && !is_new && known->second.first != registers)
        complain("the machine code {} has {} registers here, and {} in {}", excerpt(code), registers.dump(),
                 known->second.first.dump(), known->second.second);
    }
    const std::string version = text_in(part(*row_, "environment"), "flashcore");
    if (!version.empty() && version != FLASHCORE_VERSION) versions_[excerpt(version)].push_back(name_);
  }

  void correctness_bound() {
    if (!is_timed(*row_)) return;
    check_bound("correctness bound", part(part(*row_, "correct"), "bound"));
    check_bound("bound of the timed output", part(part(*row_, "correct"), "timed_bound"));
  }
  void check_bound(const char* what, const json& bound) {
    if (!bound.is_number()) return;
    try {
      const PlacedProblem problem = problem_of(*row_);
      const double unit = precision_of(problem.dtype).unit, output = precision_of(problem.output_dtype()).unit;
      const double most = (problem.dtype == DType::kF32 ? kMostUnitsF32 : kMostUnits) * std::max(unit, output);
      if (bound.get<double>() > most)
        complain("its {} of {:.3g} is more than rounding to its types may cost, {:.3g}", what, bound.get<double>(),
                 most);
    } catch (const std::exception&) {  // as in identity()
    }
  }

  void choice() {
    if (!is_timed(*row_)) return;
    const std::string chosen_by = text_in(*row_, "chosen_by");
    if (chosen_by != to_string(ChosenBy::kDispatch)) chosen_otherwise_[chosen_by].push_back(name_);
  }

  void sessions() {
    const json environment = part(*row_, "environment");
    const std::string driver = text_in(part(*row_, "device"), "driver");
    if (const std::string named = text_in(environment, "driver"); !named.empty() && !driver.empty() && named != driver)
      complain("its environment names the driver '{}', and its device '{}'", excerpt(named), excerpt(driver));
    check_not_later("it was measured", time_in(environment, "measured_at"), text_in(environment, "measured_at"));
    if (!row_->value("measured", json()).is_array()) return;
    const json* latest = nullptr;
    std::size_t number = 0;
    for (const json& session : row_->at("measured")) {
      ++number;
      if (!session.is_object()) continue;
      dates(number, session);
      condition_of(number, session);
      const std::string of_session = text_in(session, "driver");
      if (session.contains("samples_us")) {
        if (!of_session.empty() && !driver.empty() && of_session != driver)
          complain("session {} ran on the driver '{}', and the device has '{}'", number, excerpt(of_session),
                   excerpt(driver));
        latest = &session;
      }
    }
    if (is_timed(*row_) && latest) compare_with_latest(environment, *latest);
  }

  void check_not_later(const std::string& what, std::optional<double> time, const std::string& text) {
    if (!time) return;
    if (*time > now_ + kClockSkewSeconds) complain("{} at {}, which is later than now", what, text);
    else if (written_ && *time > *written_ + kClockSkewSeconds)
      complain("{} at {}, and the file was written before that, at {}", what, text, text_in(document_, "measured_at"));
  }

  void dates(std::size_t number, const json& session) {
    const auto began = time_in(session, "began_at"), ended = time_in(session, "measured_at"),
               run = time_of_run(session);
    check_not_later(fmt::format("session {} was measured", number), ended, text_in(session, "measured_at"));
    if (began && ended && *began > *ended)
      complain("session {} began at {}, after it was measured at {}", number, text_in(session, "began_at"),
               text_in(session, "measured_at"));
    const std::optional<double> first = began ? began : ended;
    if (run && first && *run > *first)
      complain("session {} is of {}, which began after {}", number, excerpt(text_in(session, "run")),
               text_in(session, began ? "began_at" : "measured_at"));
  }

  // Files from before 26 November 2026 say the condition once for a row: nothing there would contradict another word.
  void condition_of(std::size_t number, const json& session) {
    const std::string condition = text_in(*row_, "condition"), of_session = text_in(session, "condition");
    if (const std::string why = why_unknown_condition(session); !why.empty())
      return complain("session {}: {}", number, why);
    if (condition.empty()) return;
    if (!of_session.empty() && of_session != condition)
      complain("its condition is \"{}\", and that of session {} \"{}\"", excerpt(condition), number,
               excerpt(of_session));
    const json measure_ms = session.value("measure_ms", json());
    if (!measure_ms.is_number()) return;
    const bool is_sustained = condition == to_string(Condition::kSustained);
    if (is_sustained != (measure_ms.get<double>() > 0))
      complain("its condition is \"{}\", and each sample of session {} took {} ms (0: a burst)", excerpt(condition),
               number, measure_ms.dump());
  }

  // What is no sample is of the latest session that has samples.
  void compare_with_latest(const json& environment, const json& latest) {
    const auto began = began_at_of(latest), ended = time_in(latest, "measured_at");
    const auto when = time_in(environment, "measured_at");
    if (when && ((began && *when < *began) || (ended && *when > *ended)))
      complain("its environment is of {}, and its latest session with samples ended at {}",
               text_in(environment, "measured_at"), text_in(latest, "measured_at"));
    const std::string commit = text_in(environment, "commit"), of_session = text_in(latest, "commit");
    if (latest.contains("commit") && environment.contains("commit") && commit != of_session)
      complain("its environment names the commit '{}', and its latest session with samples '{}'", excerpt(commit),
               excerpt(of_session));
  }

  void coverage() {
    if (names_of_suites_.size() != 1) return;
    const Suite* suite = find_suite(*names_of_suites_.begin());
    if (!suite) return;
    claims_.suite = suite->name;
    claims_.suite_problems = suite->problems.size();
    std::set<std::string> measured;
    for (const json& row : rows_) measured.insert(text_in(row, "name"));
    for (const NamedProblem& named : suite->problems)
      if (!measured.contains(named.name)) claims_.unmeasured.push_back(named.name);
  }

  void mixtures() {
    if (conditions_.size() > 1)
      for (const auto& [condition, names] : conditions_)
        claims_.remarks.push_back(fmt::format("the condition is {} in {}", excerpt(condition), list_names(names)));
    if (!without_condition_.empty())
      claims_.remarks.push_back(
          fmt::format("no condition is named of {}: with which times they may be compared is not known",
                      list_names(without_condition_)));
    for (const auto& [chosen_by, names] : chosen_otherwise_)
      claims_.remarks.push_back(fmt::format(
          "{} chose the candidate of {}: whether dispatch would choose it now is not asked",
          chosen_by.empty() ? "nobody is named who" : fmt::format("'{}'", excerpt(chosen_by)), list_names(names)));
    for (const auto& [version, names] : versions_)
      claims_.remarks.push_back(
          fmt::format("flashcore {} measured {}, and this is {}", version, list_names(names), FLASHCORE_VERSION));
  }

  const json& document_;
  const json& rows_;
  double now_;
  std::optional<double> written_;
  const json* row_ = nullptr;
  std::string name_;
  Claims claims_;
  std::map<std::string, std::optional<Suite>> suites_;  // none: it does not ship
  std::set<std::string> names_of_suites_;
  std::map<std::string, std::pair<json, std::string>> registers_;  // by code hash, and of which row
  std::map<std::string, std::vector<std::string>> conditions_, versions_;
  std::vector<std::string> without_condition_;                        // timed rows
  std::map<std::string, std::vector<std::string>> chosen_otherwise_;  // timed rows, by who chose; "": not said
};

}  // namespace

Claims audit_claims(const json& document, double now) { return ClaimsAudit(document, now).run(); }

}  // namespace flashcore
