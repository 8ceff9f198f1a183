#include "lab/process/worker_line.h"

#include "core/error.h"
#include "core/json_text.h"
#include "lab/record/trial.h"

namespace flashcore {
namespace {

using nlohmann::json;

json object_or_null(std::string_view line) {
  try {
    json document = parse_json(line, "the worker's line");
    if (document.is_object()) return document;
  } catch (const Error&) {
  }
  return nullptr;
}

std::optional<std::string> text_at(const json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_string()) return std::nullopt;
  return found->get<std::string>();
}

}  // namespace

std::optional<DeviceInfo> parse_worker_hello(std::string_view line) {
  const json hello = object_or_null(line);
  if (hello.is_null()) return std::nullopt;
  if (const auto error = hello.find("error"); error != hello.end()) {
    const auto kind = error->is_object() ? text_at(*error, "kind") : std::nullopt;
    const auto message = error->is_object() ? text_at(*error, "message") : std::nullopt;
    if (!kind || !message) return std::nullopt;
    throw Error(*kind == "bad_input"     ? ErrorKind::kBadInput
                : *kind == "environment" ? ErrorKind::kEnvironment
                                         : ErrorKind::kInternal,
                *message);
  }
  try {
    return hello.at("device").get<DeviceInfo>();
  } catch (const json::exception&) {
    return std::nullopt;
  } catch (const Error&) {  // a device of no kind that we know
    return std::nullopt;
  }
}

WorkerLine parse_worker_line(std::string_view line, std::string_view nonce) {
  using Kind = WorkerLine::Kind;
  json message = object_or_null(line);
  if (message.is_null()) return {};
  if (message.contains("nonce") && !text_at(message, "nonce")) return {};
  if (text_at(message, "nonce").value_or("") != nonce) return {Kind::kUnasked, "", nullptr};
  if (message.contains("stage")) {
    const auto stage = text_at(message, "stage");
    return stage ? WorkerLine{Kind::kStage, *stage, nullptr} : WorkerLine{};
  }
  return {Kind::kMessage, "", std::move(message)};
}

}  // namespace flashcore
