#pragma once
// The list of families, and a way for tests to add one.

#include <memory>
#include <vector>

#include "kernels/family.h"

namespace flashcore {

// Defined in the file that cmake/families.cmake makes: one of each src/kernels/*/family.cpp.
std::vector<std::unique_ptr<Family>> make_all_families();

// Adds a family for the lifetime of the object. For tests; not thread-safe against readers of the registry.
class ScopedFamily {
 public:
  explicit ScopedFamily(std::unique_ptr<Family> family);
  ~ScopedFamily();
  ScopedFamily(const ScopedFamily&) = delete;
  ScopedFamily& operator=(const ScopedFamily&) = delete;

 private:
  const Family* family_;
};

}  // namespace flashcore
