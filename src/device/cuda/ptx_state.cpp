#include "device/cuda/ptx_state.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <set>

namespace flashcore::cuda {
namespace {

struct Token {
  std::string_view text;
  bool begins_line = false;
};
using Statement = std::vector<Token>;
using Names = std::set<std::string_view>;

bool is_name_char(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '$'; }
bool is_name(std::string_view text) {
  return is_name_char(text[0]) ? std::isdigit(static_cast<unsigned char>(text[0])) == 0 : text[0] == '%';
}

// Without comments and texts. A directive or a modifier is a token with its dot: "ld.global" is "ld" and ".global".
std::vector<Token> tokens_of(std::string_view ptx) {
  std::vector<Token> tokens;
  bool begins_line = true;
  const auto skip_to = [&](std::string_view end, std::size_t from) {
    const std::size_t at = ptx.find(end, from);
    return at == std::string_view::npos ? ptx.size() : at + end.size();
  };
  for (std::size_t i = 0; i < ptx.size();) {
    const std::string_view rest = ptx.substr(i);
    if (ptx[i] == '\n') begins_line = true;
    if (std::isspace(static_cast<unsigned char>(ptx[i]))) {
      ++i;
    } else if (rest.starts_with("//")) {
      i = std::min(ptx.find('\n', i), ptx.size());
    } else if (rest.starts_with("/*")) {
      i = skip_to("*/", i + 2);
    } else if (ptx[i] == '"') {
      i = skip_to("\"", i + 1);
    } else {
      std::size_t end = i + 1;
      if (is_name_char(ptx[i]) || ptx[i] == '.' || ptx[i] == '%')
        while (end < ptx.size() && is_name_char(ptx[end])) ++end;
      tokens.push_back({ptx.substr(i, end - i), begins_line});
      begins_line = false;
      i = end;
    }
  }
  return tokens;
}

bool ends_with_its_line(std::string_view directive) {
  constexpr std::array<std::string_view, 5> kThose = {".version", ".target", ".address_size", ".file", ".loc"};
  return std::find(kThose.begin(), kThose.end(), directive) != kThose.end();
}

bool begins_function(const Statement& statement) {
  return std::any_of(statement.begin(), statement.end(),
                     [](const Token& t) { return t.text == ".entry" || t.text == ".func"; });
}

// What ends with ';', and the heads of functions. Braces around blocks are left out; those of an initialiser or of a
// vector of registers belong to their statement.
std::vector<Statement> statements_of(const std::vector<Token>& tokens) {
  std::vector<Statement> statements;
  Statement now;
  const auto finish = [&] {
    if (!now.empty()) statements.push_back(std::move(now));
    now.clear();
  };
  for (const Token& token : tokens) {
    if (token.begins_line && !now.empty() && ends_with_its_line(now[0].text)) finish();
    const bool is_brace = token.text == "{" || token.text == "}";
    if (token.text == ";") {
      finish();
    } else if (is_brace && (now.empty() || begins_function(now))) {
      finish();
    } else if (token.text == ":" && now.size() == 1) {
      now.clear();  // a label
    } else {
      now.push_back(token);
    }
  }
  finish();
  return statements;
}

// ".visible .global .align 4 .u32 name[2] = {...}, other". Empty: it declares nothing in global memory.
std::vector<std::size_t> declared_at(const Statement& statement) {
  const auto links = [](std::string_view t) {
    return t == ".visible" || t == ".weak" || t == ".extern" || t == ".common";
  };
  std::size_t i = 0;
  while (i < statement.size() && links(statement[i].text)) ++i;
  std::vector<std::size_t> names;
  if (i == statement.size() || statement[i].text != ".global") return names;
  int depth = 0;
  for (bool wanted = true; i < statement.size(); ++i) {
    const std::string_view t = statement[i].text;
    depth += t == "{" || t == "(" || t == "[" ? 1 : t == "}" || t == ")" || t == "]" ? -1 : 0;
    if (t == "," && depth == 0) wanted = true;
    if (!wanted || depth > 0 || !is_name(t)) continue;
    names.push_back(i);
    wanted = false;
  }
  return names;
}

enum class Use {
  kLoads,     // reads what the address points to, or compares it
  kComputes,  // its first operand becomes an address into the same variable
  kOther,
};

Use use_of(std::string_view opcode) {
  constexpr std::array<std::string_view, 4> kLoading = {"ld", "ldu", "prefetch", "setp"};
  constexpr std::array<std::string_view, 13> kComputing = {"mov",  "add", "sub", "mul", "mad", "cvta", "cvt",
                                                           "selp", "shl", "and", "or",  "xor", "lop3"};
  if (std::find(kLoading.begin(), kLoading.end(), opcode) != kLoading.end()) return Use::kLoads;
  if (std::find(kComputing.begin(), kComputing.end(), opcode) != kComputing.end()) return Use::kComputes;
  return Use::kOther;
}

// The registers of one function that hold addresses into variables, whichever instruction put them there.
class Addresses {
 public:
  Addresses(const Names& variables, Names& kept) : variables_(variables), kept_(kept) {}

