#include "cli/mcp_child.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <regex>

#include "cli/common.h"
#include "core/error.h"
#include "core/files.h"
#include "core/guarded_process.h"
#include "core/json_text.h"
#include "core/process_end.h"
#include "core/scratch_folder.h"
#include "core/visible_text.h"

namespace flashcore::cli::mcp {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kMaxText = 16 << 10, kMaxResult = 256 << 10;
constexpr std::uintmax_t kMaxJsonFile = std::uintmax_t{64} << 20;
constexpr std::chrono::milliseconds kPollInterval{50};

// A descriptor that closes itself.
class Opened {
 public:
  Opened(const fs::path& path, int flags) : fd_(open(path.c_str(), flags | O_CLOEXEC, 0600)) {
    if (fd_ < 0) throw_environment("{} cannot be opened: {}", path.string(), std::strerror(errno));
  }
  ~Opened() { close(fd_); }
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;
  int fd() const { return fd_; }

 private:
  int fd_;
};

std::string head_of(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  std::string text(kMaxText, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(in.gcount()));
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

// Hundreds of samples are of no use to an agent.
void drop_samples(json& value) {
  if (value.is_object()) {
    value.erase("samples");
    value.erase("log_ratios");
  }
  if (value.is_structured())
    for (json& item : value) drop_samples(item);
}

json result_in(const fs::path& file) {
  std::error_code missing;
  const std::uintmax_t size = fs::file_size(file, missing);
  if (missing) return nullptr;
  if (size > kMaxJsonFile)
    return {{"left_out", fmt::format("the result has {} bytes, and more than {} are not read; ask for one problem",
                                     size, kMaxJsonFile)}};
  json result = parse_json(read_file(file), file.filename().string());
  drop_samples(result);
  if (result.dump(-1, ' ', false, json::error_handler_t::replace).size() <= kMaxResult) return result;
  return {{"left_out", fmt::format("the result has more than {} bytes; ask for one problem", kMaxResult)},
          {"schema", result.value("schema", json())}};
}

}  // namespace

std::string in_arguments(std::string text) {
  static const std::regex reference(R"( \(`flashcore problem --reference` prints it\))");
  static const std::regex flag(R"(--(problem|suite|family|config|device|arch|key|patterns|seed|compile-only)\b)");
  text = std::regex_replace(text, reference, "");
  text = std::regex_replace(text, flag, "$1");
  for (std::size_t at = text.find("compile-only"); at != std::string::npos; at = text.find("compile-only", at))
    text[at + 7] = '_';
  return text;
}

namespace {

std::string verdict_of_code(int code) { return code == kDone ? "passed" : code == kFailed ? "failed" : "not_judged"; }

}  // namespace

ToolAnswer run_verb(const std::vector<std::string>& arguments, double timeout_seconds, const CallControl& control) {
  const ScratchFolder folder;
  const fs::path out = folder.path() / "out", err = folder.path() / "err", result = folder.path() / "result.json";
  std::vector<std::string> words = {"flashcore", arguments.at(0), "--json", result.string(), "--quiet"};
  words.insert(words.end(), arguments.begin() + 1, arguments.end());
  std::vector<const char*> argv;
  for (const std::string& word : words) argv.push_back(word.c_str());
  argv.push_back(nullptr);
  const auto begin = Clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
  std::string stopped;
  int code = 0;
  std::string how;
  {
    const Opened null("/dev/null", O_RDWR), to_out(out, O_WRONLY | O_CREAT), to_err(err, O_WRONLY | O_CREAT);
    GuardedProcess child(GuardedProcess::Body::kBecomesProgram,
                         [&] { exec_program("/proc/self/exe", argv.data(), null.fd(), to_out.fd(), to_err.fd()); });
    while (!child.wait(Clock::now() + kPollInterval)) {
      if (control.cancelled()) stopped = "cancelled";
      else if (seconds() > timeout_seconds)
        stopped = fmt::format("still running after {:.0f} s and was ended; ask for less, or give timeout_seconds",
                              timeout_seconds);
      if (!stopped.empty()) break;
      control.waiting(seconds());
    }
    child.end();
    how = child.how_it_ended();
    code = exit_code_of(child.status());
  }
  const std::string command = arguments.front();
  if (!stopped.empty()) return {true, fmt::format("flashcore {}: {}", command, stopped), json::object()};
  const std::string errors = in_arguments(visible_lines(head_of(err)));
  if (code > kNotJudged || code < 0) {
    ToolAnswer failed{true, errors.empty() ? fmt::format("flashcore {} {}", command, how) : errors, {}};
    failed.structured = {{"exit_code", code}};
    // What it judged before the machine failed it.
    if (json found = result_in(result); !found.is_null()) failed.structured["result"] = std::move(found);
    return failed;
  }
  ToolAnswer answer;
  answer.text = in_arguments(visible_lines(head_of(out)));
  if (!errors.empty()) answer.text += (answer.text.empty() ? "" : "\n") + errors;
  answer.structured = {
      {"verdict", verdict_of_code(code)}, {"exit_code", code}, {"seconds", seconds()}, {"result", result_in(result)}};
  return answer;
}

}  // namespace flashcore::cli::mcp
