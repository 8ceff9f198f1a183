#pragma once
// Source lines of a compiled kernel's addresses, as addr2line gives them.

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace flashcore::emulator {

// Of one place, the calls that lead there, innermost first: "kernels/sm80_fwd/kernel.cuh:117 scores: ldmatrix_x4".
using CallLines = std::vector<std::string>;

// The line of the kernel itself: the innermost that is not in tile/, whose functions every kernel calls. Empty if that
// is the first.
std::string caller_of(const CallLines& lines);

class SourceLines {
 public:
  // What addr2line prints for these offsets (asked with -a -f -C -i); empty if it cannot be run.
  using LookUp = std::function<std::string(const std::vector<std::uint64_t>& offsets)>;
  explicit SourceLines(LookUp look_up) : look_up_(std::move(look_up)) {}

  // `offset` of a return address within the image; 0: outside of it. Never empty. Thread-safe.
  CallLines of(std::uint64_t offset);
  // Looks up many at once, so that later calls find them.
  void prepare(const std::vector<std::uint64_t>& offsets);
  std::size_t known() const { return lines_.size(); }

 private:
  void look_up(const std::vector<std::uint64_t>& offsets);

  LookUp look_up_;
  std::mutex mutex_;
  std::map<std::uint64_t, CallLines> lines_;
};

// The command for `image`, without its offsets.
std::vector<std::string> addr2line_command(const std::string& image);

}  // namespace flashcore::emulator
