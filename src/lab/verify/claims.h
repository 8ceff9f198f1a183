#pragma once
// What a results file says besides figures: which problem of which suite a row is of, when, under what condition and on
// which source it was measured, and that its text is what the program wrote.

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace flashcore {

struct Claims {
  std::vector<std::string> wrong;    // one sentence for each claim that another contradicts
  std::vector<std::string> remarks;  // what nobody can check, and what a reader of the file should know
  // Of a file of one suite that ships: its name, how many problems it has, and the names of those without a row.
  std::string suite;
  std::size_t suite_problems = 0;
  std::vector<std::string> unmeasured;
};

// Of a flashcore.bench/1 document. `now`: seconds since 1970; what was measured later than that is wrong.
Claims audit_claims(const nlohmann::json& document, double now);

// The commits that the rows name, by the git repository that `file` is in: one of a later date than its session is
// wrong. One that is not there is a remark: a branch may have been rebased since, and a clone may be shallow.
Claims audit_commits(const nlohmann::json& document, const std::filesystem::path& file);

}  // namespace flashcore