  // Whether it told anything new.
  bool take(const Statement& statement) {
    std::size_t opcode = 0;
    if (statement[0].text == "@") opcode = statement.size() > 1 && statement[1].text == "!" ? 3 : 2;
    if (opcode >= statement.size()) return false;
    std::size_t operands = opcode + 1;
    while (operands < statement.size() && statement[operands].text[0] == '.') ++operands;
    const std::size_t sources = end_of_first(statement, operands);
    Names pointed;
    for (std::size_t i = operands; i < statement.size(); ++i) add_pointed(statement[i].text, pointed);
    if (pointed.empty()) return false;
    const Use use = use_of(statement[opcode].text);
    if (use == Use::kLoads) return false;
    if (use == Use::kOther) return add(kept_, pointed);
    bool changed = false;
    for (std::size_t i = operands; i < sources; ++i)
      if (is_name(statement[i].text)) changed = add(of_register_[statement[i].text], pointed) || changed;
    return changed;
  }

 private:
  static std::size_t end_of_first(const Statement& statement, std::size_t at) {
    for (int depth = 0; at < statement.size(); ++at) {
      const std::string_view t = statement[at].text;
      depth += t == "{" ? 1 : t == "}" ? -1 : 0;
      if (t == "," && depth == 0) break;
    }
    return at;
  }
  void add_pointed(std::string_view name, Names& pointed) const {
    if (variables_.contains(name)) pointed.insert(name);
    if (const auto of = of_register_.find(name); of != of_register_.end())
      pointed.insert(of->second.begin(), of->second.end());
  }
  static bool add(Names& to, const Names& more) {
    const std::size_t before = to.size();
    to.insert(more.begin(), more.end());
    return to.size() > before;
  }

  const Names& variables_;
  Names& kept_;
  std::map<std::string_view, Names> of_register_;
};

}  // namespace

std::vector<std::string> find_kept_variables(std::string_view ptx) {
  const std::vector<Token> tokens = tokens_of(ptx);
  const std::vector<Statement> statements = statements_of(tokens);
  Names variables, kept;
  for (const Statement& statement : statements)
    for (const std::size_t at : declared_at(statement)) variables.insert(statement[at].text);
  if (variables.empty()) return {};
  // Directives of a preprocessor, which inline assembly could bring, would give the names other names.
  if (std::any_of(tokens.begin(), tokens.end(), [](const Token& t) { return t.text == "#"; }))
    return {variables.begin(), variables.end()};

  const auto is_instruction = [](const Statement& s) { return s[0].text[0] != '.'; };
  for (auto begin = statements.begin(); begin != statements.end();) {
    const auto end = std::find_if(begin + 1, statements.end(), begins_function);
    Addresses addresses(variables, kept);
    // Until nothing is new: a loop uses an address above the place that computes it.
    for (bool changed = true; changed;) {
      changed = false;
      for (auto s = begin; s != end; ++s)
        if (is_instruction(*s)) changed = addresses.take(*s) || changed;
    }
    begin = end;
  }
  // An address in an initialiser is one that code finds in memory.
  for (const Statement& statement : statements) {
    if (is_instruction(statement)) continue;
    const std::vector<std::size_t> own = declared_at(statement);
    for (std::size_t i = 0; i < statement.size(); ++i)
      if (std::find(own.begin(), own.end(), i) == own.end() && variables.contains(statement[i].text))
        kept.insert(statement[i].text);
  }
  return {kept.begin(), kept.end()};
}

}  // namespace flashcore::cuda
