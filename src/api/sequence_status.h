#pragma once
// Which sequences of a ragged batch get NaN, and why: the rules of tile/sequence.cuh, in words.

#include <cstdint>
#include <string>
#include <vector>

#include "core/operands.h"
#include "core/problem.h"

namespace flashcore::api {

// In host memory; empty where the problem has none, or the caller gave none.
struct SequenceOperands {
  std::vector<std::int32_t> cu_seqlens_q, cu_seqlens_kv, seqused_kv, seqused_q, block_table;
};

struct BadSequence {
  std::int64_t sequence = 0;
  std::string why;  // what was given and what is allowed
};

// In the order of the batch, the first reason of each. Of a paged cache also those that see a page which the pool does
// not have.
std::vector<BadSequence> find_bad_sequences(const Problem& problem, const ProblemLayouts& layouts,
                                            const SequenceOperands& operands);

}  // namespace flashcore::api
