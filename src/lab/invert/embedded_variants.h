#pragma once
#include <map>
#include <string_view>

namespace flashcore {

// What takes the place of functions of ptx/, "no_stores.cuh" -> text. Made by cmake/embed.cmake.
const std::map<std::string_view, std::string_view>& embedded_variants();

}  // namespace flashcore
