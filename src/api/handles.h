#pragma once
// Handles that outlive what they name: a table from numbers to shared objects. A number is never given twice, so a
// handle that was closed, in this thread or another, is refused instead of followed.

#include <cstdint>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>

#include "api/fork_gate.h"
#include "core/error.h"

namespace flashcore::api {

template <class Object, class Handle>
class HandleTable {
 public:
  // `kind` names the handles in messages ("context"); `tag` keeps the numbers of two tables apart.
  HandleTable(const char* kind, std::uintptr_t tag) : kind_(kind), next_(tag) {}

  Handle add(std::shared_ptr<Object> object) {
    const std::unique_lock lock(mutex_);
    // Odd, so that it is never the address of anything that needs alignment.
    next_ += 16;
    objects_.emplace(next_ | 1, std::move(object));
    return reinterpret_cast<Handle>(next_ | 1);
  }

  std::shared_ptr<Object> find(Handle handle) const {
    const auto number = reinterpret_cast<std::uintptr_t>(handle);
    const std::shared_lock lock(mutex_);
    const auto found = objects_.find(number);
    if (found == objects_.end()) throw_unknown(number);
    return found->second;
  }

  // The object lives on while a call that found it before still runs.
  void remove(Handle handle) {
    std::shared_ptr<Object> last;
    const auto number = reinterpret_cast<std::uintptr_t>(handle);
    const std::unique_lock lock(mutex_);
    const auto found = objects_.find(number);
    if (found == objects_.end()) throw_unknown(number);
    last = std::move(found->second);
    objects_.erase(found);
  }

  // In a forked child; no other thread was in add() or remove().
  void renew_lock() { mutex_.renew(); }

 private:
  [[noreturn]] void throw_unknown(std::uintptr_t number) const {
    if (number == 0) throw_bad_input("the {} handle is null; fc_{}_create makes one", kind_, kind_);
    throw_bad_input("{:#x} is no open {}: it was closed, or never made; fc_{}_create makes one", number, kind_, kind_);
  }

  const char* kind_;
  std::uintptr_t next_;
  mutable ForkableMutex mutex_;
  std::unordered_map<std::uintptr_t, std::shared_ptr<Object>> objects_;
};

}  // namespace flashcore::api
