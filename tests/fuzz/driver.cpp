// For builds without clang: the seeds of corpus/<parser>/, then mutations of them, the same ones in every run.
//   parser_fuzz CORPUS [--runs N] [PARSER...]      PARSER alone may also be PARSER=FILE: that one input
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <random>
#include <vector>

#include "core/error.h"
#include "core/files.h"
#include "target.h"

namespace {

using namespace flashcore;

constexpr unsigned kPatienceSeconds = 60;  // of one input: a hang, on any machine
constexpr std::size_t kMaxInput = 1 << 16;

// What parsers give a meaning to.
constexpr std::string_view kTokens[] = {"{",
                                        "}",
                                        "[",
                                        "]",
                                        "(",
                                        ")",
                                        ":",
                                        ",",
                                        "\"",
                                        "'",
                                        "\n",
                                        " ",
                                        "- ",
                                        "\\u0000",
                                        "\\ud800",
                                        "null",
                                        "true",
                                        "0",
                                        "-1",
                                        "010",
                                        "1e400",
                                        "nan",
                                        ".inf",
                                        "18446744073709551616",
                                        "9223372036854775807",
                                        "&a ",
                                        "*a",
                                        "!!str ",
                                        "---\n",
                                        "<<: ",
                                        "|\n",
                                        "\xff",
                                        "\xef\xbb\xbf",
                                        "_",
                                        "=",
                                        "%"};

class Mutator {
 public:
  explicit Mutator(const std::vector<std::string>& seeds) : seeds_(seeds) {}

  std::string operator()(std::uint64_t number) {
    random_.seed(number);
    std::string input = seeds_[below(seeds_.size())];
    for (std::size_t n = 1 + below(6); n > 0; --n) mutate(input);
    if (input.size() > kMaxInput) input.resize(kMaxInput);
    return input;
  }

 private:
  // Not a distribution of the library's: those differ between libraries.
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(random_() % std::max<std::size_t>(n, 1)); }

  void mutate(std::string& input) {
    const std::size_t at = below(input.size() + 1);
    const std::size_t length = std::min(below(16), input.size() - at);
    switch (below(7)) {
      case 0:
        if (at < input.size()) input[at] = static_cast<char>(input[at] ^ (1U << below(8)));
        break;
      case 1:
        if (at < input.size()) input[at] = static_cast<char>(random_());
        break;
      case 2: input.erase(at, length); break;
      case 3: input.insert(at, input.substr(at, length)); break;
      case 4: input.insert(at, kTokens[below(std::size(kTokens))]); break;
      case 5: input.replace(at, length, kTokens[below(std::size(kTokens))]); break;
      default: {
        const std::string& other = seeds_[below(seeds_.size())];
        input = input.substr(0, at) + other.substr(std::min(other.size(), below(other.size() + 1)));
      }
    }
  }

  const std::vector<std::string>& seeds_;
  std::mt19937_64 random_;
};

std::vector<std::string> seeds_of(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  std::vector<std::string> seeds;
  for (const auto& file : files) seeds.push_back(read_file(file));
  if (seeds.empty()) throw_bad_input("{} holds no seed", folder.string());
  return seeds;
}

// How many of the inputs were valid: a fuzzer whose every input is turned away at the door tests nothing behind it.
void fuzz_one(const std::string& name, const std::filesystem::path& corpus, std::uint64_t runs) {
  const fuzz::Parser& parser = fuzz::targets().at(name);
  std::uint64_t valid = 0;
  const auto run = [&](const std::string& input) {
    ::alarm(kPatienceSeconds);
    fuzz::run(
        [&](std::string_view text) {
          parser(text);
          ++valid;
        },
        input);
  };
  const std::vector<std::string> seeds = seeds_of(corpus / name);
  for (const std::string& seed : seeds) run(seed);
  const std::uint64_t valid_seeds = valid;
  Mutator mutated(seeds);
  for (std::uint64_t i = 0; i < runs; ++i) {
    const std::string input = mutated(i);
    // For whoever has to find what crashed: FILE is what `parser_fuzz CORPUS PARSER=FILE` takes.
    if (const char* keep = std::getenv("FLASHCORE_FUZZ_KEEP")) write_file_atomically(keep, input);
    run(input);
  }
  std::printf("%s: %zu seeds (%llu valid), %llu mutations (%llu valid), nothing found\n", name.c_str(), seeds.size(),
              static_cast<unsigned long long>(valid_seeds), static_cast<unsigned long long>(runs),
              static_cast<unsigned long long>(valid - valid_seeds));
  if (valid_seeds == 0 || (runs >= 1000 && valid == valid_seeds)) fuzz::found(name + ": no input got past the door");
}

}  // namespace

int main(int argc, char** argv) {
  std::uint64_t runs = 1000;
  std::vector<std::string> names;
  for (int i = 2; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--runs" && i + 1 < argc) runs = std::strtoull(argv[++i], nullptr, 10);
    else names.push_back(argument);
  }
  if (argc < 2) return std::fprintf(stderr, "usage: parser_fuzz CORPUS [--runs N] [PARSER | PARSER=FILE]...\n"), 3;
  if (names.empty())
    for (const auto& [name, parser] : fuzz::targets()) names.push_back(name);
  for (const std::string& name : names) {
    const std::size_t equals = name.find('=');
    if (equals == std::string::npos) fuzz_one(name, argv[1], runs);
    else fuzz::run(fuzz::targets().at(name.substr(0, equals)), read_file(name.substr(equals + 1)));
  }
  return 0;
}
