#pragma once
// What Nsight Compute has printed, its CSV and its errors: the one reader of profiles and of cross-checks.

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace flashcore {

// What a launch in Nsight Compute's CSV was.
struct ProfiledKernel {
  std::string name;
  std::map<std::string, double> counters = {};         // by metric; those without a number (n/a) are missing
  std::map<std::string, std::string> unreadable = {};  // what else stands in place of one; some metrics are words
};

// The text of `ncu --csv --page raw`, with whatever its child and itself print around it: a row of names that begins
// with "ID", a row of units, a row per launch. Times come in ns and clocks in Hz, whatever the unit. Error kBadInput,
// naming the line, if there is no such table, if a row has another number of fields, or if it is cut short.
std::vector<ProfiledKernel> parse_ncu_csv(std::string_view text);

// Whether a kernel's name in the CSV ("forward", "void flashcore::sm80_fwd::forward<...>(...)") may be that of a name
// expression ("flashcore::sm80_fwd::forward<...>").
bool is_kernel_of(std::string_view csv_name, std::string_view name_expression);

// Whether the text has the row of names that a table begins with.
bool has_ncu_table(std::string_view text);

// Its lines with ==ERROR==, fit to be quoted.
std::vector<std::string> ncu_errors(std::string_view text);

// Where the driver refuses counters (ERR_NVGPUCTRPERM): a sentence that says so, and what an administrator does. Else
// empty.
std::string why_counters_are_refused(std::string_view text);

}  // namespace flashcore
