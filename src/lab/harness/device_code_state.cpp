#include "lab/harness/device_code_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

namespace flashcore {
namespace {

bool is_in_directive(std::span<const Token> tokens, std::size_t at) {
  while (at > 0 && !tokens[at].begins_line) --at;
  return tokens[at].begins_line && tokens[at].text == "#";
}

// Words of a declaration that are no type's name by themselves.
bool is_specifier(const std::string& word) {
  constexpr std::array<std::string_view, 22> kWords = {
      "static",   "inline",   "const",  "volatile", "struct",   "class",   "union",    "enum",
      "typename", "unsigned", "signed", "long",     "short",    "mutable", "register", "auto",
      "decltype", "alignas",  "sizeof", "typeof",   "noexcept", "requires"};
  return word.starts_with("FC_") || word.starts_with("__") ||
         std::find(kWords.begin(), kWords.end(), word) != kWords.end();
}
bool is_type_word(const std::string& word) {
  constexpr std::array<std::string_view, 11> kWords = {"int",  "float", "double", "bool",     "char", "void",
                                                       "long", "short", "signed", "unsigned", "auto"};
  return std::find(kWords.begin(), kWords.end(), word) != kWords.end();
}

// "T name(...)" or "T name(...) noexcept" from `begin` to `end`, the ';' of a static member's declaration. In a class
// no initialiser is in parentheses, so that this is a function; "T (name)", "T (*name)(...)" and "T name[...]" are not.
bool declares_function(std::span<const Token> tokens, std::size_t begin, std::size_t end) {
  const auto is = [&](std::size_t at, std::string_view text) { return tokens[at].text == text; };
  if (end > begin + 2 && is(end - 1, "noexcept")) --end;
  if (end < begin + 4 || !is(end - 1, ")")) return false;
  std::size_t open = end - 1;
  for (int depth = 0; open > begin; --open) {
    depth += is(open, ")") ? 1 : is(open, "(") ? -1 : 0;
    if (depth == 0) break;
  }
  if (!is(open, "(") || open < begin + 2) return false;
  const Token &name = tokens[open - 1], &before = tokens[open - 2];
  if (name.kind != Token::kWord || is_specifier(name.text) || is_type_word(name.text)) return false;
  const bool type_before = before.kind == Token::kWord ? !is_specifier(before.text) || is_type_word(before.text)
                                                       : before.text == "*" || before.text == "&" || before.text == ">";
  if (!type_before) return false;
  // One declarator alone: a comma outside of template arguments begins another, which may be a variable.
  int angles = 0;
  for (std::size_t i = begin; i + 1 < open; ++i) {
    angles += is(i, "<") ? 1 : is(i, ">") ? -1 : 0;
    if (is(i, "(") || is(i, "[") || is(i, "{") || (is(i, ",") && angles <= 0)) return false;
  }
  return true;
}

// Whether what a '{' opens is a class's body: "struct S", "template <...> class T final : B", behind "public:" too.
bool opens_class(std::span<const Token> tokens, std::size_t brace) {
  std::size_t begin = brace;
  const auto ends_statement = [&](const Token& t) { return t.text == ";" || t.text == "{" || t.text == "}"; };
  while (begin > 0 && !is_in_directive(tokens, begin - 1) && !ends_statement(tokens[begin - 1])) --begin;
  // Behind a directive nobody knows what went before: "void f()" and "#pragma unroll" and "struct S {".
  if (begin > 0 && is_in_directive(tokens, begin - 1)) {
    std::size_t before = begin;
    while (before > 0 && is_in_directive(tokens, before - 1)) --before;
    if (before > 0 && !ends_statement(tokens[before - 1])) return false;
  }
  const auto is = [&](std::string_view text) { return begin < brace && tokens[begin].text == text; };
  if (is("public") || is("private") || is("protected")) begin += 2;
  while (is("template")) {
    int depth = 0;
    for (++begin; begin < brace; ++begin) {
      if (is("(")) return false;
      if (is("<")) ++depth;
      if (is(">") && --depth == 0) break;
    }
    ++begin;
  }
  if (!is("struct") && !is("class") && !is("union")) return false;
  for (std::size_t i = begin; i < brace; ++i)
    if (tokens[i].text == "=" || tokens[i].text == "[" ||
        (tokens[i].text == "(" && tokens[i - 1].text != "alignas" && tokens[i - 1].text != "__align__"))
      return false;
  return true;
}

// Whether the '{' at `brace` opens the body of a function that is declared from `begin` on: behind its parameters there
// may be "noexcept" and "-> T". Of "decltype(0) x{", "x[sizeof(int)]{" and "int (x){" the parentheses are no
// parameters.
bool opens_function(std::span<const Token> tokens, std::size_t begin, std::size_t brace) {
  std::size_t end = brace;
  while (end > begin && tokens[end - 1].text != ")") --end;
  return declares_function(tokens, begin, end);
}

// From a `static` on to what ends its declarator: ';', '=' or '{'. A function ends with '{' behind its parentheses.
bool declares_kept_variable(std::span<const Token> tokens, std::size_t at, bool in_class) {
  for (std::size_t before = at; before > 0 && at - before < 4; --before) {
    const Token& token = tokens[before - 1];
    if (token.kind == Token::kSign || is_in_directive(tokens, before - 1)) break;
    if (token.text == "constexpr" || token.text == "consteval") return false;
  }
  bool specifiers = true;
  int depth = 0;
  for (std::size_t i = at + 1; i < tokens.size(); ++i) {
    const std::string& t = tokens[i].text;
    const bool exempts = t == "constexpr" || t == "consteval" || t == "__shared__";
    if (specifiers && exempts) return false;
    if (tokens[i].kind != Token::kSign) continue;
    if (t == "#") return true;  // what a compiler sees of it is not known
    // Behind the declarator's first sign, such words are of a lambda in it.
    if (t != "::") specifiers = false;
    if (t == "(") ++depth;
    if (t == ")") --depth;
    if (depth > 0) continue;
    if (t == "{") return !opens_function(tokens, at + 1, i);
    if (t == ";") return !(in_class && declares_function(tokens, at + 1, i));
    if (t == "=") return true;
  }
  return true;
}

// A constexpr reference that keeps a temporary alive: "constexpr T&& x = {}", "constexpr T (&&x)[8] = {}". The
// temporary is a variable that may change and outlives the launch. Of a function's parameters, and of what follows '=',
// && is free.
bool keeps_temporary(std::span<const Token> tokens, std::size_t at) {
  if (at > 0 && tokens[at - 1].text == "if") return false;
  int depth = 0;
  for (std::size_t i = at + 1; i < tokens.size(); ++i) {
    const std::string& t = tokens[i].text;
    if (t == "(" || t == "[") ++depth;
    if (t == ")" || t == "]") --depth;
    if (depth < 0 || t == ";" || t == "=" || t == "{") return false;
    const bool both = t == "&&" || (t == "&" && i + 1 < tokens.size() && tokens[i + 1].text == "&");
    if (both && (depth == 0 || tokens[i - 1].text == "(")) return true;
  }
  return false;
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

// Of the texts of an asm statement.
std::string_view persistence_in(const std::string& text) {
  constexpr std::array<std::string_view, 4> kWords = {"evict_last", "createpolicy", "applypriority", "cache_hint"};
  for (const std::string_view word : kWords)
    if (text.find(word) != std::string::npos) return word;
  return "";
}

bool has_unread_escape(const std::string& text) {
  for (std::size_t at = text.find('\\'); at != std::string::npos; at = text.find('\\', at + 2))
    if (at + 1 == text.size() || (text[at + 1] != 'n' && text[at + 1] != 't')) return true;
  return false;
}

// The texts of the asm statement whose word is at `at`, put together as the compiler does.
std::optional<KeptState> find_persistence(std::span<const Token> tokens, std::size_t at) {
  std::string joined;
  int depth = 0;
  for (std::size_t i = at + 1; i < tokens.size(); ++i) {
    const Token& token = tokens[i];
    if (token.kind == Token::kSign) {
      if (token.text == "(") ++depth;
      if (token.text == ")" && --depth == 0) break;
      if (token.text == "#" && token.begins_line) return KeptState{token.line, "a directive in an asm statement"};
      if (token.text == ";" && depth == 0) break;
    }
    if (token.kind != Token::kText || token.text.size() < 2) continue;
    joined += token.text.substr(1, token.text.size() - 2);
    if (has_unread_escape(token.text))
      return KeptState{token.line, "an escape in an asm statement other than \\n and \\t; write the character"};
  }
  if (const std::string_view word = persistence_in(joined); !word.empty())
    return KeptState{tokens[at].line, fmt::format("'{}' keeps lines in L2 beyond the launch, so that the next one "
                                                  "finds its inputs there and no time of it is true",
                                                  word)};
  return std::nullopt;
}

}  // namespace

std::optional<KeptState> find_kept_state(std::span<const Token> tokens) {
  std::vector<bool> class_scopes;  // of the braces that are open
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const Token& token = tokens[i];
    if (token.kind == Token::kText) continue;
    if (token.text == "{" && !is_in_directive(tokens, i)) class_scopes.push_back(opens_class(tokens, i));
    if (token.text == "}" && !class_scopes.empty() && !is_in_directive(tokens, i)) class_scopes.pop_back();
    if (token.kind == Token::kWord && (token.text == "asm" || token.text == "__asm__" || token.text == "__asm"))
      if (auto kept = find_persistence(tokens, i)) return kept;
    if (token.kind == Token::kWord && is_run_time_call(token.text))
      return KeptState{token.line, fmt::format("'{}' is the CUDA run time's; streams, memory and clocks are the host's",
                                               token.text)};
    if (token.kind == Token::kWord && token.text == "static" &&
        declares_kept_variable(tokens, i, !class_scopes.empty() && class_scopes.back()))
      return KeptState{token.line,
                       "a static variable that is not constexpr keeps its value from launch to launch, and a launch "
                       "must compute from its inputs alone"};
    if (token.kind == Token::kWord && token.text == "constexpr" && keeps_temporary(tokens, i))
      return KeptState{token.line, "a constexpr reference to a temporary, which keeps its value from launch to launch"};
    const auto is_less = [&](std::size_t at) { return at < tokens.size() && tokens[at].text == "<"; };
    if (is_less(i) && is_less(i + 1) && is_less(i + 2))
      return KeptState{token.line, "'<<<' starts another kernel, outside of the launch that is judged and timed"};
  }
  return std::nullopt;
}

}  // namespace flashcore
