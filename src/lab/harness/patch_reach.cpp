#include "lab/harness/patch_reach.h"

#include <algorithm>
#include <set>

#include "kernels/embedded.h"
#include "lab/harness/device_code_tokens.h"

namespace flashcore {
namespace {

std::size_t count_asm(const std::string& text) {
  try {
    const std::vector<Token> tokens = tokens_of(text);
    return static_cast<std::size_t>(std::count_if(tokens.begin(), tokens.end(), [](const Token& t) {
      return t.kind == Token::kWord && (t.text == "asm" || t.text == "__asm__");
    }));
  } catch (const UnclearSource&) {
    return 0;
  }
}

}  // namespace

PatchReach reach_of(const Patch& patch) {
  std::set<std::string> touched;
  for (const auto& [path, text] : patch.files) touched.insert(path);
  for (const Patch::Replacement& r : patch.replace) touched.insert(r.file);
  PatchReach reach;
  for (const std::string& path : touched) {
    if (path.starts_with(patch.family + "/")) continue;
    reach.outside.push_back(
        fmt::format("{} lies outside of {}/: only {} is built with the change, every other kernel keeps the original",
                    path, patch.family, patch.family_name()));
    if (path.starts_with("ptx/"))
      reach.not_emulated = fmt::format("it changes {}, in whose place the emulator has its own", path);
  }
  const auto adds_asm = [&](const std::string& path, const std::string& text) {
    const auto original = device_sources().find(path);
    return !path.starts_with("ptx/") &&
           count_asm(text) > (original == device_sources().end() ? 0 : count_asm(original->second));
  };
  for (const auto& [path, text] : patch.files)
    if (adds_asm(path, text)) reach.not_emulated = fmt::format("{} has inline assembly", path);
  for (const Patch::Replacement& r : patch.replace)
    if (count_asm(r.to) > count_asm(r.from)) reach.not_emulated = fmt::format("{} has inline assembly", r.file);
  return reach;
}

}  // namespace flashcore
