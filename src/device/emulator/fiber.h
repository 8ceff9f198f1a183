#pragma once
// Fibers on Boost.Context's assembly: one switch costs about as much as a call through a pointer. Boost's own fiber
// class unwinds an unfinished fiber when it is dropped; after a fault thousands of them are simply forgotten instead.

#include <boost/context/detail/fcontext.hpp>
#include <cstddef>
#include <vector>

namespace flashcore::emulator {

namespace fc = boost::context::detail;

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
  // A fresh context on stack `index` that calls entry when first resumed.
  fc::fcontext_t make(std::size_t index, void (*entry)(fc::transfer_t)) const;

 private:
  std::vector<char*> tops_;
  std::vector<std::pair<void*, std::size_t>> mappings_;
};

}  // namespace flashcore::emulator
