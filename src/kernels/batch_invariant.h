#pragma once
// Candidates with which the bits of a row of o and of its log-sum-exp do not depend on what else is in its batch.

#include "core/problem.h"
#include "device/device.h"
#include "kernels/family.h"

namespace flashcore {

// Sequences of up to so many rows, as decoding has, are computed by one candidate, longer ones by another: bits are
// equal among batches whose longest sequence is on the same side.
constexpr std::int64_t kFewInvariantRows = 16;

// What all problems are alike in whose rows have equal bits: heads, head dims, types, masks and scores, and on which
// side of kFewInvariantRows they are. `problem` with one sequence of a set length, and, of a paged one, pages of one
// key. Families choose by this alone what decides the order of a sum.
Problem any_batch_of(const Problem& problem);

// The candidate of those bits: of the families that promise them (Family::batch_invariant_config) the one that dispatch
// likes best for sequences of such lengths. Error kBadInput if none does; if the one that does for other batches does
// not run this one (another kernel would have other bits); and of problems with q of 8 bits or functions of scores, of
// which none is promised.
Choice batch_invariant_choice(const Problem& problem, const DeviceInfo& device);

}  // namespace flashcore
