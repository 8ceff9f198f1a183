// Files of `flashcore crosscheck --json`: the verdicts by the present rule, from the samples that the file keeps.

#include <algorithm>

#include "core/error.h"
#include "lab/compare/crosscheck.h"
#include "lab/record/json_io.h"
#include "lab/verify/judged_file.h"
#include "lab/verify/row_facts.h"

namespace flashcore {
namespace {

using nlohmann::json;

double number_or(const json& object, const char* key, double otherwise) {
  const json value = part(object, key);
  return value.is_number() ? value.get<double>() : otherwise;
}

std::vector<double> kept_samples_of(const json& times) {
  const json samples = part(times, "samples");
  return samples.is_array() ? samples.get<std::vector<double>>() : std::vector<double>();
}

EngineReading engine_of(const json& engine) {
  EngineReading e;
  e.warm_us = kept_samples_of(part(engine, "warm_us")), e.cold_us = kept_samples_of(part(engine, "cold_us"));
  e.clock_mhz = number_or(engine, "clock_mhz", 0);
  e.slowest_mhz = number_or(engine, "slowest_mhz", 0), e.fastest_mhz = number_or(engine, "fastest_mhz", 0);
  e.empty_launch_us = number_or(engine, "empty_launch_us", 0);
  e.throttled = engine.value("throttled", 0);
  e.others_busy = number_or(engine, "others_busy", -1);
  return e;
}

MethodReading method_of(const json& row) {
  MethodReading m;
  m.method = row.at("method").get<std::string>();
  m.times_us = kept_samples_of(part(row, "time_us"));
  m.in_process = row.at("in_process").get<bool>(), m.interleaved = row.at("interleaved").get<bool>();
  m.cold = row.at("cache") == json("cold");
  m.host_launch = row.value("host_launch", false);
  m.host_us = number_or(row, "host_us", 0), m.empty_us = number_or(row, "empty_us", 0);
  m.launches = static_cast<int>(number_or(row, "launches", 0)), m.around_us = number_or(row, "around_us", 0);
  m.clock_mhz = number_or(row, "clock_mhz", 0);
  m.others_busy = number_or(row, "others_busy", -1);
  m.why_not = m.times_us.empty() ? text_in(row, "cause") : "";
  return m;
}

class CrosscheckAudit {
 public:
  CrosscheckAudit(JudgedFile& file, const json& row, std::size_t index)
      : file_(file), row_(row), index_(index), name_(name_of_row(row)), engine_(engine_of(row.at("engine"))) {}

  Agreement run() {
    file_.judge_source(index_, name_, row_, text_in(row_, "candidate"), text_in(row_, "problem"));
    const json& engine = row_.at("engine");
    for (const char* key : {"warm_us", "cold_us"}) quantiles(fmt::format("the engine's {}", key), engine.at(key));
    CrosscheckResult told;  // what the file's own words come to
    told.wrong = text_in(row_, "wrong"), told.failed = text_in(row_, "failed");
    for (const json& method : row_.at("methods")) told.methods.push_back(this->method(method));
    for (const json& ceiling : row_.at("ceilings")) told.ceilings.push_back(this->ceiling(ceiling));
    const auto verdict = parse_word<Agreement>(row_.at("verdict").get<std::string>());
    if (verdict != told.agreement())
      file_.complain("{}: its verdict is '{}', and its ways to time give '{}'", name_, verdict, told.agreement());
    if (!told.wrong.empty() || !told.failed.empty() || verdict == Agreement::kDisagrees) file_.did_not_pass();
    return verdict;
  }

 private:
  JudgedFile& file_;
  const json& row_;
  std::size_t index_;
  std::string name_;
  EngineReading engine_;

  void quantiles(const std::string& of, const json& times) {
    if (times.is_null()) return;
    const std::vector<double> samples = kept_samples_of(times);
    if (samples.empty()) return file_.complain("{}: {} keeps no samples", name_, of);
    for (const auto& [key, q] : {std::pair("p10", 0.1), {"p50", 0.5}, {"p90", 0.9}})
      file_.compare_number(fmt::format("{}: {} of {}", name_, key, of), times.at(key).get<double>(),
                           quantile(samples, q));
  }

