// Results files against the source as it stands (lab/compare/bench.h).

#include "core/error.h"
#include "core/files.h"
#include "core/foreign_text.h"
#include "core/json_text.h"
#include "kernels/embedded.h"
#include "lab/compare/bench.h"
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
  const std::string current = source_hash();
  Verification verification;
  std::string other;
  for (const json& result : document["results"]) {
    const json hash = result.is_object() ? result.value("source_hash", json()) : json();
    if (!hash.is_string())
      throw_bad_input(
          "'{}' has a result without a source_hash; it cannot be said what it was measured on: measure it again",
          origin);
    if (hash == current) continue;
    other = hash.get<std::string>();
    const json name = result.value("name", json());
    verification.stale.push_back(name.is_string() ? name.get<std::string>() : "?");
  }
  verification.wrong = audit_results(document);
  verification.fresh = verification.stale.empty() && verification.wrong.empty();
  verification.reason =
      !verification.wrong.empty() ? "figures that do not follow from each other: " + verification.wrong.front()
      : verification.fresh
          ? fmt::format("all {} results were measured on the source as it stands ({})", document["results"].size(),
                        current)
          : fmt::format("{} of {} results were measured on other source ({}) than the source as it stands ({})",
                        verification.stale.size(), document["results"].size(), other, current);
  return verification;
}

}  // namespace flashcore
