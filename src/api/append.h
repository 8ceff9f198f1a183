#pragma once
// Appending as the API's user sees it: a kernel made ready on a device, launched with any sizes.

#include <memory>

#include "api/context.h"
#include "flashcore/flashcore.h"
#include "kernels/append/append.h"

namespace flashcore::api {

class Append {
 public:
  // Error kBadInput for a kind that there is none of.
  Append(std::shared_ptr<Context> context, const fc_append_kind* given);

  // Error kBadInput before anything is launched. Takes no lock on a GPU.
  void launch(const fc_append_operands* given, void* stream) const;
  const Context& context() const { return *context_; }

 private:
  std::shared_ptr<Context> context_;
  append::Kind kind_;
  std::shared_ptr<Module> module_;  // none on a CPU
};

}  // namespace flashcore::api
