#pragma once
// Block tables from lists of pages, as the API's user sees it: a kernel made ready on a device, launched with any
// sizes.

#include <memory>

#include "api/context.h"
#include "flashcore/flashcore.h"

namespace flashcore::api {

class Csr {
 public:
  explicit Csr(std::shared_ptr<Context> context);

  // Error kBadInput before anything is launched. Takes no lock on a GPU.
  void launch(const fc_csr_operands* given, void* stream) const;
  const Context& context() const { return *context_; }

 private:
  std::shared_ptr<Context> context_;
  std::shared_ptr<Module> module_;  // none on a CPU
};

}  // namespace flashcore::api
