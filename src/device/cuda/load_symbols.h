#pragma once
// Fills a table of function pointers from a library.

#include <string>

#include "device/cuda/dynamic_library.h"

namespace flashcore::cuda {

class SymbolLoader {
 public:
  explicit SymbolLoader(const DynamicLibrary& library) : library_(library) {}

  template <class Function>
  void need(const char* name, Function*& pointer) {
    want(name, pointer);
    if (!pointer) missing_ += (missing_.empty() ? library_.path() + " lacks " : ", ") + std::string(name);
  }
  // A function that newer libraries have; null where it is absent.
  template <class Function>
  void want(const char* name, Function*& pointer) {
    pointer = reinterpret_cast<Function*>(library_.symbol(name));
  }
  const std::string& missing() const { return missing_; }  // empty: everything needed is there

 private:
  const DynamicLibrary& library_;
  std::string missing_;
};

}  // namespace flashcore::cuda
