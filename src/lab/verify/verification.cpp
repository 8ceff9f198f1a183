// Results files against the source as it stands (lab/compare/bench.h).

#include <algorithm>
#include <atomic>
#include <ctime>
#include <iterator>

#include "core/error.h"
#include "core/files.h"
#include "core/foreign_text.h"
#include "core/json_text.h"
#include "core/parallel.h"
#include "lab/compare/aa.h"
#include "lab/compare/bench.h"
#include "lab/compare/peer_rows.h"
#include "lab/record/digest.h"
#include "lab/record/freshness.h"
#include "lab/record/trial.h"
#include "lab/verify/audit.h"
#include "lab/verify/claims.h"
#include "lab/verify/recompute.h"
#include "lab/verify/row_facts.h"
#include "lab/verify/self_test_file.h"

namespace flashcore {
namespace {

using nlohmann::json;

constexpr std::size_t kLinesBesideRows = 20;  // fields of a results file that are no rows

bool is_self_test(const json& document) {
  return document.is_object() && document.value("schema", json()) == kAaSelfTestSchema;
}

json parse_results(std::string_view text, const std::string& origin) {
  json document = parse_json(text, origin);
  if (!document.is_object() || document.value("schema", json()) != kBenchSchema || !document.contains("results") ||
      !document["results"].is_array() || document["results"].empty())
    throw_bad_input(
        "'{}' is not a results file: it must be JSON of schema {} with at least one entry under \"results\", as "
        "`flashcore bench --json` writes it",
        origin, kBenchSchema);
  return document;
}

struct JudgedRow {
  Freshness freshness;
  std::string unreadable;  // why there is no judgement
};

// Side by side: a row whose text has changed waits for the compiler.
std::vector<JudgedRow> judge_rows(const json& rows) {
  std::vector<JudgedRow> judged(rows.size());
  parallel_for(static_cast<std::int64_t>(rows.size()), 0, [&](std::int64_t i) {
    const auto at = static_cast<std::size_t>(i);
    try {
      if (!rows[at].at("problem").is_string()) throw_bad_input("its problem is no text");
      judged[at].freshness = freshness_of_row(rows[at]);
    } catch (const std::exception& e) {
      judged[at].unreadable = e.what();
    }
  });
  return judged;
}

std::string reason_of(const Verification& v, std::size_t rows) {
  const auto first_of = [&](const std::vector<Verification::StaleRow>& of, const char* what) {
    return fmt::format("{} of {} results {}; {}: {}", of.size(), rows, what, of.front().name, of.front().why);
  };
  if (!v.wrong.empty()) return "what it says does not hold together: " + v.wrong.front();
  if (!v.stale.empty()) return first_of(v.stale, "are stale");
  if (!v.unknown.empty()) return first_of(v.unknown, "are neither known to be fresh nor to be stale");
  if (v.timed == 0) return fmt::format("nothing was measured: none of its {} results has a time", rows);
  if (!v.without_samples.empty())
    return fmt::format(
        "{} of {} results were measured on what the source now is, and keep no raw samples: their figures cannot be "
        "checked. `flashcore peers` keeps samples: measure them again",
        v.without_samples.size(), rows);
  const std::size_t bare = v.times_without_samples.size();
  const std::string timed = v.timed == rows ? "" : fmt::format(" ({} of them with a time)", v.timed);
  return fmt::format("all {} results{} were measured on what the source now is for them{}{}", rows, timed,
                     v.same_code.empty() ? "" : fmt::format(" ({}: text changed, same code)", v.same_code.size()),
                     bare == 0 ? "" : fmt::format("; no raw samples kept of {}: nothing confirms their times", bare));
}

// Of a JSON text: the first integer that no 64 bits hold, which would be written back as a rounded real number.
std::string find_long_integer(std::string_view text) {
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (text[at] == '"') {
      for (++at; at < text.size() && text[at] != '"'; ++at)
        if (text[at] == '\\') ++at;
    } else if (text[at] == '-' || (text[at] >= '0' && text[at] <= '9')) {
      const std::size_t end = std::min(text.find_first_not_of("0123456789+-.eE", at), text.size());
      const std::string_view number = text.substr(at, end - at);
      if (number.find_first_of(".eE") == std::string_view::npos && !parse_whole(number) && !parse_unsigned(number))
        return std::string(number);
      at = end - 1;
    }
  }
  return "";
}

// What is written back says what was read, to the letter that our own files have.
void require_our_spelling(std::string_view text, const std::string& origin) {
  const auto refuse = [&](const std::string& what) {
    throw_bad_input("'{}' {}: --record writes the file anew and would change that, so it is left as it is", origin,
                    what);
  };
  if (text.starts_with("\xef\xbb\xbf")) refuse("begins with a byte order mark");
  if (text.find('\r') != std::string_view::npos) refuse("has lines that end in CR LF");
  if (const std::string number = find_long_integer(text); !number.empty())
    refuse(fmt::format("holds {}, an integer of more than 64 bits", excerpt(number, 40)));
}

void append(std::vector<std::string>& to, std::vector<std::string>&& from) {
  to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
}

// Of what --record has changed; who has no digest gets none.
void seal_again(nlohmann::ordered_json& object) {
  if (object.contains(kDigest)) object[kDigest] = digest_of(json(object));
}

Claims claims_of(const json& document) { return audit_claims(document, static_cast<double>(std::time(nullptr))); }

void judge_whole(Verification& verification, std::size_t rows) {
  verification.fresh = verification.stale.empty() && verification.unknown.empty() && verification.wrong.empty() &&
                       verification.timed > 0;
  verification.reason = reason_of(verification, rows);
}

}  // namespace

