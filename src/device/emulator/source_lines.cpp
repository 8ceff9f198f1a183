#include "device/emulator/source_lines.h"

#include <fmt/format.h>

#include <sstream>

namespace flashcore::emulator {
namespace {

// "flashcore::sm80_fwd::Forward<...>::load_k(int)" -> "load_k"
std::string short_name(const std::string& name) {
  std::string plain;
  int depth = 0;
  for (std::size_t i = 0; i < name.size(); ++i) {
    const char c = name[i];
    if (c == '<' || c == '(' || c == '{') ++depth;
    if (depth == 0) plain += c;
    if ((c == '>' && i > 0 && name[i - 1] != '-') || c == ')' || c == '}') --depth;
    if (c == '{' && name.compare(i, 7, "{lambda") == 0) plain += "lambda";
  }
  const std::size_t constness = plain.find(" const");
  if (constness != std::string::npos) plain.resize(constness);
  const std::size_t colon = plain.rfind("::");
  if (colon != std::string::npos) plain = plain.substr(colon + 2);
  const std::size_t space = plain.rfind(' ');
  return space == std::string::npos ? plain : plain.substr(space + 1);
}

// "/tmp/x/./kernels/a.cuh:12 (discriminator 3)" -> "kernels/a.cuh:12"
std::string short_place(std::string place) {
  const std::size_t kernels = place.rfind("kernels/");
  if (kernels != std::string::npos) place = place.substr(kernels);
  const std::size_t blank = place.find(' ');
  return place.substr(0, blank);
}

using Frames = std::vector<std::pair<std::string, std::string>>;  // name, place

CallLines lines_of(const Frames& frames) {
  CallLines lines;
  std::string called;
  for (const auto& [name, place] : frames) {
    if (place.starts_with("kernels/ptx/")) {
      called = ": " + name;
      continue;
    }
    if (!place.starts_with("kernels/")) continue;
    lines.push_back(fmt::format("{} {}{}", place, name, called));
    called.clear();
  }
  if (lines.empty() && !frames.empty()) lines.push_back(frames.front().second + " " + frames.front().first);
  return lines;
}

}  // namespace

std::string caller_of(const CallLines& lines) {
  for (std::size_t i = 1; i < lines.size() && lines[i - 1].starts_with("kernels/tile/"); ++i) {
    if (!lines[i].starts_with("kernels/tile/")) return lines[i];
  }
  return {};
}

CallLines SourceLines::of(std::uint64_t offset) {
  const std::lock_guard lock(mutex_);
  if (offset == 0) return {"(outside the kernel)"};
  if (!lines_.contains(offset)) look_up({offset});
  return lines_.at(offset);
}

void SourceLines::prepare(const std::vector<std::uint64_t>& offsets) {
  const std::lock_guard lock(mutex_);
  std::vector<std::uint64_t> fresh;
  for (const std::uint64_t offset : offsets)
    if (offset != 0 && !lines_.contains(offset)) fresh.push_back(offset);
  if (!fresh.empty()) look_up(fresh);
}

void SourceLines::look_up(const std::vector<std::uint64_t>& offsets) {
  std::istringstream text(look_up_(offsets));
  std::size_t at = 0;
  Frames frames;
  const auto finish = [&] {
    if (at > 0 && at <= offsets.size() && !frames.empty()) lines_[offsets[at - 1]] = lines_of(frames);
    frames.clear();
  };
  for (std::string line, place; std::getline(text, line);) {
    if (line.starts_with("0x")) {
      finish();
      ++at;
    } else if (std::getline(text, place)) {
      frames.emplace_back(short_name(line), short_place(place));
    }
  }
  finish();
  for (const std::uint64_t offset : offsets)
    lines_.try_emplace(offset, CallLines{fmt::format(
                                   "kernel code at {:#x} (install binutils, whose addr2line names the line)", offset)});
}

std::vector<std::string> addr2line_command(const std::string& image) {
  return {"addr2line", "-a", "-f", "-C", "-i", "-e", image};
}

}  // namespace flashcore::emulator
