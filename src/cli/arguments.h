#pragma once
// What a user can hand in that the command line's library would take, and mean something else by.

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/suite.h"

namespace flashcore::cli {

// For integer options. The library reads 010 as eight, 0x10 as sixteen, -1 as 2^64-1 and 99999999999999999999 as the
// largest number there is.
CLI::Validator whole_between(std::uint64_t lowest, std::uint64_t highest);
CLI::Validator seed_number();  // any of 64 bits
// A shell's variable that is not set must not mean the default.
CLI::Validator not_empty();
// For real ones: CLI::Range lets NaN through.
CLI::Validator number_between(double lowest, double highest);
// "90s", "25m", "1h": seconds, above 0 and up to 1e9. None for anything else.
std::optional<double> parse_duration(std::string_view text);
CLI::Validator decimal_number();  // finite; whoever takes it says what range it has

struct NamedFile {
  std::string flag, file;  // "--out", "o.npy"; an empty file is a flag that was not given, "-" is stdout
};
// Error kBadInput if two files to be written are one, or one of them is a file that is read: by name, through links and
// through hard links.
void require_distinct(const std::vector<NamedFile>& written, const std::vector<NamedFile>& read);
// The verdicts that a ledger's folder holds; none if it is not there.
std::vector<NamedFile> ledger_files(const std::string& folder);
// Of a --ledger that was given: error kBadInput if there is no such folder. The default may be absent.
void require_ledger(const std::string& folder);
// Of --python: error kBadInput for a path at which nothing can be run. Without a name on PATH what needs it could not
// judge, and says so.
void require_python(const std::string& python);

// Error kBadInput for the first of these that was given: it would change nothing, for the reason `why`.
void refuse_flags(const CLI::App& app, const std::vector<std::string>& flags, std::string_view why);

// Error kBadInput if no problem of the suite has a query row: what computes nothing has no time.
void require_something_to_time(const Suite& suite);

// First thing in main(). Without stdin, stdout or stderr (`>&-`) the next file to be opened would take its number, and
// what is printed would go into that file. Writing to a closed stdout still fails.
void occupy_standard_streams();
// Last thing in main(): `code`, or kNoEnvironment and a message if what was printed did not all arrive.
int code_after_flush(int code);

}  // namespace flashcore::cli
