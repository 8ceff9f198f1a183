#pragma once
// Enums as words: in JSON, in stores, on screen. One table per enum says all its words. A word that is not in the table
// is an error that names it: what another version wrote, or what is damaged, is never taken for the first of the enum.

#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "core/error.h"
#include "core/foreign_text.h"

namespace flashcore {

// To be specialised beside the enum:
//   template <> struct WordsOf<Phase> {
//     static constexpr std::string_view what = "phase";  // "phase 'x' is not known; it is one of: ..."
//     static constexpr std::pair<Phase, std::string_view> table[] = {{Phase::kSearch, "search"}, ...};
//   };
template <class Enum>
struct WordsOf;

template <class Enum>
concept Worded = std::is_enum_v<Enum> && requires {
  WordsOf<Enum>::table;
};

// Every value of the table, in its order.
template <Worded Enum>
constexpr auto enum_values() {
  std::array<Enum, std::size(WordsOf<Enum>::table)> values{};
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = WordsOf<Enum>::table[i].first;
  return values;
}

// Whether the table lists the values 0, 1, 2 and so on. An array of one entry for each row of the table can be indexed
// by a value only then.
template <Worded Enum>
constexpr bool is_in_order_of_values() {
  int next = 0;
  for (const Enum value : enum_values<Enum>())
    if (static_cast<int>(value) != next++) return false;
  return true;
}

template <Worded Enum>
std::string_view to_string(Enum value) {
  for (const auto& [known, word] : WordsOf<Enum>::table)
    if (known == value) return word;
  throw_internal("no such {}: {}", WordsOf<Enum>::what, static_cast<int>(value));
}

// The same to be joined with other text.
template <Worded Enum>
std::string word_of(Enum value) {
  return std::string(to_string(value));
}

template <Worded Enum>
Enum parse_word(std::string_view word) {
  std::string known;
  for (const auto& [value, name] : WordsOf<Enum>::table) {
    if (name == word) return value;
    if (!name.empty()) known += (known.empty() ? "" : ", ") + std::string(name);
  }
  throw_bad_input("{} '{}' is not known; it is one of: {}", WordsOf<Enum>::what, excerpt(word), known);
}

template <Worded Enum>
std::ostream& operator<<(std::ostream& out, Enum value) {
  return out << to_string(value);
}

}  // namespace flashcore

template <flashcore::Worded Enum>
struct fmt::formatter<Enum> : fmt::formatter<std::string_view> {
  template <class Context>
  auto format(Enum value, Context& context) const {
    return fmt::formatter<std::string_view>::format(flashcore::to_string(value), context);
  }
};

namespace nlohmann {
template <flashcore::Worded Enum>
struct adl_serializer<Enum> {
  template <class Json>
  static void to_json(Json& j, Enum value) {
    j = std::string(flashcore::to_string(value));
  }
  template <class Json>
  static void from_json(const Json& j, Enum& value) {
    value = flashcore::parse_word<Enum>(j.template get<std::string>());
  }
};
}  // namespace nlohmann
