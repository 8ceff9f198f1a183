#pragma once
#include <map>
#include <string_view>

namespace flashcore {

// results/h200/conformance.json, if it is there. Made by cmake/embed.cmake.
const std::map<std::string_view, std::string_view>& embedded_conformance();

}  // namespace flashcore
