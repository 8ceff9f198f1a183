#include "core/near_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace flashcore {
namespace {

constexpr std::size_t kShown = 3;
constexpr std::size_t kLongestWord = 100;  // what is longer is no name that somebody mistyped

// Levenshtein's distance.
std::size_t edits_between(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

}  // namespace

std::vector<std::string> near_names(std::string_view word, const std::vector<std::string>& names) {
  std::vector<std::pair<std::size_t, std::string>> near;
  if (word.size() > kLongestWord) return {};
  for (const std::string& name : names) {
    const std::size_t edits = edits_between(word, name);
    if (edits * 5 <= 2 * std::max(word.size(), name.size())) near.emplace_back(edits, name);
  }
  std::stable_sort(near.begin(), near.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  if (near.size() > kShown) near.resize(kShown);
  std::vector<std::string> found;
  for (auto& [edits, name] : near) found.push_back(std::move(name));
  return found;
}

std::string did_you_mean(std::string_view word, const std::vector<std::string>& names) {
  std::string all;
  for (const std::string& name : near_names(word, names)) all += (all.empty() ? "'" : " or '") + name + "'";
  return all.empty() ? "" : fmt::format("; did you mean {}?", all);
}

}  // namespace flashcore
