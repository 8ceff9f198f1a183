// Results files against the source as it stands (lab/compare/bench.h).

#include "core/error.h"
#include "core/files.h"
#include "core/foreign_text.h"
#include "core/json_text.h"
#include "lab/compare/bench.h"
#include "lab/record/freshness.h"
#include "lab/verify/audit.h"

namespace flashcore {
namespace {

using nlohmann::json;

}  // namespace

Verification verify_results(const std::filesystem::path& file) {
  return verify_results_text(read_file(file), file.string());
}

Verification verify_results_text(std::string_view text, const std::string& origin) {
  const json document = parse_json(text, origin);
  if (!document.is_object() || document.value("schema", json()) != kBenchSchema || !document.contains("results") ||
      !document["results"].is_array() || document["results"].empty())
    throw_bad_input(
        "'{}' is not a results file: it must be JSON of schema {} with at least one entry under \"results\", as "
        "`flashcore bench --json` writes it",
        origin, kBenchSchema);
  Verification verification;
  const json& rows = document["results"];
  for (std::size_t i = 0; i < rows.size(); ++i) {
    std::optional<std::string> why;
    try {
      if (!rows[i].at("problem").is_string()) throw_bad_input("its problem is no text");
      why = why_stale(rows[i]);
    } catch (const std::exception& e) {
      throw_bad_input("result {} of '{}' does not say what it was measured on ({}): measure it again", i + 1, origin,
                      e.what());
    }
    if (!why) continue;
    const json name = rows[i].value("name", json());
    verification.stale.push_back({i, name.is_string() ? name.get<std::string>() : "?", *why});
  }
  Audit audit = audit_document(document);
  verification.wrong = std::move(audit.wrong);
  verification.without_samples = std::move(audit.without_samples);
  verification.fresh = verification.stale.empty() && verification.wrong.empty();
  if (!verification.wrong.empty()) {
    verification.reason = "figures that do not follow from each other: " + verification.wrong.front();
  } else if (verification.fresh && !verification.without_samples.empty()) {
    verification.reason = fmt::format(
        "{} of {} results were measured on what the source now is, and keep no raw samples: their figures cannot be "
        "checked. `flashcore peers` keeps samples: measure them again",
        verification.without_samples.size(), rows.size());
  } else if (verification.fresh) {
    verification.reason = fmt::format("all {} results were measured on what the source now is for them", rows.size());
  } else {
    const Verification::StaleRow& first = verification.stale.front();
    verification.reason = fmt::format("{} of {} results are stale; {}: {}", verification.stale.size(), rows.size(),
                                      first.name, first.why);
  }
  return verification;
}

}  // namespace flashcore
