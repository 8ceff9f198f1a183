#pragma once
// What a row of a results file says, read without trust: a member that is missing or of another type reads as nothing.

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace flashcore {

// Clocks of two machines may be so far apart.
inline constexpr double kClockSkewSeconds = 600;

nlohmann::json part(const nlohmann::json& object, const char* key);
std::string text_in(const nlohmann::json& object, const char* key);            // "" where there is none
std::optional<double> time_in(const nlohmann::json& object, const char* key);  // seconds since 1970
std::optional<double> time_of_run(const nlohmann::json& session);              // that its "run" names
std::optional<double> began_at_of(const nlohmann::json& session);              // older files: when its run began
std::string name_of_row(const nlohmann::json& row);                            // the suite's word, or its id
bool is_timed(const nlohmann::json& row);
// Of a row, a session or a timing: why its "condition" is none that times are compared under. Empty: it is one, or none
// is named.
std::string why_unknown_condition(const nlohmann::json& object);

}  // namespace flashcore
