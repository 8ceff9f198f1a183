#include "device/emulator/fiber.h"

#include <sys/mman.h>

#include "core/error.h"

namespace flashcore::emulator {
namespace {

constexpr std::size_t kGuardBytes = 4096;
constexpr std::size_t kSlotBytes = StackPool::kStackBytes + kGuardBytes;

}  // namespace

StackPool::~StackPool() {
  for (const auto& [at, bytes] : mappings_) munmap(at, bytes);
}

void StackPool::reserve(std::size_t count) {
  if (count <= tops_.size()) return;
  const std::size_t missing = count - tops_.size();
  void* memory = mmap(nullptr, missing * kSlotBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  if (memory == MAP_FAILED)
    throw_environment(
        "no memory for the stacks of {} emulated GPU threads; try fewer threads per block or a smaller cluster", count);
  mappings_.emplace_back(memory, missing * kSlotBytes);
  for (std::size_t i = 0; i < missing; ++i) {
    char* bottom = static_cast<char*>(memory) + i * kSlotBytes;
    mprotect(bottom, kGuardBytes, PROT_NONE);
    tops_.push_back(bottom + kSlotBytes);
  }
}

fc::fcontext_t StackPool::make(std::size_t index, void (*entry)(fc::transfer_t)) const {
#if defined(FLASHCORE_SANITIZED) && !defined(__SANITIZE_THREAD__)
  // A fiber that was dropped has left its frames' marks.
  ASAN_UNPOISON_MEMORY_REGION(bottom(index), kStackBytes);
#endif
  return fc::make_fcontext(tops_[index], kStackBytes, entry);
}

}  // namespace flashcore::emulator
