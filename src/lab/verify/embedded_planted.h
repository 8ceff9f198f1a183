#pragma once
#include <map>
#include <string_view>

namespace flashcore {

// tests/planted/gpu.yaml as built in. Made by cmake/embed.cmake.
const std::map<std::string_view, std::string_view>& embedded_planted();

}  // namespace flashcore
