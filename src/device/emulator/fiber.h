#pragma once
// Fibers on Boost.Context's assembly: one switch costs about as much as a call through a pointer. Boost's own fiber
// class unwinds an unfinished fiber when it is dropped; after a fault thousands of them are simply forgotten instead.

#include <boost/context/detail/fcontext.hpp>
#include <cstddef>
#include <vector>

#if defined(FLASHCORE_SANITIZED) && !defined(__SANITIZE_THREAD__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace flashcore::emulator {

namespace fc = boost::context::detail;

// The address sanitizer must be told of every change of stack; without it these do nothing. start_stack_switch() before
// a jump, to the stack that is jumped to; `fake` null if nobody returns. finish_stack_switch() once on it, with what
// the own start_stack_switch() kept; `bottom` and `size` get those of the stack that was left.
#if defined(FLASHCORE_SANITIZED) && !defined(__SANITIZE_THREAD__)
inline void start_stack_switch(void** fake, const void* bottom, std::size_t size) {
  __sanitizer_start_switch_fiber(fake, bottom, size);
}
inline void finish_stack_switch(void* fake, const void** bottom, std::size_t* size) {
  __sanitizer_finish_switch_fiber(fake, bottom, size);
}
#else
inline void start_stack_switch(void**, const void*, std::size_t) {}
inline void finish_stack_switch(void*, const void**, std::size_t*) {}
#endif

// Stacks in one mapping, each with a page below it that faults. Memory is used only where a stack was touched.
class StackPool {
 public:
  static constexpr std::size_t kStackBytes = 256 << 10;

  StackPool() = default;
  ~StackPool();
  StackPool(const StackPool&) = delete;
  StackPool& operator=(const StackPool&) = delete;

  // Makes room for `count` stacks; Error kEnvironment if memory is short.
  void reserve(std::size_t count);
  const void* bottom(std::size_t index) const { return tops_[index] - kStackBytes; }
  // A fresh context on stack `index` that calls entry when first resumed.
  fc::fcontext_t make(std::size_t index, void (*entry)(fc::transfer_t)) const;

 private:
  std::vector<char*> tops_;
  std::vector<std::pair<void*, std::size_t>> mappings_;
};

}  // namespace flashcore::emulator
