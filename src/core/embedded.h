#pragma once
#include <map>
#include <string_view>

namespace flashcore {

// The suites that ship, "quick.yaml" -> text. Made by cmake/embed.cmake.
const std::map<std::string_view, std::string_view>& embedded_suites();

}  // namespace flashcore
