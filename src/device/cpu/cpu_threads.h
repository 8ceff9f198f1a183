#pragma once
// How many threads a launch on the CPU may use: what the machine has, what the user allows, what the launch is worth.

#include <optional>
#include <string_view>

namespace flashcore {

// The first that is set of: set_cpu_threads(), FLASHCORE_THREADS, OMP_NUM_THREADS; never more than hardware_threads(),
// which is also what holds where none is. Both variables are read once per process. Error kBadInput if
// FLASHCORE_THREADS is no number from 1 on.
int cpu_threads();
// For the whole process, from the next launch on; 0 takes it back. Error kBadInput below 0.
void set_cpu_threads(int threads);

// A number from 1 on, of OMP_NUM_THREADS' list the first ("4,2" is 4 for the outermost level); none if it is neither.
std::optional<int> parse_threads(std::string_view text);

// Launches of this thread use at most `threads` while it lives: a launch of microseconds is over before another thread
// is awake. 0: no limit.
class ThreadLimit {
 public:
  explicit ThreadLimit(int threads);
  ~ThreadLimit();
  ThreadLimit(const ThreadLimit&) = delete;
  ThreadLimit& operator=(const ThreadLimit&) = delete;
  // Of this thread; 0 if there is none.
  static int of_this_thread();

 private:
  int before_;
};

}  // namespace flashcore
