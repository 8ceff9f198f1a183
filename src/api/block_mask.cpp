#include "api/block_mask.h"

#include <optional>
#include <string>

#include "core/error.h"
#include "core/problem_fields.h"

namespace flashcore::api {
namespace {

std::string in_words(const ProblemField& field, const Problem& problem) {
  const FieldValue value = field.get(problem);
  return field.kind == ProblemField::Kind::kText && value != FieldValue() ? fmt::format("'{}'", field_text(value))
                                                                          : field_text(value);
}

// The first field in which two problems differ, with the values of both: "seqlen_kv 300 and 200".
std::optional<std::string> first_difference(const Problem& ours, const Problem& theirs) {
  for (const ProblemField& field : problem_fields())
    if (field.get(ours) != field.get(theirs))
      return fmt::format("{} {} and {}", field.name, in_words(field, ours), in_words(field, theirs));
  return std::nullopt;
}

// Of two plans that cannot read each other's lists.
std::string difference(const Plan& ours, const Plan& theirs) {
  const Problem &a = ours.problem(), &b = theirs.problem();
  // Before its tensors, which the table has first.
  if (a.mask_text != b.mask_text) return fmt::format("mask '{}' and '{}'", a.mask_text, b.mask_text);
  if (const auto field = first_difference(a, b)) return *field;
  if (ours.candidate() != theirs.candidate())
    return fmt::format("the kernels {} and {}", ours.candidate(), theirs.candidate());
  return "their strides or the scale";
}

}  // namespace

BlockMask::BlockMask(std::shared_ptr<const Plan> plan, const Addresses& operands, void* stream)
    : plan_(std::move(plan)) {
  Device& device = context().device();
  if (const std::size_t bytes = plan_->list_bytes(); bytes > 0) {
    if (device.order_of(stream).captured)
      throw_bad_input(
          "the stream is being captured, and the lists of a block mask would be there only after a replay; create it "
          "before the capture, and capture fc_block_mask_update");
    lists_ = device.allocate(bytes);
    // A launch that comes too early, on another stream, is to find no blocks and not any numbers.
    device.fill(lists_->data(), 0, bytes);
    device.synchronize();
  }
  update(operands, stream);
}

// The driver waits for the device's work before it frees memory.
BlockMask::~BlockMask() {
  if (lists_ && captured_) context().keep_for_graphs(std::move(lists_));
}

void BlockMask::update(const Addresses& operands, void* stream) const {
  note_capture(stream);
  plan_->make_lists(operands, stream, lists_ ? lists_->data() : nullptr);
}

void BlockMask::note_capture(void* stream) const {
  if (lists_ && !captured_ && context().device().order_of(stream).captured) captured_ = true;
}

const void* BlockMask::lists_for(const Plan& plan, void* stream) const {
  if (&plan.context() != &context()) {
    const std::string ours = context().info().id, theirs = plan.context().info().id;
    throw_bad_input(
        "block_mask is of {} on {}, and this plan is of {}; make one of this plan with fc_block_mask_create",
        ours == theirs ? "another context" : "a plan", ours, theirs);
  }
  if (plan_->list_key() == plan.list_key()) {
    note_capture(stream);
    return lists_ ? lists_->data() : nullptr;
  }
  throw_bad_input(
      "block_mask's plan and this one differ in {}; make a block mask of this plan with fc_block_mask_create",
      difference(*plan_, plan));
}

}  // namespace flashcore::api
