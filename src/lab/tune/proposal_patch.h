#pragma once
// A patch inside of a proposer's answer: files, replacements and further values of config fields, as JSON.

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "lab/harness/patch.h"

namespace flashcore {

// {"name": "...", "files": {"kernel.cuh": "..."}, "replace": [{"file", "from", "to"}], "extend": {"field": [1, 2]}} of
// an answer; none if it has none of the last three. Without a name it is called after its content. Error kBadInput for
// a wrong type or size.
std::optional<Patch> inline_patch(const nlohmann::json& answer, const std::string& family);

}  // namespace flashcore
