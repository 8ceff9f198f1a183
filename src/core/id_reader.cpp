#include "core/id_reader.h"

#include <algorithm>
#include <charconv>

#include "core/error.h"
#include "core/foreign_text.h"

namespace flashcore {
std::optional<std::int64_t> IdReader::number(std::string_view prefix) {
  if (!token_.starts_with(prefix)) return std::nullopt;
  const std::string_view digits = token_.substr(prefix.size());
  if (digits.empty() || !std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; })) {
    return std::nullopt;
  }
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc()) fail(fmt::format("the number in '{}' is too large", excerpt(token_)));
  next();
  return value;
}

std::int64_t IdReader::need_number(std::string_view prefix) {
  if (const auto value = number(prefix)) return *value;
  fail(token_.empty() ? fmt::format("'{}<number>' is missing at the end", prefix)
                      : fmt::format("'{}<number>' was expected in place of '{}'", prefix, excerpt(token_)));
}

std::optional<double> IdReader::real(std::string_view prefix) {
  if (!token_.starts_with(prefix)) return std::nullopt;
  const std::string_view number = token_.substr(prefix.size());
  double value = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
  if (error != std::errc() || end != number.data() + number.size() || has_leading_zero(number))
    fail(fmt::format("the {} '{}' is not a number (decimal, without zeros or '+' in front)", prefix, excerpt(number)));
  next();
  return value;
}

bool IdReader::word(std::string_view expected) {
  if (token_ != expected) return false;
  next();
  return true;
}

std::string_view IdReader::take() {
  const std::string_view taken = token_;
  next();
  return taken;
}

void IdReader::need_end() const {
  if (!ended_) fail(fmt::format("'{}' is left over", excerpt(token_)));
}

void IdReader::fail(const std::string& reason) const {
  throw_bad_input("problem id '{}' cannot be read: {}{}{}", excerpt(id_), reason, kFormFollows, form_);
}

void IdReader::next() {
  ended_ = rest_.data() == nullptr;
  const std::size_t end = rest_.find('_');
  token_ = rest_.substr(0, end);
  rest_ = end == std::string_view::npos ? std::string_view() : rest_.substr(end + 1);
}

}  // namespace flashcore
