#pragma once
// JSON from outside: files of the user's, lines of other processes.

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace flashcore {

// One JSON document, in time linear in its length. Error kBadInput "<origin>: this is not JSON: <why>" for what the
// grammar refuses, and for what it leaves open and readers disagree on: a key given twice in one object, nesting deeper
// than 100 (printing a document takes stack for each level), a number beyond a double, text that is not UTF-8.
nlohmann::json parse_json(std::string_view text, std::string_view origin);

}  // namespace flashcore
