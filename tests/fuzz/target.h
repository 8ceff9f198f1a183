#pragma once
// A fuzz target: a parser that is given any bytes at all. It answers with a value or with Error kBadInput, whose
// message a user can read; everything else is a finding.

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>

namespace flashcore::fuzz {

using Parser = std::function<void(std::string_view)>;
std::map<std::string, Parser>& targets();

struct Target {
  Target(const char* name, Parser parser) { targets()[name] = std::move(parser); }
};

// A folder of patches, gone at the end: whole/kernel.cuh, extend/patch.yaml, replace/patch.yaml and an empty one.
const std::filesystem::path& patch_folders();

// Reports a finding and aborts.
[[noreturn]] void found(const std::string& what);
// Runs the parser on one input, and judges what it throws.
void run(const Parser& parser, std::string_view input);

#define FLASHCORE_REQUIRE(condition) \
  if (!(condition)) ::flashcore::fuzz::found("broken: " #condition)

}  // namespace flashcore::fuzz
