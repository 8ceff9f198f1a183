#include "lab/diagnose/sass.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/child_process.h"
#include "core/error.h"
#include "core/foreign_text.h"
#include "core/process_end.h"
#include "core/scratch_folder.h"
#include "device/cuda/cuda_api.h"

namespace flashcore {
namespace {

namespace fs = std::filesystem;

constexpr double kDisassemblySeconds = 120;
// Some megabytes for the largest kernels.
constexpr std::size_t kMaxDisassembly = std::size_t{128} << 20;

// The folder that the compiler ran in is no part of an included name.
std::string library_name(std::string_view path) {
  for (const std::string_view root : {"/kernels/", "/core/"})
    if (const std::size_t at = path.rfind(root); at != std::string_view::npos) return std::string(path.substr(at + 1));
  return std::string(path);
}

std::optional<SourcePlace> place_after(std::string_view text, std::string_view word) {
  const std::size_t at = text.find(word);
  if (at == std::string_view::npos) return std::nullopt;
  const std::size_t begin = at + word.size(), end = text.find('"', begin);
  if (end == std::string_view::npos) return std::nullopt;
  constexpr std::string_view kLine = ", line ";
  const std::string_view rest = text.substr(end + 1);
  SourcePlace place{library_name(text.substr(begin, end - begin)), 0};
  if (!rest.starts_with(kLine)) return std::nullopt;
  const auto read = std::from_chars(rest.data() + kLine.size(), rest.data() + rest.size(), place.line);
  return read.ec == std::errc() ? std::optional(place) : std::nullopt;
}

// "kernels/tile/sequence.cuh:25 load_length: ld_global_f32".
std::optional<SourcePlace> place_of_count(std::string_view where) {
  const std::string_view name = where.substr(0, where.find(' '));
  const std::size_t colon = name.rfind(':');
  SourcePlace place;
  if (colon == std::string_view::npos) return std::nullopt;
  const auto read = std::from_chars(name.data() + colon + 1, name.data() + name.size(), place.line);
  if (read.ec != std::errc()) return std::nullopt;
  place.file = library_name(name.substr(0, colon));
  return place;
}

std::string_view trimmed_text(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t\r");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r;") + 1 - begin);
}

std::string text_of_line(const std::map<std::string, std::string>& sources, const SourcePlace& place) {
  const auto source = sources.find(place.file);
  if (source == sources.end()) return "";
  std::string_view rest = source->second;
  for (int line = 1; line < place.line; ++line) {
    const std::size_t end = rest.find('\n');
    if (end == std::string_view::npos) return "";
    rest.remove_prefix(end + 1);
  }
  rest = rest.substr(0, rest.find('\n'));
  const std::size_t begin = rest.find_first_not_of(" \t");
  return begin == std::string_view::npos ? "" : std::string(rest.substr(begin));
}

// nvidia/*/bin and triton/backends/nvidia/bin of one folder of packages.
void add_wheels(const fs::path& packages, std::vector<fs::path>& places) {
  std::error_code error;
  for (fs::directory_iterator it(packages / "nvidia", error), end; !error && it != end; it.increment(error))
    places.push_back(it->path() / "bin");
  places.push_back(packages / "triton/backends/nvidia/bin");
}

}  // namespace

std::vector<SassInstruction> parse_sass(std::string_view text) {
  std::vector<SassInstruction> all;
  std::vector<SourcePlace> places;
  std::string kernel;
  bool reading_places = false, any_place = false;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    const std::string_view line = trimmed_text(text.substr(0, end));
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
    constexpr std::string_view kSection = ".section\t.text.";
    if (line.starts_with(kSection)) {
      kernel = line.substr(kSection.size(), line.find(',') - kSection.size());
      places.clear();
    } else if (line.starts_with("//## File ")) {
      if (!reading_places) places.clear();
      reading_places = true;
      if (const auto place = place_after(line, "File \"")) places.push_back(*place), any_place = true;
    } else if (line.starts_with("/*") && line.size() > 8 && line.find("*/") != std::string_view::npos) {
      reading_places = false;
      const std::size_t close = line.find("*/");
      std::string_view code = line.substr(close + 2);
      if (const std::size_t encoded = code.find("/*"); encoded != std::string_view::npos)
        code = code.substr(0, encoded);
      code = trimmed_text(code);
      // The second word of an encoding stands alone.
      if (!code.empty()) all.push_back({kernel, std::string(line.substr(2, close - 2)), std::string(code), places});
    }
  }
  if (all.empty() || !any_place)
    throw_bad_input("nvdisasm told no instruction with a source line ({} instructions); is it older than the compiler?",
                    all.size());
  return all;
}

