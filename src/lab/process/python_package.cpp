#include "lab/process/python_package.h"

#include <fmt/format.h>

#include <cctype>

namespace flashcore {

std::string missing_package(std::string_view said) {
  constexpr std::string_view kSign = "No module named ";
  const std::size_t at = said.find(kSign);
  if (at == std::string_view::npos) return "";
  std::string name;
  for (const char c : said.substr(at + kSign.size())) {
    if (c == '\'' && name.empty()) continue;
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '_') break;
    name += c;
  }
  return name;
}

std::string missing_package_words(const std::string& package, const std::string& python) {
  const std::string how = package == "flashcore"
                              ? "`pip wheel . && pip install flashcore-*.whl` in a checkout "
                                "installs it, or PYTHONPATH names its folder python and FLASHCORE_LIBRARY "
                                "its build/libflashcore.so"
                              : fmt::format("`{} -m pip install {}` gets it", python, package);
  return fmt::format("the Python package {} is missing; {}; or name a Python that has it with --python", package, how);
}

}  // namespace flashcore
