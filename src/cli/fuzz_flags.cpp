#include "cli/fuzz_flags.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "cli/arguments.h"
#include "core/error.h"

namespace flashcore::cli {

std::vector<FuzzKind> FuzzFlags::known_kinds() const {
  if (cases == 0 && !kinds.empty()) throw_bad_input("--kinds belongs to --fuzz: add it, or leave it out");
  std::vector<FuzzKind> known;
  for (const std::string& name : kinds)
    if (const auto kind = parse_word<FuzzKind>(name); std::ranges::count(known, kind) == 0) known.push_back(kind);
  return known;
}

void add_fuzz_flags(CLI::App& app, FuzzFlags& flags, const char* help) {
  std::vector<std::string_view> words;
  for (const auto& [kind, word] : WordsOf<FuzzKind>::table) words.push_back(word);
  app.add_option("--fuzz", flags.cases, help)->type_name("N")->check(whole_between(1, kMostFuzzCases));
  app.add_option(
         "--kinds", flags.kinds,
         fmt::format("with --fuzz: problems of one of these at least (default: any): {}", fmt::join(words, ", ")))
      ->delimiter(',')
      ->allow_extra_args(false)  // "--kinds paged scored" is a slip
      ->type_name("NAME,...");
}

}  // namespace flashcore::cli
