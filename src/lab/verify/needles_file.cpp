// Files of `flashcore check --needles --json`.

#include <algorithm>
#include <map>
#include <set>

#include "core/error.h"
#include "kernels/source_hash.h"
#include "lab/record/json_io.h"
#include "lab/verify/judged_file.h"
#include "lab/verify/needles.h"
#include "lab/verify/row_facts.h"

namespace flashcore {
namespace {

using nlohmann::json;

constexpr std::int64_t kNeedlesOfRun = kNeedleQueryRows - kPlainRows;

class NeedlesAudit {
 public:
  NeedlesAudit(JudgedFile& file, const json& document) : file_(file), document_(document) {
    if (document.at("allowed_loss").get<double>() != kNeedleLoss)
      file_.complain("it allows a loss of {}, and the gate one of {}", document.at("allowed_loss").dump(), kNeedleLoss);
  }

  void run(std::size_t index, const json& row) {
    const auto keys = row.at("seqlen_kv").get<std::int64_t>(), head_dim = row.at("head_dim").get<std::int64_t>();
    problem_ = {needle_problem(keys, head_dim, DType::kE4M3), Layout::kBhsd};
    name_ = fmt::format("{} keys of head dim {}", keys, head_dim);
    if (text_in(row, "problem") != problem_.id())
      file_.complain("{}: its problem is {}, and not {}", name_, text_in(row, "problem"), problem_.id());
    const std::string failure = text_in(row, "failure"), lacking = text_in(row, "lacking");
    if (!lacking.empty()) file_.incomplete(fmt::format("{}: the machine lacked something: {}", name_, lacking));
    if (!failure.empty()) file_.did_not_pass();
    const json& candidates = row.at("candidates");
    if (text_in(row, "why_none").empty() && failure.empty() && lacking.empty() && candidates.empty())
      file_.complain("{}: it has no candidate, and no reason for that", name_);
    if (!row.at("bf16").is_object()) return;
    needles_ = row.at("needles").get<int>();
    if (needles_ != kNeedlesOfRun) file_.complain("{}: {} needles, and a run has {}", name_, needles_, kNeedlesOfRun);
    bf16_found_ = count(row.at("bf16").at("needles"), "bf16");
    std::set<std::string> seen;
    for (const json& candidate : candidates) {
      const std::string text = text_in(candidate, "candidate");
      if (!seen.insert(text).second) file_.complain("{}: {} is in it twice", name_, text);
      result(index, text, candidate);
    }
    if (is_of_these_sources()) compare_candidates(candidates, seen);
  }

  std::size_t results = 0, lost = 0;  // lost: that gate the file
  bool has_own_hashes = true;         // each result those of its candidate

 private:
  JudgedFile& file_;
  const json& document_;
  PlacedProblem problem_;
  std::string name_;
  int needles_ = 0, bf16_found_ = 0;

  bool is_of_these_sources() const { return text_in(document_, "source_hash") == source_hash(); }

  // How many were found, which both of its tables come to.
  int count(const json& counts, const std::string& of) {
    const int found = counts.at("found").get<int>();
    int by_weight = 0, by_place = 0;
    for (const json& weight : counts.at("by_weight")) by_weight += weight.at("found").get<int>();
    for (const auto& [place, each] : counts.at("by_place").items()) by_place += each.get<int>();
    if (by_weight != found || by_place != found)
      file_.complain("{}: {} found {}, {} by weight and {} by place", name_, of, found, by_weight, by_place);
    return found;
  }

