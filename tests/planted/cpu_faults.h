#pragma once
// CPU candidates with planted faults that need more than a change of arithmetic: they keep results, addresses or
// counts between launches, or go on working after them. Each is an honest family (fake_none) in a dishonest wrapper.

#include <memory>
#include <vector>

#include "kernels/registry.h"

namespace flashcore::test {

// "planted_skipped_batch", "planted_stale_output", ... for the life of the object; what candidates in
// tests/planted/cpu.yaml name.
class PlantedFamilies {
 public:
  PlantedFamilies();

 private:
  std::vector<std::unique_ptr<ScopedFamily>> families_;
};

// The row that planted_skipped_rows leaves out.
inline constexpr int kSkippedRow = 103;

}  // namespace flashcore::test