std::vector<HotLine> hot_lines(const EmulatorCounts& counts, const std::vector<SassInstruction>& instructions,
                               const std::map<std::string, std::string>& sources, std::size_t most) {
  std::vector<HotLine> lines;
  for (const CountedLine& counted : counts.lines) {
    const auto known = std::find_if(lines.begin(), lines.end(), [&](const HotLine& line) {
      return line.counted.where == counted.where && line.counted.caller == counted.caller &&
             line.counted.kind == counted.kind;
    });
    if (known == lines.end()) {
      lines.push_back({counted, "", {}});
      continue;
    }
    // One line, several accesses: their mean.
    CountedLine& sum = known->counted;
    const double requests = sum.requests + counted.requests;
    const auto mean = [&](double a, double b) {
      return requests > 0 ? (a * sum.requests + b * counted.requests) / requests : 0;
    };
    sum.units_per_request = mean(sum.units_per_request, counted.units_per_request);
    sum.least_per_request = mean(sum.least_per_request, counted.least_per_request);
    sum.requests = requests;
  }
  std::stable_sort(lines.begin(), lines.end(), [](const HotLine& a, const HotLine& b) {
    return a.counted.requests * a.counted.units_per_request > b.counted.requests * b.counted.units_per_request;
  });
  if (lines.size() > most) lines.resize(most);
  for (HotLine& line : lines) {
    const auto place = place_of_count(line.counted.where), caller = place_of_count(line.counted.caller);
    if (!place) continue;
    line.source = text_of_line(sources, *place);
    for (const SassInstruction& instruction : instructions) {
      const auto& chain = instruction.places;
      const auto at = std::find(chain.begin(), chain.end(), *place);
      if (at == chain.end() || (caller && std::find(at, chain.end(), *caller) == chain.end())) continue;
      line.instructions.push_back(instruction);
    }
  }
  return lines;
}

std::string find_nvdisasm(const std::string& asked) {
  std::error_code ignored;
  if (!asked.empty()) {
    if (asked.find('/') == std::string::npos) return find_program(asked);
    return fs::is_regular_file(asked, ignored) ? fs::absolute(asked, ignored).string() : "";
  }
  if (const std::string found = find_program("nvdisasm"); !found.empty()) return found;
  std::vector<fs::path> places;
  for (const char* name : {"CUDA_HOME", "CUDA_PATH"})
    if (const char* home = std::getenv(name); home && *home) places.push_back(fs::path(home) / "bin");
  places.emplace_back("/usr/local/cuda/bin");
  if (const cuda::NvrtcApi* api = cuda::nvrtc_api())
    for (fs::path folder = fs::path(api->path).parent_path(); folder.has_relative_path(); folder = folder.parent_path())
      if (folder.filename() == "site-packages" || folder.filename() == "dist-packages") add_wheels(folder, places);
  if (const char* venv = std::getenv("VIRTUAL_ENV"); venv && *venv)
    for (fs::directory_iterator it(fs::path(venv) / "lib", ignored), end; !ignored && it != end; it.increment(ignored))
      add_wheels(it->path() / "site-packages", places);
  for (const fs::path& place : places)
    if (fs::is_regular_file(place / "nvdisasm", ignored)) return (place / "nvdisasm").string();
  return "";
}

std::string disassemble(const std::string& nvdisasm, const std::string& cubin, const std::function<bool()>& stop) {
  const ScratchFolder folder;
  const fs::path file = folder.write("kernel.cubin", cubin);
  const ProgramResult result = run_program({nvdisasm, "-gi", "-c", file.string()}, {.seconds = kDisassemblySeconds,
                                                                                    .kept_output = kMaxDisassembly,
                                                                                    .max_output = kMaxDisassembly,
                                                                                    .cancelled = stop});
  if (!result.started) throw_environment("{} cannot be run", nvdisasm);
  if (!result.stopped.empty()) throw_environment("{} {}", nvdisasm, result.stopped);
  if (result.exit_code != 0)
    throw_environment("{} ended with {}: {}", nvdisasm, result.exit_code, excerpt(result.output, 300));
  return result.output;
}

nlohmann::json sass_json(const SourceSass& sass) {
  nlohmann::json lines = nlohmann::json::array();
  for (const HotLine& line : sass.lines) {
    nlohmann::json instructions = nlohmann::json::array();
    for (const SassInstruction& i : line.instructions)
      instructions.push_back({{"kernel", i.kernel}, {"address", i.address}, {"text", i.text}});
    lines.push_back({{"where", line.counted.where},
                     {"caller", line.counted.caller},
                     {"kind", line.counted.kind},
                     {"requests", line.counted.requests},
                     {"units_per_request", line.counted.units_per_request},
                     {"least_per_request", line.counted.least_per_request},
                     {"source", line.source},
                     {"instructions", std::move(instructions)}});
  }
  return {{"tool", sass.tool}, {"same_code", sass.same_code}, {"lines", std::move(lines)}};
}

}  // namespace flashcore
