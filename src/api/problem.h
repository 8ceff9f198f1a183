#pragma once
// fc_attention as the caller filled it in, checked and turned into what families take.

#include <optional>
#include <string>
#include <vector>

#include "core/operands.h"
#include "core/problem.h"
#include "flashcore/flashcore.h"

namespace flashcore::api {

struct Request {
  Problem problem;
  ProblemLayouts layouts;
  int alignment = 16;                 // bytes: of every address
  bool is_16b_aligned = false;        // addresses and strides are multiples of 16 bytes
  bool is_broadcast = false;          // an input's stride is 0 along more than one element: a broadcast
  bool has_negative_strides = false;  // a stride is negative
  std::optional<std::string> candidate;
  bool deterministic_batch = false;
  // Of each of Problem::tensors: which of the caller's it is, and the bytes from its first element to its last.
  std::vector<int> tensor_order;
  std::vector<std::int64_t> tensor_bytes;
};

// Error kBadInput naming the field, its value and what is allowed.
Request read_request(const fc_attention* given);
// Error kBadInput on a bad id; leaves alignment and candidate at their defaults.
fc_attention request_of_id(const char* id);
// The same into a caller's struct, as much of it as there is. Error kBadInput also if struct_size is none.
void fill_from_id(const char* id, fc_attention* problem);

}  // namespace flashcore::api
