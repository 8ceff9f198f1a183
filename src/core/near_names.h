#pragma once
// "did you mean": of the names that there are, those nearest to what was typed.

#include <string>
#include <string_view>
#include <vector>

namespace flashcore {

// Up to three, the nearest first: at most two letters of five typed wrong, left out or too many.
std::vector<std::string> near_names(std::string_view word, const std::vector<std::string>& names);
// "; did you mean 'mission' or 'medium'?", or nothing.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& names);

}  // namespace flashcore
