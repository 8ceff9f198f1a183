#include "lab/harness/device_code_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

namespace flashcore {
namespace {

// From a `static` on to what ends its declarator: ';', '=' or '{'. A function ends with '{' behind its parentheses.
bool declares_kept_variable(std::span<const Token> tokens, std::size_t at) {
  for (std::size_t before = at; before > 0 && at - before < 4; --before) {
    const Token& token = tokens[before - 1];
    if (token.kind == Token::kSign) break;
    if (token.text == "constexpr" || token.text == "consteval") return false;
  }
  bool parentheses = false;
  int depth = 0;
  for (std::size_t i = at + 1; i < tokens.size(); ++i) {
    const std::string& t = tokens[i].text;
    if (t == "constexpr" || t == "consteval" || t == "__shared__") return false;
    if (tokens[i].kind != Token::kSign) continue;
    if (t == "(") ++depth, parentheses = true;
    if (t == ")") --depth;
    if (depth > 0) continue;
    if (t == "{") return !parentheses;
    if (t == ";" || t == "=") return true;
  }
  return true;
}

bool is_run_time_call(const std::string& word) {
  const auto followed_by_capital = [&](std::string_view prefix) {
    return word.starts_with(prefix) && word.size() > prefix.size() && word[prefix.size()] >= 'A' &&
           word[prefix.size()] <= 'Z';
  };
  constexpr std::array<std::string_view, 9> kDriver = {"cuCtx",   "cuStream", "cuMem",    "cuLaunch", "cuGraph",
                                                       "cuEvent", "cuModule", "cuDevice", "cuFunc"};
  return followed_by_capital("cuda") || std::any_of(kDriver.begin(), kDriver.end(), followed_by_capital);
}

// Of the text of an asm statement.
std::string_view persistence_in(const std::string& text) {
  constexpr std::array<std::string_view, 3> kWords = {"evict_last", "createpolicy", "applypriority"};
  for (const std::string_view word : kWords)
    if (text.find(word) != std::string::npos) return word;
  return "";
}

}  // namespace

std::optional<KeptState> find_kept_state(std::span<const Token> tokens) {
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const Token& token = tokens[i];
    if (token.kind == Token::kText) {
      if (const std::string_view word = persistence_in(token.text); !word.empty())
        return KeptState{token.line, fmt::format("'{}' keeps lines in L2 beyond the launch, so that the next one finds "
                                                 "its inputs there and no time of it is true",
                                                 word)};
      continue;
    }
    if (token.kind == Token::kWord && is_run_time_call(token.text))
      return KeptState{token.line, fmt::format("'{}' is the CUDA run time's; streams, memory and clocks are the host's",
                                               token.text)};
    if (token.kind == Token::kWord && token.text == "static" && declares_kept_variable(tokens, i))
      return KeptState{token.line,
                       "a static variable that is not constexpr keeps its value from launch to launch, and a launch "
                       "must compute from its inputs alone"};
    const auto is_less = [&](std::size_t at) { return at < tokens.size() && tokens[at].text == "<"; };
    if (is_less(i) && is_less(i + 1) && is_less(i + 2))
      return KeptState{token.line, "'<<<' starts another kernel, outside of the launch that is judged and timed"};
  }
  return std::nullopt;
}

}  // namespace flashcore
