#include "cli/arguments.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <limits>

#include "cli/common.h"
#include "core/error.h"
#include "core/foreign_text.h"

namespace flashcore::cli {

namespace {

namespace fs = std::filesystem;

// The file that "weights.safetensors:q" is a tensor of.
fs::path path_of(const std::string& file) {
  const std::string marker = ".safetensors:";
  const std::size_t at = file.find(marker);
  return at == std::string::npos ? file : file.substr(0, at + marker.size() - 1);
}

// Where writing to the path would go, also through a link to a file that is not there yet.
fs::path destination(fs::path path) {
  std::error_code error;
  constexpr int kMaxLinks = 40;  // as Linux
  for (int i = 0; i < kMaxLinks && fs::is_symlink(path, error); ++i)
    path = path.parent_path() / fs::read_symlink(path, error);
  const fs::path resolved = fs::weakly_canonical(fs::absolute(path, error), error);
  return error ? path : resolved;
}

bool is_same_file(const fs::path& a, const fs::path& b) {
  std::error_code error;
  return fs::equivalent(a, b, error) || destination(a) == destination(b);
}

}  // namespace

CLI::Validator whole_between(std::uint64_t lowest, std::uint64_t highest) {
  return CLI::Validator(
      [lowest, highest](std::string& text) {
        const auto value = parse_unsigned(text);
        if (value && *value >= lowest && *value <= highest) return std::string();
        return fmt::format("'{}' is not a whole decimal number from {} to {} (without sign or zeros in front)",
                           excerpt(text), lowest, highest);
      },
      fmt::format("INT in [{} - {}]", lowest, highest));
}

CLI::Validator seed_number() { return whole_between(0, std::numeric_limits<std::uint64_t>::max()).description(""); }

CLI::Validator not_empty() {
  return CLI::Validator(
      [](std::string& text) {
        return std::string(text.empty() ? "it is empty: give a name, or leave the flag out" : "");
      },
      "");
}

CLI::Validator number_between(double lowest, double highest) {
  return CLI::Validator(
      [lowest, highest](std::string& text) {
        const auto value = parse_finite(text);
        if (value && *value >= lowest && *value <= highest) return std::string();
        return fmt::format("'{}' is not a number from {} to {} (without '+' or zeros in front)", excerpt(text), lowest,
                           highest);
      },
      fmt::format("FLOAT in [{} - {}]", lowest, highest));
}

std::optional<double> parse_duration(std::string_view text) {
  const char unit = text.empty() ? '\0' : text.back();
  const double seconds = unit == 's' ? 1 : unit == 'm' ? 60 : unit == 'h' ? 3600 : 0;
  if (seconds == 0) return std::nullopt;
  const auto number = parse_finite(text.substr(0, text.size() - 1));
  if (!number || *number <= 0 || *number > 1e9) return std::nullopt;
  return *number * seconds;
}

CLI::Validator decimal_number() {
  return CLI::Validator(
      [](std::string& text) {
        if (parse_finite(text)) return std::string();
        return fmt::format("'{}' is not a finite decimal number (without '+' or zeros in front)", excerpt(text));
      },
      "");
}

void require_distinct(const std::vector<NamedFile>& written, const std::vector<NamedFile>& read) {
  const auto is_file = [](const NamedFile& f) { return !f.file.empty() && f.file != "-"; };
  for (std::size_t i = 0; i < written.size(); ++i) {
    if (!is_file(written[i])) continue;
    const fs::path out = path_of(written[i].file);
    for (std::size_t j = 0; j < i; ++j)
      if (is_file(written[j]) && is_same_file(out, path_of(written[j].file)))
        throw_bad_input("{} and {} are the same file, {}: one would overwrite the other; give two names",
                        written[j].flag, written[i].flag, out.string());
    for (const NamedFile& in : read)
      if (is_file(in) && is_same_file(out, path_of(in.file)))
        throw_bad_input("{} {} is the file of {}: it would be overwritten; give another name", written[i].flag,
                        out.string(), in.flag);
  }
}

std::vector<NamedFile> ledger_files(const std::string& folder) {
  std::vector<NamedFile> files;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
    if (const fs::path verdict = at->path() / "verdict.json"; fs::exists(verdict, error))
      files.push_back({"a verdict of the ledger", verdict.string()});
  return files;
}

void require_ledger(const std::string& folder) {
  std::error_code error;
  if (!fs::is_directory(folder, error))
    throw_bad_input(
        "--ledger {}: there is no such folder; give one of `flashcore experiment run --out`, or leave --ledger out",
        folder);
}

void require_python(const std::string& python) {
  if (python.find('/') != std::string::npos && ::access(python.c_str(), X_OK) != 0)
    throw_bad_input("--python {}: {}; give a Python that imports flashcore and PyTorch, as python3", python,
                    std::strerror(errno));
}

void require_something_to_time(const Suite& suite) {
  for (const NamedProblem& named : suite.problems)
    if (named.problem.seqlen_q > 0) return;
  throw_bad_input(
      "{}: its queries have no rows (seqlen_q is 0), so there is nothing to time; give a longer one, or run `flashcore "
      "check`, which does judge it",
      suite.problems.front().problem.id());
}

void refuse_flags(const CLI::App& app, const std::vector<std::string>& flags, std::string_view why) {
  for (const std::string& flag : flags)
    if (app.count(flag) > 0) throw_bad_input("{} changes nothing here: {}; leave it out", flag, why);
}

void occupy_standard_streams() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(fd, F_GETFD) >= 0 || errno != EBADF) continue;
    // The lowest free number, which is this one. stdout for reading only, so that a write to it is an error.
    if (::open("/dev/null", fd == STDERR_FILENO ? O_WRONLY : O_RDONLY) < 0) ::_exit(kNoEnvironment);
  }
}

int code_after_flush(int code) {
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  if (code == kNoEnvironment) return code;  // said already
  print_error(
      fmt::format("cannot write to standard output{}: what was printed is lost (is the disk full, or was it closed?)",
                  errno == 0 ? "" : fmt::format(" ({})", std::strerror(errno))));
  return kNoEnvironment;
}

}  // namespace flashcore::cli
