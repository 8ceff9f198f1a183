#include "target.h"

#include <cstdio>
#include <cstdlib>

#include "core/error.h"
#include "core/files.h"
#include "core/foreign_text.h"
#include "core/scratch_folder.h"

namespace flashcore::fuzz {

namespace {

constexpr std::size_t kMaxMessage = 4000;

// Whole, short and harmless: a NUL would end it, an escape sequence would reach the terminal.
void judge_message(const std::string& message) {
  if (message.empty()) found("an error without a message");
  if (message.size() > kMaxMessage) found("a message of " + std::to_string(message.size()) + " bytes");
  if (const std::size_t at = find_bad_character(message); at != std::string::npos)
    found("a message with a control character or bytes that are no UTF-8: " + excerpt(message, kMaxMessage));
}

}  // namespace

std::map<std::string, Parser>& targets() {
  static std::map<std::string, Parser> all;
  return all;
}

const std::filesystem::path& patch_folders() {
  static const ScratchFolder folder;
  static const bool made = [] {
    const auto put = [](const char* name, std::string_view text) {
      const auto file = folder.path() / name;
      std::filesystem::create_directories(file.parent_path());
      write_file_atomically(file, text);
    };
    put("whole/kernel.cuh", "namespace flashcore::sm80_fwd {\nint x;\n}\n");
    put("extend/patch.yaml", "extend: {num_stages: [1, 2]}\n");
    put("replace/patch.yaml", "replace: [{file: sm80_fwd/kernel.cuh, from: int x;, to: int y;}]\n");
    std::filesystem::create_directories(folder.path() / "empty");
    return true;
  }();
  (void)made;
  return folder.path();
}

void found(const std::string& what) {
  std::fprintf(stderr, "fuzz: %s\n", what.c_str());
  std::abort();
}

void run(const Parser& parser, std::string_view input) {
  try {
    parser(input);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kBadInput) found(std::string("not the input's fault? ") + error.what());
    judge_message(error.what());
  } catch (const std::exception& error) {
    found(std::string("it threw what the command line would call a fault of flashcore: ") + error.what());
  }
}

}  // namespace flashcore::fuzz
