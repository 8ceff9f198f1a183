#pragma once
// What launches with operands of their own (append, quantise, csr) ask of each tensor before anything is enqueued.

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <limits>

#include "api/context.h"
#include "api/overlap.h"
#include "core/error.h"
#include "core/tensor.h"
#include "flashcore/flashcore.h"

namespace flashcore::api {

// `older`: sizes that callers of older headers have.
template <class Struct>
Struct whole_struct(const Struct* given, Struct initial, const char* name,
                    std::initializer_list<std::size_t> older = {}) {
  if (!given) throw_bad_input("the {} is null; start from {}", name, name);
  std::uint32_t size = 0;
  std::memcpy(&size, given, sizeof(size));
  if (size != sizeof(Struct) && std::find(older.begin(), older.end(), size) == older.end())
    throw_bad_input(
        "{}.struct_size is {}, and this library (ABI version {}) knows {}: start from the INIT macro, or use the "
        "library that belongs to the header",
        name, size, FC_ABI_VERSION, sizeof(Struct));
  std::memcpy(&initial, given, size);
  return initial;
}

// Collects a call's tensors. Every function throws Error kBadInput.
class OperandChecks {
 public:
  explicit OperandChecks(const Context& context) : context_(context) {}

  static constexpr std::int64_t kMostReach = std::int64_t{1} << 56;  // of an axis; offsets are counted in 64 bits

  static std::int64_t within(const char* name, std::int64_t value, std::int64_t least, std::int64_t most);
  static int whole(const char* name, std::int64_t value, std::int64_t least,
                   std::int64_t most = std::numeric_limits<std::int32_t>::max());

  void check_address(const char* name, const void* at, std::int64_t alignment) const;
  // Nothing is asked of a tensor without elements. Written ones have no two rows in one place.
  void tensor(const char* name, const void* at, const TensorLayout& layout, DType dtype, bool written);
  // Elements that lie one after another.
  void array(const char* name, const void* at, std::int64_t count, std::int64_t element_bytes, bool written);
  // Counts of 64 bits that are added to, in the words that kernels take; null where nobody counts.
  unsigned* counts(const char* name, std::uint64_t* at, std::int64_t count, bool wanted);
  void memory(const char* name, const void* at, const Footprint& footprint, bool written);
  // The last one that came is written after all.
  void last_is_written() { tensors_[count_ - 1].written = true; }
  // No output shares memory with another tensor.
  void check_apart() const;

 private:
  struct Tensor {
    const char* name;
    const void* at;
    Footprint footprint;
    bool written;
  };

  const Context& context_;
  std::array<Tensor, 24> tensors_{};
  std::size_t count_ = 0;
};

}  // namespace flashcore::api
