#include "cli/mcp_protocol.h"

#include <algorithm>
#include <array>

#include "core/error.h"
#include "core/foreign_text.h"
#include "core/json_text.h"

namespace flashcore::cli::mcp {

namespace {

using nlohmann::json;

// Not 2025-03-26, whose servers must take batches: a client of that time is answered with the latest.
constexpr std::array<std::string_view, 3> kVersions = {"2025-11-25", "2025-06-18", "2024-11-05"};

bool is_id(const json& id) { return id.is_string() || id.is_number_integer(); }

}  // namespace

Message parse_message(std::string_view line) {
  json document;
  try {
    document = parse_json(line, "the message");
  } catch (const Error& error) {
    throw ProtocolError{nullptr, kParseError, error.what()};
  }
  if (document.is_array())
    throw ProtocolError{nullptr, kInvalidRequest, "a batch; give one message a line, as from version 2025-06-18 on"};
  if (!document.is_object())
    throw ProtocolError{nullptr, kInvalidRequest,
                        fmt::format("the message is {}, not an object", document.type_name())};
  const bool has_id = document.contains("id");
  const json id = has_id && is_id(document["id"]) ? document["id"] : json();
  const auto refuse = [&](int code, const std::string& why) { throw ProtocolError{id, code, why}; };
  if (document.value("jsonrpc", json()) != "2.0") refuse(kInvalidRequest, "jsonrpc is not \"2.0\"");
  if (!document.contains("method") && (document.contains("result") || document.contains("error"))) {
    Message response;
    response.kind = Message::Kind::kResponse;
    return response;
  }
  if (has_id && id.is_null()) refuse(kInvalidRequest, "the id is neither a string nor an integer");
  if (!document.contains("method") || !document["method"].is_string())
    refuse(kInvalidRequest, "'method' is missing or no text");
  Message message;
  message.kind = has_id ? Message::Kind::kRequest : Message::Kind::kNotification;
  message.id = id;
  message.method = document["method"].get<std::string>();
  if (document.contains("params")) {
    if (document["params"].is_object()) message.params = document["params"];
    else if (has_id) refuse(kInvalidParams, "params is not an object");
  }
  return message;
}

json error_response(const ProtocolError& error) {
  return {{"jsonrpc", "2.0"}, {"id", error.id}, {"error", {{"code", error.code}, {"message", error.message}}}};
}

json result_response(const json& id, json result) {
  return {{"jsonrpc", "2.0"}, {"id", id}, {"result", std::move(result)}};
}

std::string negotiated_version(const std::string& asked) {
  const bool known = std::find(kVersions.begin(), kVersions.end(), asked) != kVersions.end();
  return known ? asked : std::string(kVersions.front());
}

}  // namespace flashcore::cli::mcp
