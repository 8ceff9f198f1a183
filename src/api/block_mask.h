#pragma once
// Lists of the blocks that a mask shows, as the API's user sees them: made once for a plan, read by many launches.

#include <atomic>
#include <memory>

#include "api/plan.h"

namespace flashcore::api {

// What fc_block_mask_create makes. Empty where the plan's launches make no lists. From any number of threads.
class BlockMask {
 public:
  // Enqueues what makes the lists, of what `operands` hold. Error kBadInput on a captured stream.
  BlockMask(std::shared_ptr<const Plan> plan, const Addresses& operands, void* stream);
  ~BlockMask();
  BlockMask(const BlockMask&) = delete;
  BlockMask& operator=(const BlockMask&) = delete;

  void update(const Addresses& operands, void* stream) const;
  // What a launch of `plan` on that stream reads; null: it makes no lists. Error kBadInput, with what differs, where
  // these are other lists than the plan's.
  const void* lists_for(const Plan& plan, void* stream) const;
  const Plan& plan() const { return *plan_; }
  const Context& context() const { return plan_->context(); }

 private:
  void note_capture(void* stream) const;

  std::shared_ptr<const Plan> plan_;
  std::unique_ptr<Buffer> lists_;  // none if empty
  // A graph has their address: they are kept for it.
  mutable std::atomic<bool> captured_{false};
};

}  // namespace flashcore::api
