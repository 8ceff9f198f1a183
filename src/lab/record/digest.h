#pragma once
// Digests of results files: whether the text of a row, or of a file, is what the program wrote. A digest is no
// signature: whoever edits a row can compute its digest anew, or take it out.

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace flashcore {

inline constexpr const char* kDigest = "digest";
// How many of a row's first sessions were measured before digests: what `flashcore peers --append` found without one.
inline constexpr const char* kSessionsBeforeDigests = "sessions_before_digests";
// When a row without a digest was given the figures of its samples anew (`flashcore verify --record --rederive`): who
// had edited the samples before has the edit in the figures since.
inline constexpr const char* kRederived = "rederived_without_digest";

// SHA-256 of all members but "digest", as 64 hex digits: of what they say, not of blanks or of the order of names.
std::string digest_of(const nlohmann::json& object);
// Writes "digest".
void seal(nlohmann::json& object);
// A results file: each of its rows that has a digest or that `all_rows` names, then the file with them.
void seal_results(nlohmann::json& document, bool all_rows);

// Of a results file: a sentence for each row, and for the file, whose digest is of another text.
std::vector<std::string> find_edited(const nlohmann::json& document);

enum class Seal { kNone, kIntact, kBroken };
Seal seal_of(const nlohmann::json& object);

}  // namespace flashcore