  MethodVerdict method(const json& row) {
    const std::string of = fmt::format("{}: {}", name_, text_in(row, "method"));
    quantiles(text_in(row, "method"), row.at("time_us"));
    MethodVerdict told{.reading = method_of(row),
                       .agreement = parse_word<Agreement>(row.at("agreement").get<std::string>()),
                       .ratio = {},
                       .cause = text_in(row, "cause")};
    const MethodVerdict judged = judge_method(engine_, told.reading, row_.at("limit").get<double>());
    if (const json& ratio = row.at("ratio"); ratio.is_object()) {
      file_.compare_number(of + ": the ratio", ratio.at("estimate").get<double>(), judged.ratio.estimate);
      file_.compare_number(of + ": the ratio's lower end", ratio.at("ci95").at(0).get<double>(), judged.ratio.low);
      file_.compare_number(of + ": the ratio's upper end", ratio.at("ci95").at(1).get<double>(), judged.ratio.high);
    } else if (judged.ratio.estimate > 0) {
      file_.complain("{}: it has times, and no ratio", of);
    }
    agreement(of, row, told, judged);
    return told;
  }

  // Agreement and disagreement follow from the ratio alone. What explains a disagreement has been told more finely
  // since: a row that lacks what the present rule reads cannot be asked for that.
  void agreement(const std::string& of, const json& row, const MethodVerdict& told, const MethodVerdict& judged) {
    if (told.agreement == judged.agreement) return;
    const bool is_present_form = row.contains("empty_us") && row.contains("around_us") && row.contains("others_busy");
    const bool both_beyond = told.agreement != Agreement::kAgrees && judged.agreement != Agreement::kAgrees;
    if (is_present_form || !both_beyond)
      return file_.complain("{}: it is told as '{}', and its samples give '{}'", of, told.agreement, judged.agreement);
    file_.stale(
        index_, of,
        fmt::format("an older rule told it as '{}', and the present one as '{}'", told.agreement, judged.agreement));
  }

  CeilingVerdict ceiling(const json& row) {
    const double tflops = number_or(row, "tflops", 0), ceiling = number_or(row, "ceiling_tflops", 0);
    CeilingVerdict told{.reading = {.what = text_in(row, "matmul"), .tflops = tflops},
                        .ceiling_tflops = ceiling,
                        .agreement = parse_word<Agreement>(row.at("agreement").get<std::string>()),
                        .cause = text_in(row, "cause")};
    Ceilings ceilings;
    ceilings.matmul_tflops_16bit = ceilings.fma_tflops_fp32 = ceiling;
    MatmulReading reading = told.reading;
    // A small multiply may refute a ceiling, and never confirms one; which it was is not in the file.
    const Agreement large = judge_ceiling(reading, ceilings).agreement;
    reading.large = false;
    if (told.agreement != large && told.agreement != judge_ceiling(reading, ceilings).agreement)
      file_.complain("{}: '{}' is told as '{}', and its rate gives '{}'", name_, told.reading.what, told.agreement,
                     large);
    return told;
  }
};

}  // namespace

Verification verify_crosscheck_file(const json& document) {
  JudgedFile file(document);
  file.expect_distinct("problem");
  std::size_t agrees = 0, index = 0;
  for (const json& row : file.rows()) agrees += CrosscheckAudit(file, row, index++).run() == Agreement::kAgrees;
  const std::size_t rows = file.rows().size();
  if (const json jobs = part(document, "jobs"); jobs.is_number_integer() && jobs.get<std::size_t>() != rows)
    file.incomplete(fmt::format("{} problems were to be cross-checked, and {} are in it", jobs.dump(), rows));
  return file.finish(
      rows, fmt::format("its samples give what it says of {} problems: of {} another tool agrees", rows, agrees));
}

}  // namespace flashcore
