#include "lab/compare/peer_sessions.h"

#include <fmt/format.h>

#include <cmath>
#include <fstream>
#include <optional>
#include <set>

#include "core/hash.h"
#include "core/problem_row.h"
#include "lab/compare/peer_rows.h"
#include "lab/measure/floor.h"
#include "lab/record/digest.h"
#include "lab/record/outcome.h"
#include "lab/record/trial.h"

namespace flashcore {
namespace {

using nlohmann::json;

json member(const json& object, const char* key) { return object.is_object() ? object.value(key, json()) : json(); }

bool has_time(const json& row) { return member(row, "time_us").is_object(); }
bool is_incorrect(const json& row) { return member(row, "ended") == json(Ended::kIncorrect); }

json list_of(const json& row, const char* key) {
  json list = member(row, key);
  return list.is_array() ? list : json::array();
}

std::optional<double> seconds_of(const json& when) {
  if (!when.is_string()) return std::nullopt;
  return parse_iso8601(when.get<std::string>());
}

json began_at(const json& session) {
  const json began = member(session, "began_at");
  return began.is_null() ? member(session, "measured_at") : began;
}

// The same text, or equal launches of equal machine code (lab/record/freshness.h).
bool ran_the_same(const json& earlier, const json& row) {
  if (member(earlier, "source_hash") == member(row, "source_hash")) return true;
  const auto equal = [&](const char* key) {
    const json value = member(row, key);
    return value.is_string() && value != "" && value == member(earlier, key);
  };
  return equal("code_hash") && equal("launch_hash");
}

// "" if a timed session of `row` may be added to the timed ones of `earlier`.
std::string why_begins_anew(const json& earlier, const json& row) {
  if (!ran_the_same(earlier, row)) return "source_hash is another one, and so is the code or its launches";
  for (const char* key : {"problem", "family", "config", "chosen_by", "regime", "condition"})
    if (member(earlier, key) != member(row, key)) return fmt::format("{} is another one", key);
  const json before = member(earlier, "device"), now = member(row, "device");
  for (const char* key : {"key", "name", "driver"})
    if (member(before, key) != member(now, key)) return fmt::format("the device's {} is another one", key);
  if (!member(earlier, "measured").is_array()) return "it has no raw samples";
  return "";
}

const json* find_named(const json& peers, const json& name) {
  for (const json& peer : peers)
    if (member(peer, "name") == name) return &peer;
  return nullptr;
}

// The sessions of a row that is not published: kept for who looks for the reason, and no figure is made of them.
json unpublished_sessions(const json& row) {
  json sessions = list_of(row, "measured");
  if (sessions.empty()) sessions.push_back(json::object());
  for (json& session : sessions) {
    if (!session.contains("ended")) session["ended"] = member(row, "ended");
    if (!session.contains("message")) session["message"] = member(row, "message");
    if (session.contains("samples_us")) session["refused_samples_us"] = session["samples_us"];
    session.erase("samples_us");
  }
  return sessions;
}

void add_unpublished(json& kept, const json& row) {
  const json sessions = unpublished_sessions(row);
  json measured = list_of(kept, "measured");
  for (const json& session : sessions) measured.push_back(session);
  kept["measured"] = std::move(measured);
  if (!kept["peers"].is_array()) return;
  for (json& peer : kept["peers"])
    if (peer.contains("samples_us"))
      for (std::size_t s = 0; s < sessions.size(); ++s) peer["samples_us"].push_back(nullptr);
}

json withdrawn(json row, const json& wrong) {
  row["ended"] = Ended::kIncorrect;
  row["message"] = member(wrong, "message");
  row["time_us"] = nullptr;
  row["refused_peers"] = list_of(row, "peers");
  row["peers"] = json::array();
  return row;
}

json add_failed_session(const json& earlier, const json& row, std::string& said) {
  json kept = earlier;
  // Figures without samples, of an older file, do not get sessions.
  if (!has_time(earlier) || member(earlier, "measured").is_array()) add_unpublished(kept, row);
  if (is_incorrect(row)) {
    if (has_time(earlier)) said = "is withdrawn, with its earlier sessions: in this one its output was wrong";
    return withdrawn(std::move(kept), row);
  }
  if (has_time(earlier)) said = "keeps its earlier sessions: this one has no time";
  return kept;
}

// Peers of `row` and of `earlier`, with a list of samples for each session of both. `before`, `added`: how many.
json merged_peers(const json& earlier, const json& row, json& wrong, json& refused, std::size_t before,
                  std::size_t added) {
  json peers = json::array();
  const json old = list_of(earlier, "peers");
  const json recorded = member(earlier, "wrong_peers");
  for (const json& now : row.at("peers")) {
    const std::string name = now.at("name").get<std::string>();
    const json was_wrong = member(recorded, name.c_str());
    if (was_wrong.is_object() && member(was_wrong, "version") == member(now, "version")) {
      wrong[name] = was_wrong;
      refused[name] =
          fmt::format("its timed output was wrong in an earlier session: {}", member(was_wrong, "why").dump());
      continue;
    }
    const json* was = find_named(old, now.at("name"));
    const bool same = was && member(*was, "version") == member(now, "version") && was->contains("samples_us");
    json samples = json::array(), peer = now;
    for (std::size_t s = 0; s < before; ++s) samples.push_back(same ? was->at("samples_us").at(s) : json());
    for (const json& session : now.at("samples_us")) samples.push_back(session);
    peer["samples_us"] = std::move(samples);
    peers.push_back(std::move(peer));
  }
  for (const json& was : old) {
    const json& name = was.at("name");
    if (find_named(row.at("peers"), name) || wrong.contains(name.get<std::string>()) || !was.contains("samples_us"))
      continue;
    json kept = was;
    for (std::size_t s = 0; s < added; ++s) kept["samples_us"].push_back(nullptr);
    peers.push_back(std::move(kept));
  }
  // Who is not here today was wrong all the same.
  if (recorded.is_object())
    for (const auto& [name, what] : recorded.items())
      if (!wrong.contains(name) && !find_named(row.at("peers"), name)) wrong[name] = what;
  return peers;
}

// The floor is of the fastest that any of the sessions saw the machine do: a slow moment of the last one would make the
// time look closer to it than it is.
void keep_fastest_ceilings(const json& earlier, json& merged) {
  const json before = member(member(earlier, "device"), "ceilings");
  if (!before.is_object() || !member(member(merged, "device"), "ceilings").is_object() ||
      !member(merged["device"], "limits").is_object() || !merged.contains("floor_us"))
    return;
  json& now = merged["device"]["ceilings"];
  for (const auto& [name, value] : before.items()) {
    const double then = value.is_number() ? value.get<double>() : 0;
    if (then <= 0 || !member(now, name.c_str()).is_number()) continue;
    const double here = now[name].get<double>();
    const bool is_time = name.ends_with("_us");
    if (here <= 0 || (is_time ? then < here : then > here)) now[name] = then;
  }
  merged["floor_us"] = floor_us(problem_of(merged), merged["device"].get<DeviceInfo>(), now.get<Ceilings>());
}

}  // namespace

std::string read_boot_id() {
  std::ifstream in("/proc/sys/kernel/random/boot_id");
  std::string id;
  return std::getline(in, id) ? Hasher().add(id).hex().substr(0, 12) : "";
}

std::string why_same_session(const json& row, const json& session) {
  const std::optional<double> now = seconds_of(began_at(session));
  for (const json& other : list_of(row, "measured")) {
    if (!other.contains("samples_us")) continue;
    if (member(other, "run") == member(session, "run")) return "it is of the same run as another session";
    const std::optional<double> then = seconds_of(began_at(other));
    if (!now || !then) return "a session does not say when it began";
    const json here = member(session, "boot"), there = member(other, "boot");
    const bool elsewhere = here.is_string() && there.is_string() && here != there && here != "" && there != "";
    if (!elsewhere && std::abs(*now - *then) < kSessionsApartSeconds)
      return fmt::format(
          "it begins {:.0f} s after another session on the same machine, and two sessions are at least {:.0f} minutes "
          "apart",
          *now - *then, kSessionsApartSeconds / 60);
  }
  return "";
}

std::vector<SilentAbsence> silent_absences(const json& rows) {
  std::set<std::string> names;
  for (const json& row : rows)
    for (const json& peer : list_of(row, "peers"))
      if (member(peer, "name").is_string()) names.insert(peer["name"].get<std::string>());
  std::vector<SilentAbsence> absences;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (!has_time(rows[i])) continue;
    const json peers = list_of(rows[i], "peers"), refused = member(rows[i], "refused");
    for (const std::string& name : names)
      if (!find_named(peers, name) && member(refused, name.c_str()).is_null()) absences.push_back({i, name});
  }
  return absences;
}

