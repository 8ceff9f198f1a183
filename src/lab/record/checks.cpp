#include "lab/record/checks.h"

#include <array>

namespace flashcore {
namespace {

static_assert(is_in_order_of_values<Check>());
std::array<int, enum_values<Check>().size()> off_count{};

// A check that the table lacks is an exception here, and no memory of something else.
int& times_off(Check check) { return off_count.at(static_cast<std::size_t>(check)); }

}  // namespace

const std::vector<Check>& all_checks() {
  constexpr auto values = enum_values<Check>();
  static const std::vector<Check> checks(values.begin(), values.end());
  return checks;
}

bool is_on(Check check) { return times_off(check) == 0; }

CheckOff::CheckOff(Check check) : check_(check) { ++times_off(check_); }
CheckOff::~CheckOff() { --times_off(check_); }

}  // namespace flashcore
