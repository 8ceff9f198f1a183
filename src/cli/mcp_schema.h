#pragma once
// The part of JSON Schema that our tools' arguments are described in, and checked by: what is listed is what holds.

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace flashcore::cli::mcp {

// Why `value` does not fit: "arguments.config.block_m is a string, not an integer". Keywords: type, properties,
// required, additionalProperties (false, or a schema), items, enum, maxLength, maxItems, minimum, maximum.
std::optional<std::string> why_not_fitting(const nlohmann::json& value, const nlohmann::json& schema,
                                           const std::string& path);

}  // namespace flashcore::cli::mcp
