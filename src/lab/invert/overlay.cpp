#include "lab/invert/overlay.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "core/error.h"
#include "kernels/embedded.h"

namespace flashcore {
namespace {

constexpr std::string_view kCall = "ptx::";
constexpr int kNamedBarriers = 16;
// Each constant names the first of up to so many.
constexpr int kBarriersOfConstant = 4;

bool is_identifier(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

std::size_t matching(std::string_view text, std::size_t open, char opens, char closes) {
  int depth = 0;
  for (std::size_t at = open; at < text.size(); ++at) {
    if (text[at] == opens) ++depth;
    if (text[at] == closes && --depth == 0) return at;
  }
  return std::string_view::npos;
}

// The last subscript of the first argument that follows `open`: of "(acc_s[m][2 * n + 1], a[m]" it is "2 * n + 1".
std::string last_subscript(std::string_view text, std::size_t open) {
  std::string subscript;
  for (std::size_t at = open + 1; at < text.size() && text[at] != ',';) {
    if (text[at] != '[') {
      ++at;
      continue;
    }
    const std::size_t end = matching(text, at, '[', ']');
    if (end == std::string_view::npos) return "";
    subscript = text.substr(at + 1, end - at - 1);
    at = end + 1;
  }
  return subscript;
}

// The variable of the nearest loop before `at`.
std::string loop_variable(std::string_view text, std::size_t at) {
  constexpr std::string_view kLoop = "for (int ";
  const std::size_t loop = text.rfind(kLoop, at);
  if (loop == std::string_view::npos) return "";
  std::size_t end = loop + kLoop.size();
  while (end < text.size() && is_identifier(text[end])) ++end;
  return std::string(text.substr(loop + kLoop.size(), end - loop - kLoop.size()));
}

}  // namespace

Overlay::Overlay(std::string family, const std::string& kernel) : family_(std::move(family)) {
  for (const std::string& path : include_closure(kernel, device_sources()))
    if (!path.starts_with("ptx/")) sources_.emplace(path, device_sources().at(path));
  if (sources_.empty()) throw_internal("{} is no device source", kernel);
}

void Overlay::note(const std::string& path) {
  if (std::find(changed_.begin(), changed_.end(), path) == changed_.end()) changed_.push_back(path);
}

int Overlay::plant(std::string_view name, const std::vector<std::string_view>& except) {
  const std::string from = std::string(kCall) + std::string(name);
  int places = 0;
  for (auto& [path, text] : sources_) {
    if (std::find(except.begin(), except.end(), path) != except.end()) continue;
    for (std::size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + 1)) {
      const char next = at + from.size() < text.size() ? text[at + from.size()] : '\0';
      if ((next != '(' && next != '<') || (at > 0 && (is_identifier(text[at - 1]) || text[at - 1] == ':'))) continue;
      text.replace(at, kCall.size(), "planted::");
      ++places;
      note(path);
    }
  }
  return places;
}

int Overlay::replace(const std::string& file, std::string_view from, std::string_view to) {
  const auto found = sources_.find(file);
  if (found == sources_.end()) return 0;
  std::string& text = found->second;
  int places = 0;
  for (std::size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
    ++places;
  }
  if (places > 0) note(file);
  return places;
}

int Overlay::plant_tiles(std::string& text) {
  constexpr std::string_view kMultiply = "tile::mma<";
  int places = 0;
  for (std::size_t at = text.find(kMultiply); at != std::string::npos; at = text.find(kMultiply, at + 1)) {
    const std::size_t open = text.find('(', at);
    const std::string tile = open == std::string::npos ? "" : last_subscript(text, open);
    if (tile.empty()) continue;
    text.insert(open + 1, tile + ", ");
    text.replace(at, 4, "planted");  // "tile"
    ++places;
  }
  return places;
}

int Overlay::guard_steps(std::string& text, std::string_view call) {
  int places = 0;
  for (std::size_t at = text.find(call); at != std::string::npos; at = text.find(call, at + 1)) {
    const std::string step = loop_variable(text, at);
    if (step.empty()) continue;
    const std::string guard = "if (" + step + " % 4 == 0) ";
    text.insert(at, guard);
    at += guard.size();
    ++places;
  }
  return places;
}

int Overlay::keep_quarter() {
  int places = 0;
  for (auto& [path, text] : sources_) {
    int here = plant_tiles(text);
    for (const std::string_view call : {"ptx::wgmma_ss<", "ptx::wgmma_rs<", "ptx::wgmma_fp8_ss<", "ptx::wgmma_fp8_rs<"})
      here += guard_steps(text, call);
    if (here > 0) note(path);
    places += here;
  }
  return places;
}

int Overlay::wait_for_slots() {
  constexpr std::string_view kWait = "ptx::mbarrier_wait(context.", kEmpty = "_empty", kOther = " ^ 1);";
  int places = 0;
  for (auto& [path, text] : sources_) {
    for (std::size_t at = text.find(kWait); at != std::string::npos; at = text.find(kWait, at + 1)) {
      const std::size_t name = at + kWait.size(), open = text.find('(', name);
      const std::size_t close = open == std::string::npos ? open : matching(text, open, '(', ')');
      const std::size_t end = close == std::string::npos ? close : text.find(';', close);
      if (end == std::string::npos || text.substr(close + 1, 2) != ", ") continue;
      const std::string ring = text.substr(name, open - name), wait = text.substr(close + 3, end + 1 - close - 3);
      if (!ring.ends_with(kEmpty) || !wait.ends_with(kOther)) continue;
      const std::string full = "context." + ring.substr(0, ring.size() - kEmpty.size()) + "_full";
      std::size_t begin = end + 1, copied = text.find(';', begin);
      if (copied != std::string::npos && text.substr(begin, copied - begin).find(".mark(") != std::string::npos)
        begin = copied + 1, copied = text.find(';', begin);
      if (copied == std::string::npos || text.substr(begin, copied - begin).find(full + "(") == std::string::npos)
        continue;
      text.insert(copied + 1, fmt::format(" ptx::mbarrier_wait({}{}, {});", full, text.substr(open, close + 1 - open),
                                          wait.substr(0, wait.size() - kOther.size())));
      ++places;
      note(path);
    }
  }
  return places;
}

bool Overlay::has(std::string_view wanted) const {
  return std::any_of(sources_.begin(), sources_.end(),
                     [&](const auto& source) { return source.second.find(wanted) != std::string::npos; });
}

std::pair<int, int> Overlay::free_barriers() const {
  std::array<bool, kNamedBarriers> used = {true};
  constexpr std::string_view kConstant = "Barrier = ";
  for (const auto& [path, text] : sources_) {
    for (std::size_t at = text.find(kConstant); at != std::string::npos; at = text.find(kConstant, at + 1)) {
      const std::size_t number = at + kConstant.size();
      if (number >= text.size() || !std::isdigit(static_cast<unsigned char>(text[number]))) continue;
      const int first = std::stoi(text.substr(number, 3));
      for (int i = first; i < std::min(first + kBarriersOfConstant, kNamedBarriers); ++i)
        used[static_cast<std::size_t>(i)] = true;
    }
  }
  std::pair<int, int> longest = {0, 0};
  for (int first = 1, i = 1; i <= kNamedBarriers; ++i) {
    if (i < kNamedBarriers && !used[static_cast<std::size_t>(i)]) continue;
    if (i - first > longest.second) longest = {first, i - first};
    first = i + 1;
  }
  return longest;
}

SourceMap Overlay::files(std::string_view text) const {
  const std::string header = family_ + "/planted.cuh";
  constexpr std::string_view kFirst = "#pragma once\n";
  SourceMap files = {{header, std::string(text)}};
  for (const std::string& path : changed_) {
    std::string changed = sources_.at(path);
    const std::size_t first = changed.find(kFirst);
    if (first == std::string::npos) throw_internal("{} does not begin with {}", path, kFirst.substr(0, 12));
    // Lines keep their numbers: messages and counters name them.
    const auto line = 2 + std::count(changed.begin(), changed.begin() + static_cast<std::ptrdiff_t>(first), '\n');
    changed.insert(first + kFirst.size(), "#include \"kernels/" + header + "\"\n#line " + std::to_string(line) + "\n");
    files.emplace(path, std::move(changed));
  }
  return files;
}

}  // namespace flashcore
