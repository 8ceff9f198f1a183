#pragma once
// Quantising as the API's user sees it: kernels made ready on a device, launched with any sizes.

#include <memory>

#include "api/context.h"
#include "flashcore/flashcore.h"
#include "kernels/quantise/quantise.h"

namespace flashcore::api {

class Quantise {
 public:
  // Error kBadInput for a kind that there is none of.
  Quantise(std::shared_ptr<Context> context, const fc_quantize_kind* given);

  // Error kBadInput before anything is launched.
  void launch(const fc_quantize_operands* given, void* stream) const;
  const Context& context() const { return *context_; }

 private:
  std::shared_ptr<Context> context_;
  quantise::Kind kind_;
  std::shared_ptr<Module> module_;  // none on a CPU
};

}  // namespace flashcore::api
