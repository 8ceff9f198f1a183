#include "lab/record/machine.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

namespace flashcore {
namespace {

constexpr const char* kSource = "FLASHCORE_SOURCE";
constexpr const char* kVariables[] = {kSource, "FLASHCORE_EMULATOR_SEED", "FLASHCORE_CXX"};

}  // namespace

void to_json(nlohmann::json& j, const MachineReading& m) {
  const auto known = [](double load) { return load >= 0 ? nlohmann::json(load) : nlohmann::json(); };
  j = {{"load_average", {known(m.load_before), known(m.load_after)}}, {"cores", m.cores}, {"variables", m.variables}};
}

void from_json(const nlohmann::json& j, MachineReading& m) {
  const auto load = [](const nlohmann::json& value) { return value.is_null() ? -1 : value.get<double>(); };
  m.load_before = load(j.at("load_average").at(0));
  m.load_after = load(j.at("load_average").at(1));
  j.at("cores").get_to(m.cores);
  j.at("variables").get_to(m.variables);
}

std::string load_words(const std::vector<MachineReading>& readings) {
  double low = -1, high = -1;
  int cores = 0;
  for (const MachineReading& reading : readings) {
    for (const double load : {reading.load_before, reading.load_after}) {
      if (load < 0) continue;
      low = low < 0 ? load : std::min(low, load);
      high = std::max(high, load);
    }
    cores = std::max(cores, reading.cores);
  }
  if (high < 0) return "";
  return fmt::format("load average {:.1f} to {:.1f}{}", low, high, cores > 0 ? fmt::format(" on {} cores", cores) : "");
}

double read_load_average() {
  double load = 0;
  return getloadavg(&load, 1) == 1 ? load : -1;
}

std::map<std::string, std::string> repro_variables() {
  std::map<std::string, std::string> set;
  for (const char* name : kVariables) {
    const char* value = std::getenv(name);
    if (value == nullptr || *value == '\0') continue;
    std::error_code error;
    // Repeated from another folder, a relative path would name another tree.
    const auto absolute = std::filesystem::absolute(value, error);
    set[name] = std::string_view(name) == kSource && !error ? absolute.lexically_normal().string() : value;
  }
  return set;
}

std::string repro_prefix(const std::map<std::string, std::string>& variables, std::string_view device_id) {
  std::string prefix;
  for (const char* name : kVariables) {
    const auto found = variables.find(name);
    if (found == variables.end() || (name != kSource && !device_id.starts_with("emulator"))) continue;
    prefix += fmt::format("{}={} ", name, shell_quote(found->second));
  }
  return prefix;
}

std::string shell_quote(std::string_view text) {
  const auto plain = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || std::string_view("_-+=:,./@%").find(c) != std::string::npos;
  };
  if (!text.empty() && std::all_of(text.begin(), text.end(), plain)) return std::string(text);
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

}  // namespace flashcore
