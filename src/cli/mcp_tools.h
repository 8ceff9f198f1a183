#pragma once
// The tools that agents are offered: what each is called, what it takes, and how it is carried out.

#include <nlohmann/json.hpp>
#include <string>

#include "cli/mcp_child.h"

namespace flashcore::cli::mcp {

// The list of tools/list: name, title, description, inputSchema, annotations.
const nlohmann::json& tool_list();
bool is_tool(const std::string& name);

// Carries a call out. What is wrong with the arguments is an answer with is_error, which an agent can act on.
ToolAnswer call_tool(const std::string& name, const nlohmann::json& arguments, const CallControl& control);

}  // namespace flashcore::cli::mcp
