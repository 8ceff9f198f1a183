#pragma once
// A family's tunables, seen from outside: names, allowed values, text form. The compile-time struct is the family's
// own (kernels/<family>/config.h); this is what search, JSON and the command line work on.

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace flashcore {

// Values in the order of ConfigSpace::fields().
using ConfigValues = std::vector<int>;

struct Field {
  std::string name;         // e.g. "block_m"
  std::vector<int> values;  // allowed values, in ascending order
};

class ConfigSpace {
 public:
  ConfigSpace() = default;
  explicit ConfigSpace(std::vector<Field> fields) : fields_(std::move(fields)) {}
  const std::vector<Field>& fields() const { return fields_; }
  // Product of the fields' value counts, feasible or not.
  std::uint64_t size() const;
  // The index-th point, 0 <= index < size(), last field fastest.
  ConfigValues at(std::uint64_t index) const;
  // "block_m=64,num_stages=3" over `base`. Unknown key, repeated key, non-integer or value not in the list: Error
  // kBadInput that lists what is allowed. `family` is for the message.
  ConfigValues parse(std::string_view text, const ConfigValues& base, std::string_view family) const;
  std::string print(const ConfigValues& values) const;  // "block_m=64,block_n=64,..." canonical, every field
  nlohmann::json to_json(const ConfigValues& values) const;
  ConfigValues from_json(const nlohmann::json& object, std::string_view family) const;

 private:
  std::vector<Field> fields_;
};

}  // namespace flashcore
