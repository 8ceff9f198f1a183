#pragma once
// Between a family's compile-time Config and the ConfigValues that search and text work on. One visit of
// Config::fields() makes the space, the values, and the template argument for NVRTC.

#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/config_space.h"
#include "core/error.h"

namespace flashcore {

// A family's Config is an aggregate with
//   template <class Visit> static constexpr void fields(Visit&& visit) {
//     visit("block_m", &Config::block_m, 32, 64, 128);   // name, member, allowed values ascending; in declaration
//     order
//   }
template <class Config>
ConfigSpace space_of() {
  std::vector<Field> fields;
  Config::fields([&](const char* name, auto, auto... values) {
    fields.push_back({name, {static_cast<int>(values)...}});
  });
  return ConfigSpace(std::move(fields));
}

template <class Config>
Config config_from(const ConfigValues& values) {
  Config config{};
  std::size_t index = 0;
  Config::fields([&](const char*, auto member, auto...) {
    FC_CHECK(index < values.size());
    config.*member = static_cast<std::remove_reference_t<decltype(config.*member)>>(values[index++]);
  });
  FC_CHECK(index == values.size());
  return config;
}

template <class Config>
ConfigValues values_of(const Config& config) {
  ConfigValues values;
  Config::fields([&](const char*, auto member, auto...) { values.push_back(static_cast<int>(config.*member)); });
  return values;
}

// "name{64, 64, 4}": a template argument. `name` is the qualified one of Config; a member that is an enum is converted.
template <class Config>
std::string initializer_of(const std::string& name, const ConfigValues& values) {
  std::string text;
  std::size_t index = 0;
  Config::fields([&](const char* field, auto member, auto...) {
    using Member = std::remove_reference_t<decltype(std::declval<Config&>().*member)>;
    const std::string value = std::to_string(values[index++]);
    text += text.empty() ? "{" : ", ";
    text += std::is_enum_v<Member> ? "decltype(" + name + "::" + field + ")(" + value + ")" : value;
  });
  return name + text + "}";
}

}  // namespace flashcore