  void result(std::size_t index, const std::string& text, const json& row) {
    ++results;
    // Older files have one hash for all.
    if (row.contains(kCandidateHash))
      file_.judge_source(index, name_ + " by " + text.substr(0, text.find(':')), with_device(row), text, problem_.id());
    else has_own_hashes = false;
    const bool is_gated = row.at("gated").get<bool>();
    const std::string told = text_in(row, "verdict"), failure = text_in(row, "failure");
    if (!failure.empty()) {
      lost += is_gated;
      file_.did_not_pass();
      if (told != failure.substr(0, failure.find('\n')))
        file_.complain("{}: {} failed, and its verdict is '{}'", name_, text, told);
      return;
    }
    NeedleVerdict v;
    v.lost = bf16_found_ - count(row.at("needles"), text);
    v.finds = v.lost <= kNeedleLoss * needles_;
    const json drift = decode_nonfinite(row.at("drift")), limit = decode_nonfinite(row.at("limit"));
    drift.at("o_rms").get_to(v.drift.o_rms), drift.at("lse_max").get_to(v.drift.lse_max);
    limit.at("o_rms").get_to(v.limit.o_rms), limit.at("lse_max").get_to(v.limit.lse_max);
    v.stays = v.drift.o_rms <= v.limit.o_rms && v.drift.lse_max <= v.limit.lse_max;
    if (row.at("lost").get<int>() != v.lost || row.at("finds").get<bool>() != v.finds)
      file_.complain("{}: {} loses {} by its counts, and says {}", name_, text, v.lost, row.at("lost").dump());
    if (row.at("stays").get<bool>() != v.stays)
      file_.complain("{}: {} {} its limit, and says otherwise", name_, text,
                     v.stays ? "stays within" : "drifts beyond");
    if (told != v.words())
      file_.complain("{}: the verdict of {} is '{}', and its figures give '{}'", name_, text, told, v.words());
    if (is_gated && !v.passed()) ++lost, file_.did_not_pass();
  }

  // A row says of itself what it is of, and the file on what device.
  json with_device(json row) const {
    row["device"] = document_.at("device");
    return row;
  }

  // Those that the present source has, of what was asked for.
  void compare_candidates(const json& rows, const std::set<std::string>& seen) {
    if (!document_.contains("pinned")) return;
    std::string why_none;
    const auto device = document_.at("device").get<DeviceInfo>();
    for (const NeedleCandidate& each :
         needle_candidates(document_.at("pinned").get<std::string>(), problem_, device, why_none)) {
      const std::string text = each.candidate.print();
      if (!seen.contains(text)) file_.complain("{}: {} is not in it", name_, text);
      for (const json& row : rows)
        if (text_in(row, "candidate") == text && row.at("gated").get<bool>() != each.gated)
          file_.complain("{}: {} is {}, and the file says otherwise", name_, text,
                         each.gated ? "gated" : "asked for by name only");
    }
  }
};

// Each length of keys is of each head dim: what was run is a whole grid.
void expect_grid(JudgedFile& file) {
  std::set<std::int64_t> lengths;
  std::map<std::int64_t, std::set<std::int64_t>> by_head_dim;
  for (const json& row : file.rows()) {
    const auto keys = row.at("seqlen_kv").get<std::int64_t>();
    lengths.insert(keys);
    if (!by_head_dim[row.at("head_dim").get<std::int64_t>()].insert(keys).second)
      file.complain("{} is in it twice", text_in(row, "problem"));
  }
  if (file.document().value("interrupted", false)) return;
  for (const auto& [head_dim, keys] : by_head_dim)
    if (keys != lengths)
      file.complain("head dim {} has {} of the {} lengths that others have", head_dim, keys.size(), lengths.size());
}

}  // namespace

Verification verify_needles_file(const json& document) {
  JudgedFile file(document);
  NeedlesAudit audit(file, document);
  for (std::size_t i = 0; i < file.rows().size(); ++i) audit.run(i, file.rows()[i]);
  if (!audit.has_own_hashes) file.judge_all_sources(text_in(document, "source_hash"));
  expect_grid(file);
  for (const char* key : {"head_dims", "seqlens_kv"}) {
    const char* of_row = key == std::string_view("head_dims") ? "head_dim" : "seqlen_kv";
    for (const json& asked : document.value(key, json::array()))
      if (std::none_of(file.rows().begin(), file.rows().end(), [&](const json& r) { return r.at(of_row) == asked; }))
        file.incomplete(fmt::format("it was asked for a {} of {}, and has no row of it", of_row, asked.dump()));
  }
  return file.finish(
      audit.results,
      fmt::format("{} candidates in {} runs are judged by what they found{}", audit.results, file.rows().size(),
                  audit.lost == 0 ? "" : fmt::format("; {} failed the gate", audit.lost)));
}

}  // namespace flashcore
