#pragma once
// What a proposer answers (docs/tuning.md has the protocol).

#include <optional>
#include <string>
#include <string_view>

#include "lab/harness/patch.h"

namespace flashcore {

struct Proposal {
  std::string candidate;       // text
  std::optional<Patch> patch;  // that it is made from
};

// A line of a proposer: {"candidate": "family:k=v,..."}, or {"family": ..., "config": {...}}; and with a kernel
// "patch": a folder, which is read, or the patch itself (proposal_patch.h). None for {"done": true}. Error kBadInput
// for anything else.
std::optional<Proposal> parse_proposal(std::string_view line);

}  // namespace flashcore