Verification verify_results(const std::filesystem::path& file, bool recompute) {
  const std::string text = read_file(file);
  Verification verification = verify_results_text(text, file.string(), recompute);
  if (is_self_test(parse_json(text, file.string()))) return verification;
  const json document = parse_results(text, file.string());
  Claims commits = audit_commits(document, file);
  append(verification.wrong, std::move(commits.wrong));
  append(verification.remarks, std::move(commits.remarks));
  judge_whole(verification, document["results"].size());
  return verification;
}

Verification verify_results_text(std::string_view text, const std::string& origin, bool recompute) {
  if (const json read = parse_json(text, origin); is_self_test(read)) return verify_self_test(read, origin);
  const json document = parse_results(text, origin);
  Verification verification;
  const json& rows = document["results"];
  verification.timed = static_cast<std::size_t>(std::count_if(rows.begin(), rows.end(), is_timed));
  const std::vector<JudgedRow> judged = judge_rows(rows);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (!judged[i].unreadable.empty())
      throw_bad_input("result {} of '{}' does not say what it was measured on ({}): measure it again", i + 1, origin,
                      judged[i].unreadable);
    using State = Freshness::State;
    const Freshness& freshness = judged[i].freshness;
    if (freshness.state == State::kSameText) continue;
    const json name = rows[i].value("name", json());
    auto& list = freshness.state == State::kStale     ? verification.stale
                 : freshness.state == State::kUnknown ? verification.unknown
                                                      : verification.same_code;
    list.push_back({i, name.is_string() ? name.get<std::string>() : "?", freshness.why});
  }
  Audit audit = audit_document(document);
  verification.wrong = std::move(audit.wrong);
  verification.without_samples = std::move(audit.without_samples);
  verification.times_without_samples = std::move(audit.times_without_samples);
  verification.remarks = std::move(audit.remarks);
  Claims claims = claims_of(document);
  append(verification.wrong, std::move(claims.wrong));
  append(verification.remarks, std::move(claims.remarks));
  verification.suite = claims.suite;
  verification.suite_problems = claims.suite_problems;
  verification.unmeasured = std::move(claims.unmeasured);
  if (recompute) {
    Recomputed again = recompute_rows(rows);
    append(verification.wrong, std::move(again.wrong));
    append(verification.remarks, std::move(again.remarks));
  }
  judge_whole(verification, rows.size());
  return verification;
}

RecordedProvenance with_provenance(std::string_view text, const std::string& origin, bool rederive) {
  const json read = parse_results(text, origin);
  require_our_spelling(text, origin);
  RecordedProvenance recorded;
  recorded.wrong = claims_of(read).wrong;
  if (!recorded.wrong.empty()) return recorded;
  auto document = nlohmann::ordered_json::parse(text);  // fields stay in their order
  nlohmann::ordered_json& rows = document["results"];
  for (nlohmann::ordered_json& row : rows) {
    const std::optional<json> anew = with_figures_anew(json(row));
    if (!anew) continue;
    const bool has_digest = row.contains(kDigest);  // of this text: claims_of has asked
    if (!has_digest && !rederive) {
      ++recorded.not_derived;
      continue;
    }
    ++recorded.derived;
    if (!has_digest) row[kRederived] = now_iso8601();
    for (const auto& [name, value] : anew->items())
      if (json(row[name]) != value) row[name] = value;
  }
  recorded.wrong = audit_results(json(document));
  if (!recorded.wrong.empty()) return recorded;
  std::atomic<std::size_t> changed{0};
  parallel_for(static_cast<std::int64_t>(rows.size()), 0,
               [&](std::int64_t i) { changed += record_provenance(rows[static_cast<std::size_t>(i)]); });
  recorded.rows = changed;
  for (nlohmann::ordered_json& row : rows) seal_again(row);
  seal_again(document);
  // As it was written: all on one line, a line for each row, or a line for each field.
  const auto lines = static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
  if (lines > 1 && lines < 2 * rows.size() + kLinesBesideRows)
    recorded.text = print_rows(nlohmann::json::parse(document.dump()));
  else recorded.text = document.dump(lines > 1 ? 2 : -1) + "\n";
  return recorded;
}

}  // namespace flashcore
