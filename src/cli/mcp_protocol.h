#pragma once
// JSON-RPC 2.0 as the Model Context Protocol uses it: what a line of the client is, and what answers it. Knows no tool.
// https://modelcontextprotocol.io/specification/2025-11-25/basic

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace flashcore::cli::mcp {

// The codes of JSON-RPC, section 5.1.
enum ErrorCode { kParseError = -32700, kInvalidRequest = -32600, kNoSuchMethod = -32601, kInvalidParams = -32602 };

struct Message {
  enum class Kind { kRequest, kNotification, kResponse } kind = Kind::kRequest;
  nlohmann::json id;  // of a request: a string or an integer
  std::string method;
  nlohmann::json params = nlohmann::json::object();
};

// What a line is answered with where it is no message, or a request that cannot be met.
struct ProtocolError {
  nlohmann::json id;  // null where the line has none that can be read
  int code = kInvalidRequest;
  std::string message;
};

// Throws ProtocolError.
Message parse_message(std::string_view line);

nlohmann::json error_response(const ProtocolError& error);
nlohmann::json result_response(const nlohmann::json& id, nlohmann::json result);

// The client's version if it is one of ours, else our latest: then the client decides whether to go on.
std::string negotiated_version(const std::string& asked);

}  // namespace flashcore::cli::mcp
