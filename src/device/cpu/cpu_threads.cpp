#include "device/cpu/cpu_threads.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdlib>

#include "core/error.h"
#include "core/parallel.h"

namespace flashcore {
namespace {

std::atomic<int> g_set{0};
thread_local int t_limit = 0;

int threads_of_environment() {
  if (const char* text = std::getenv("FLASHCORE_THREADS"); text && *text) {
    if (const auto threads = parse_threads(text)) return *threads;
    throw_bad_input("FLASHCORE_THREADS is '{}'; give a number of threads from 1 on, or unset it", text);
  }
  // Its errors are the OpenMP run time's to report.
  const char* text = std::getenv("OMP_NUM_THREADS");
  return text ? parse_threads(text).value_or(0) : 0;
}

// Read once: a launch of a microsecond has no time to ask the kernel. No function-local static: a child forked while
// another thread initialises one would wait for ever. Two threads that both come first find the same.
template <class Find>
int once(std::atomic<int>& known, Find find) {
  int value = known.load(std::memory_order_relaxed);
  if (value == 0) known.store(value = find(), std::memory_order_relaxed);
  return value;
}
std::atomic<int> g_machine{0}, g_default{0};

int machine_threads() { return once(g_machine, hardware_threads); }
int default_threads() {
  return once(g_default, [] {
    const int asked = threads_of_environment();
    return asked > 0 ? std::min(asked, machine_threads()) : machine_threads();
  });
}

}  // namespace

std::optional<int> parse_threads(std::string_view text) {
  const auto trim = [](std::string_view s) {
    while (!s.empty() && s.front() == ' ') s.remove_prefix(1);
    while (!s.empty() && s.back() == ' ') s.remove_suffix(1);
    return s;
  };
  text = trim(text.substr(0, text.find(',')));
  int threads = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), threads);
  if (error != std::errc() || end != text.data() + text.size() || threads < 1) return std::nullopt;
  return threads;
}

int cpu_threads() {
  const int set = g_set.load(std::memory_order_relaxed);
  return set > 0 ? std::min(set, machine_threads()) : default_threads();
}

void set_cpu_threads(int threads) {
  if (threads < 0) throw_bad_input("{} threads were asked for; give a number from 1 on, or 0 for the default", threads);
  g_set.store(threads, std::memory_order_relaxed);
}

ThreadLimit::ThreadLimit(int threads) : before_(t_limit) { t_limit = threads; }
ThreadLimit::~ThreadLimit() { t_limit = before_; }
int ThreadLimit::of_this_thread() { return t_limit; }

}  // namespace flashcore
