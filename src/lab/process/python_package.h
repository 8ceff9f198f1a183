#pragma once
// What a Python program says when a package that it needs is missing, and where that comes from.

#include <string>
#include <string_view>

namespace flashcore {

// "torch", of "No module named 'torch'". Empty: it said no such thing.
std::string missing_package(std::string_view said);

// "the Python package torch is missing; … gets it; or name a Python that has it with --python".
std::string missing_package_words(const std::string& package, const std::string& python);

}  // namespace flashcore
