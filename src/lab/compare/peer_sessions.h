#pragma once
// How the sessions of a results file come together: `flashcore peers --append`. What goes wrong in a session stays in
// the file, and what is wrong withdraws what earlier sessions said.

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace flashcore {

// Sessions of one process, or minutes apart on one machine, see the same clock and the same placement of memory: they
// count as one.
inline constexpr double kSessionsApartSeconds = 600;

// Names the machine since its last start; "" where the system does not say.
std::string read_boot_id();

// "" if `session` ("run", "began_at", "boot") is another one than each timed session of `row`; else why it is not.
std::string why_same_session(const nlohmann::json& row, const nlohmann::json& session);

// What a file that holds `earlier` has to hold after `row` was measured on the same problem. `said`: what to tell of
// it; empty if `row` simply is a further session. Of one source_hash:
// - a wrong output of ours withdraws the row for good; any other failed session is kept in "measured", without figures;
// - a peer whose output was wrong loses the sessions that its version has, before and after;
// - a session too close to another one is not added;
// - of the ceilings the fastest of all sessions are kept, and the floor is theirs.
// A row of another source, candidate, way of choosing it, device, driver, regime or condition begins anew.
nlohmann::json append_session(const nlohmann::json& earlier, const nlohmann::json& row, double margin,
                              std::string& said);

// Writes the digest (lab/record/digest.h) of what append_session made of `earlier` and `row`, unless that is `earlier`
// as it was. Sessions of a row without a digest are counted, for nobody knows whether they were edited.
void seal_appended(nlohmann::json& appended, const nlohmann::json& earlier, const nlohmann::json& row);

// A peer that other rows of a file have, and a row with a time neither has nor says in "refused" why: who leaves out
// the peer that wins makes a better mean.
struct SilentAbsence {
  std::size_t row;
  std::string peer;
};
std::vector<SilentAbsence> silent_absences(const nlohmann::json& rows);
// Says of each that it was not asked, which is what is known.
void note_silent_absences(nlohmann::json& rows);

}  // namespace flashcore
