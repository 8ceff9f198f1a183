#pragma once
// What fc_memory_allocate has given out, so that copies and launches which would run over its end are refused.

#include <atomic>
#include <cstdint>
#include <map>

#include "api/fork_gate.h"

namespace flashcore::api {

class Allocations {
 public:
  void add(const void* address, std::size_t bytes);
  void remove(const void* address);
  // Error kBadInput if [at + low, at + high) meets memory of ours and does not lie in it whole. Other memory is its
  // owner's, and nobody here knows its size: false. `what` begins the sentence: "the upload", "o". A launch asks this:
  // no cost while nothing is allocated, and no lock that a forked child would miss.
  bool check(const char* what, const void* at, std::int64_t low, std::int64_t high) const;
  // In a forked child; no other thread was in add() or remove().
  void renew_lock() { mutex_.renew(); }

 private:
  std::atomic<std::size_t> count_{0};
  mutable ForkableMutex mutex_;
  std::map<std::uintptr_t, std::size_t> bytes_;  // by first address
};

// Of this process, all devices together.
Allocations& allocations();

}  // namespace flashcore::api
