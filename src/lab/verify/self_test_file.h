#pragma once
// A file of `flashcore ab --self-test --json`: does what it calls passed pass by the rule as it is now?

#include <nlohmann/json.hpp>
#include <string>

#include "lab/compare/bench.h"

namespace flashcore {

// Of a document of kAaSelfTestSchema (lab/compare/aa.h). Stale: a part that passed by an older rule and would not now.
// Wrong: what the file's own races do not give. Error kBadInput if it cannot be read.
Verification verify_self_test(const nlohmann::json& document, const std::string& origin);

}  // namespace flashcore