void note_silent_absences(json& rows) {
  for (const auto& [row, peer] : silent_absences(rows)) {
    if (!rows[row]["refused"].is_object()) rows[row]["refused"] = json::object();
    rows[row]["refused"][peer] = "it was not asked in any session of this row";
  }
}

json append_session(const json& earlier, const json& row, double margin, std::string& said) {
  said.clear();
  const json hash = member(row, "source_hash");
  // Who crashed before its candidate was known has none.
  const bool same_source = hash == "" || hash.is_null() || ran_the_same(earlier, row);
  if (!has_time(row)) {
    if (same_source) return add_failed_session(earlier, row, said);
    if (!has_time(earlier)) return row;
    said = "keeps its earlier sessions: this one has no time, and is of another source";
    return earlier;
  }
  if (same_source && is_incorrect(earlier)) {
    said =
        "stays withdrawn: the same source gave a wrong output in an earlier session. Mend it, or measure anew without "
        "--append";
    json kept = earlier;
    add_unpublished(kept, row);
    return kept;
  }
  if (has_time(earlier)) {
    if (const std::string why = why_begins_anew(earlier, row); !why.empty()) {
      said = "begins anew, without its earlier sessions: " + why;
      return row;
    }
    for (const json& session : row.at("measured"))
      if (const std::string why = why_same_session(earlier, session); !why.empty()) {
        said = "is left as it was, without this session: " + why;
        return earlier;
      }
  } else if (!same_source) {
    return row;
  }
  json merged = row;  // what is no sample is of the latest session
  if (has_time(earlier)) keep_fastest_ceilings(earlier, merged);
  merged["measured"] = has_time(earlier) ? earlier.at("measured") : unpublished_sessions(earlier);
  const std::size_t before = merged["measured"].size(), added = row.at("measured").size();
  for (const json& session : row.at("measured")) merged["measured"].push_back(session);
  json wrong = member(row, "wrong_peers"), refused = member(row, "refused");
  if (!wrong.is_object()) wrong = json::object();
  if (!refused.is_object()) refused = json::object();
  merged["peers"] = merged_peers(earlier, row, wrong, refused, before, added);
  // Why a party is missing stands until it is timed, also when nobody asked for it this time.
  if (const json was = member(earlier, "refused"); was.is_object())
    for (const auto& [name, why] : was.items())
      if (!refused.contains(name) && !find_named(merged["peers"], name)) refused[name] = why;
  merged["refused"] = std::move(refused);
  if (!wrong.empty()) merged["wrong_peers"] = std::move(wrong);
  derive_figures(merged, margin);
  return merged;
}

void seal_appended(json& appended, const json& earlier, const json& row) {
  if (appended == earlier) return;
  const std::size_t kept = list_of(appended, "measured").size() - list_of(row, "measured").size();
  if (kept > 0) {
    const json counted = member(earlier, kSessionsBeforeDigests);
    if (!earlier.contains(kDigest)) appended[kSessionsBeforeDigests] = kept;
    else if (!counted.is_null()) appended[kSessionsBeforeDigests] = counted;
    if (const json when = member(earlier, kRederived); !when.is_null()) appended[kRederived] = when;
  }
  seal(appended);
}

}  // namespace flashcore
