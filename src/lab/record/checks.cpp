#include "lab/record/checks.h"

#include <array>

namespace flashcore {
namespace {

std::array<int, std::size(WordsOf<Check>::table)> off_count{};

}  // namespace

const std::vector<Check>& all_checks() {
  static const std::vector<Check> checks = [] {
    std::vector<Check> all;
    for (const auto& [check, name] : WordsOf<Check>::table) all.push_back(check);
    return all;
  }();
  return checks;
}

bool is_on(Check check) { return off_count[static_cast<std::size_t>(check)] == 0; }

CheckOff::CheckOff(Check check) : check_(check) { ++off_count[static_cast<std::size_t>(check_)]; }
CheckOff::~CheckOff() { --off_count[static_cast<std::size_t>(check_)]; }

}  // namespace flashcore
