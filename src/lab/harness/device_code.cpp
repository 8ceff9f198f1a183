#include "lab/harness/device_code.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <span>
#include <vector>

#include "lab/harness/device_code_state.h"
#include "lab/harness/device_code_tokens.h"

namespace flashcore {
namespace {

using Words = std::set<std::string, std::less<>>;
using Line = std::span<const Token>;

struct Refused {
  int line;
  std::string why;
  bool keeps_state = false;
};

// Qualifiers that a kernel's declarations carry. Every other __name is the compiler's or the host's.
const Words kDeviceWords = {"__global__",        "__device__",        "__shared__",       "__constant__",
                            "__launch_bounds__", "__grid_constant__", "__forceinline__",  "__noinline__",
                            "__restrict__",      "__align__",         "__cluster_dims__", "__maxnreg__",
                            "__CUDACC__",        "__CUDACC_RTC__",    "__CUDA_ARCH__",    "__cplusplus"};

// Words with which a source leaves the kernel: the host compiler's own, and functions of the C library that a compiler
// knows without a declaration. Not asm: a GPU's is harmless, and the emulator's compiler is not given the word.
const Words kHostWords = {
    "extern",   "import",       "export",  "std",      "throw",       "try",           "catch",  "new",     "delete",
    "typeid",   "thread_local", "_Pragma", "gnu",      "constructor", "destructor",    "ifunc",  "system",  "popen",
    "fork",     "vfork",        "execl",   "execlp",   "execle",      "execv",         "execvp", "execve",  "execvpe",
    "syscall",  "dlopen",       "dlsym",   "abort",    "_exit",       "_Exit",         "printf", "fprintf", "sprintf",
    "snprintf", "vprintf",      "puts",    "fputs",    "putchar",     "fwrite",        "malloc", "calloc",  "realloc",
    "alloca",   "ptrace",       "mmap",    "mprotect", "socket",      "pthread_create"};

const Words kDirectives = {"include", "define", "undef", "if",     "ifdef", "ifndef",
                           "elif",    "else",   "endif", "pragma", "error"};

bool contains(Line tokens, const Words& words) {
  return std::any_of(tokens.begin(), tokens.end(),
                     [&](const Token& t) { return t.kind == Token::kWord && words.contains(t.text); });
}
bool has_sign(Line tokens, std::string_view sign) {
  return std::any_of(tokens.begin(), tokens.end(),
                     [&](const Token& t) { return t.kind == Token::kSign && t.text == sign; });
}

std::string joined(Line tokens) {
  std::string text;
  for (const Token& token : tokens) text += (text.empty() ? "" : " ") + token.text;
  return text;
}

// The directives of `tokens`, as joined(); the rest, line by line.
struct Lines {
  std::vector<Line> directives;
  std::vector<Token> code;
};
Lines split(const std::vector<Token>& tokens) {
  Lines lines;
  for (std::size_t i = 0; i < tokens.size();) {
    if (!tokens[i].begins_line || tokens[i].text != "#") {
      lines.code.push_back(tokens[i++]);
      continue;
    }
    std::size_t end = i + 1;
    while (end < tokens.size() && !tokens[end].begins_line) ++end;
    lines.directives.emplace_back(tokens.data() + i, end - i);
    i = end;
  }
  return lines;
}

class Checker {
 public:
  Checker(const std::string& path, std::string_view original, const SourceMap& sources)
      : in_ptx_(path.starts_with("ptx/")), sources_(sources) {
    try {
      original_tokens_ = tokens_of(original);
      const Lines lines = split(original_tokens_);
      for (const Line& line : lines.directives) original_directives_.insert(joined(line));
      if (in_ptx_) remember_statements(lines.code);
    } catch (const UnclearSource&) {
      // Of a source tree of the user's own; then it allows nothing.
    }
  }

  void run(std::string_view text) {
    const std::vector<Token> tokens = tokens_of(text);
    for (const Token& token : tokens) check_word(token);
    check_attributes(tokens);
    check_mutable(tokens);
    check_tracks(tokens);
    const Lines lines = split(tokens);
    for (const Line& line : lines.directives) check_directive(line);
    check_branches(tokens);
    check_statements(lines.code);
    if (const auto kept = find_kept_state(tokens)) throw Refused{kept->line, kept->why, true};
  }

 private:
  void check_word(const Token& token) const {
    if (token.kind == Token::kSign && token.text == "##")
      throw Refused{token.line, "'##' makes names that nobody reads"};
    if (token.kind != Token::kWord || in_ptx_) return;
    if (kHostWords.contains(token.text))
      throw Refused{token.line, fmt::format("'{}' is no word of device code", token.text)};
    if (token.text.starts_with("__") && !kDeviceWords.contains(token.text))
      throw Refused{token.line,
                    fmt::format("'{}' is the compiler's own; what a kernel needs of it is in ptx/", token.text)};
    if (token.text.find('$') != std::string::npos) throw Refused{token.line, "'$' in a name"};
  }

  // A constexpr variable with a mutable member is no constant: the compiler keeps it in memory that outlives a launch.
  // Behind a parenthesis the word is a lambda's.
  static void check_mutable(const std::vector<Token>& tokens) {
    for (std::size_t i = 0; i < tokens.size(); ++i)
      if (tokens[i].text == "mutable" && (i == 0 || tokens[i - 1].text != ")"))
        throw Refused{tokens[i].line, "'mutable': a member that changes outlives the launch where its variable does"};
  }

  static void check_attributes(const std::vector<Token>& tokens) {
    const auto opens = [](const Token& t) { return t.kind == Token::kSign && t.text == "["; };
    for (std::size_t i = 1; i < tokens.size(); ++i)
      if (opens(tokens[i - 1]) && opens(tokens[i]))
        throw Refused{tokens[i].line, "'[[': no attributes; any word may be in them"};
  }

  // The one variable of the library that outlives a launch is that of timelines; whatever kernel includes it could
  // count its launches there.
  void check_tracks(const std::vector<Token>& tokens) const {
    const auto is_track = [](const Token& t) { return t.text == "track_places" || t.text == "Tracks"; };
    const auto used = std::find_if(tokens.begin(), tokens.end(), is_track);
    if (used == tokens.end()) return;
    const auto same = [](const Token& a, const Token& b) { return a.text == b.text; };
    if (!std::equal(tokens.begin(), tokens.end(), original_tokens_.begin(), original_tokens_.end(), same))
      throw Refused{used->line,
                    fmt::format("'{}' outlives the launch; what names it stays as the library has it", used->text)};
  }

  // What the library's file of this path declares, which a patch of ptx/ may leave as it is.
  void remember_statements(const std::vector<Token>& code) {
    std::size_t begin = 0;
    for (std::size_t i = 0; i < code.size(); ++i) {
      const std::string& t = code[i].text;
      if (code[i].kind != Token::kSign || (t != ";" && t != "{" && t != "}")) continue;
      original_statements_.insert(joined(without_template(Line(code.data() + begin, i - begin))));
      begin = i + 1;
    }
  }

  void check_directive(Line line) const {
    const int at = line.front().line;
    if (line.size() == 1) return;  // "#" alone does nothing
    const std::string& name = line[1].text;
    if (!kDirectives.contains(name)) throw Refused{at, fmt::format("'#{}' is not used in device code", name)};
    if (name == "include") check_include(line);
    if (name == "pragma") check_pragma(line);
    if ((name == "define" || name == "undef") && !original_directives_.contains(joined(line)))
      throw Refused{at, fmt::format("'#{}': a patch makes no macros; use constexpr and inline functions", name)};
  }

  void check_include(Line line) const {
    const std::string target = joined(line.subspan(2));
    const bool quoted = line.size() == 3 && line[2].kind == Token::kText && target.size() > 2;
    const std::string_view name = quoted ? std::string_view(target).substr(1, target.size() - 2) : std::string_view();
    const auto found = sources_.find(std::string(source_path(name)));
    const bool known = quoted && found != sources_.end() && included_as(found->first) == name;
    if (!known)
      throw Refused{
          line.front().line,
          fmt::format("#include {}: a kernel includes device sources only, as \"kernels/tile/softmax.cuh\"", target)};
  }

  static void check_pragma(Line line) {
    const bool plain =
        line.size() > 2 &&
        ((line.size() == 3 && line[2].text == "once") || line[2].text == "unroll" ||
         (line.size() == 5 && line[2].text == "GCC" && line[3].text == "unroll" && line[4].kind == Token::kNumber));
    if (!plain)
      throw Refused{line.front().line, fmt::format("#{}: of pragmas only once and unroll", joined(line.subspan(1)))};
  }

  // All branches of a conditional are read as one text. That is the text some compiler sees only if each branch closes
  // what it opens.
  static void check_branches(const std::vector<Token>& tokens) {
    std::vector<int> outside;
    int depth = 0;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const Token& token = tokens[i];
      if (token.kind != Token::kSign) continue;
      if (token.text == "(" || token.text == "[" || token.text == "{") ++depth;
      if (token.text == ")" || token.text == "]" || token.text == "}") --depth;
      if (token.text != "#" || !token.begins_line || i + 1 == tokens.size()) continue;
      const std::string& name = tokens[i + 1].text;
      if (name == "if" || name == "ifdef" || name == "ifndef") outside.push_back(depth);
      if (name != "elif" && name != "else" && name != "endif") continue;
      if (outside.empty()) throw Refused{token.line, fmt::format("'#{}' without an #if", name)};
      if (depth != outside.back())
        throw Refused{token.line, "a branch of an #if that does not close the brackets that it opens"};
      if (name == "endif") outside.pop_back();
    }
  }

  // --- what would run when the kernel is loaded ---
  enum class Scope { kNamespace, kClass, kEnum, kOther };

  // Nothing is left of an explicit instantiation ("template struct S<int>;"), whose template is judged where it is.
  static Line without_template(Line statement) {
    while (!statement.empty() && statement[0].text == "template") {
      if (statement.size() < 2 || statement[1].text != "<") return {};
      int depth = 0, parentheses = 0;
      std::size_t i = 1;
      for (; i < statement.size(); ++i) {
        const std::string& t = statement[i].text;
        if (t == "(") ++parentheses;
        if (t == ")") --parentheses;
        if (parentheses > 0) continue;
        if (t == "<") ++depth;
        if (t == ">" && --depth == 0) break;
      }
      // "template <bool B = 1 < 2> int x = 0": where the head ends is not known, and so not what it is of.
      if (i == statement.size()) return statement;
      statement = statement.subspan(i + 1);
    }
    return statement;
  }

  // A declaration that is constexpr itself: what is said of lambdas in its declarator or initialiser does not count.
  // constinit is not enough, for its variable is destroyed at the end.
  static bool is_constant(Line statement) {
    for (const Token& token : statement) {
      if (token.text == "constexpr" || token.text == "consteval") return true;
      if (token.kind == Token::kSign && token.text != "::") return false;
    }
    return false;
  }

  static std::size_t behind_brackets(Line line, std::size_t at, std::string_view open, std::string_view close) {
    int depth = 0;
    for (; at < line.size(); ++at) {
      if (line[at].text == open) ++depth;
      if (line[at].text == close && --depth == 0) return at + 1;
    }
    return at;
  }

  // "struct S", "class alignas(16) S final", "struct S<int> : B", "union"; "struct S s" begins a variable.
  static bool is_class_head(Line plain) {
    const std::string& first = plain[0].text;
    if (first != "struct" && first != "class" && first != "union") return false;
    std::size_t at = 1;
    const auto is = [&](std::string_view text) { return at < plain.size() && plain[at].text == text; };
    while (is("alignas") || is("__align__")) at = behind_brackets(plain, at, "(", ")");
    if (at < plain.size() && plain[at].kind == Token::kWord) ++at;
    if (is("<")) at = behind_brackets(plain, at, "<", ">");
    if (is("final")) ++at;
    return at == plain.size() || is(":");
  }

  void runs_at_load(Line plain) const {
    if (original_statements_.contains(joined(plain))) return;
    // "float f(int);" may be one too: whether int is a type or a value, its name does not say.
    if (has_sign(plain, "(") && !has_assignment(plain))
      throw Refused{plain[0].line,
                    "a declaration without a body that may be a variable, whose initialiser would run outside of any "
                    "kernel: define the function before its first use, or make the variable constexpr"};
    if (contains(plain, {"__device__", "__constant__"}))
      throw Refused{plain[0].line,
                    "global state: a variable of the device that is not constexpr keeps its value from launch to "
                    "launch, and a launch must compute from its inputs alone: keep it in registers or in shared "
                    "memory, or make it constexpr",
                    true};
    throw Refused{plain[0].line,
                  "a variable of a namespace or class that is not constexpr: its initialiser would run outside of any "
                  "kernel"};
  }

  // What opens with this '{'.
  Scope opened(Line statement, Scope around) const {
    if (around == Scope::kOther || around == Scope::kEnum) return Scope::kOther;
    const Line plain = without_template(statement);
    if (plain.empty()) return Scope::kOther;
    const bool is_inline = plain[0].text == "inline" && plain.size() > 1;
    if (plain[is_inline ? 1 : 0].text == "namespace") return Scope::kNamespace;
    // Its name may be missing.
    const bool nameless = plain[0].text == "enum" && (plain.size() == 1 || plain[1].text == ":");
    if (nameless || (plain[0].text == "enum" && is_forward_declaration(plain))) return Scope::kEnum;
    if (is_class_head(plain)) return Scope::kClass;
    if (plain[0].text == "concept") return Scope::kOther;  // requires(T t) { t.x; }
    // A function's body follows its parentheses; anything else in braces initialises a variable.
    const bool function = has_sign(plain, "(") && !has_assignment(plain);
    const bool member_without_static = around == Scope::kClass && !contains(plain, {"static"});
    if (!function && !is_constant(plain) && !member_without_static) runs_at_load(plain);
    return Scope::kOther;
  }

  // '=' outside of parentheses and not of an operator's name or a comparison.
  static bool has_assignment(Line statement) {
    int depth = 0;
    for (std::size_t i = 0; i < statement.size(); ++i) {
      const std::string& t = statement[i].text;
      if (t == "operator") return false;
      if (t == "(" || t == "[") ++depth;
      if (t == ")" || t == "]") --depth;
      if (depth == 0 && t == "=") return true;
    }
    return false;
  }

  // Exactly "struct S", "enum class E" or "enum E : unsigned char". "struct S s" is a variable.
  static bool is_forward_declaration(Line plain) {
    std::size_t at = 1;
    const auto is_word = [&](std::size_t i) { return i < plain.size() && plain[i].kind == Token::kWord; };
    const std::string& first = plain[0].text;
    if (first == "enum") {
      if (is_word(at) && (plain[at].text == "class" || plain[at].text == "struct")) ++at;
    } else if (first != "struct" && first != "class" && first != "union") {
      return false;
    }
    if (!is_word(at)) return false;
    if (++at == plain.size()) return true;
    if (first != "enum" || plain[at].text != ":") return false;
    return at + 1 < plain.size() && std::all_of(plain.begin() + static_cast<std::ptrdiff_t>(at) + 1, plain.end(),
                                                [](const Token& t) { return t.kind == Token::kWord; });
  }

  void check_statement(Line statement, Scope scope) const {
    const Line plain = without_template(statement);
    if (plain.empty() || is_constant(plain)) return;
    static const Words kHarmless = {"using", "typedef", "static_assert", "friend", "namespace", "concept"};
    if (kHarmless.contains(plain[0].text) || is_forward_declaration(plain)) return;
    if (scope == Scope::kNamespace) return runs_at_load(plain);
    // Members that are no variables of the program: those of objects, and functions.
    if (!contains(plain, {"static", "inline"})) return;
    if (has_sign(plain, "(") && !has_assignment(plain)) return;
    runs_at_load(plain);
  }

  void check_statements(const std::vector<Token>& code) const {
    std::vector<Scope> scopes = {Scope::kNamespace};
    std::size_t begin = 0;
    int parentheses = 0;
    for (std::size_t i = 0; i < code.size(); ++i) {
      const std::string& t = code[i].text;
      const Line statement(code.data() + begin, i - begin);
      if (code[i].kind != Token::kSign) continue;
      if (t == "(" || t == "[") ++parentheses;
      if (t == ")" || t == "]") --parentheses;
      if (t == "{") {
        // Inside parentheses only values are in braces.
        const Scope inner = parentheses > 0 ? Scope::kOther : opened(statement, scopes.back());
        scopes.push_back(inner);
        if (inner == Scope::kNamespace || inner == Scope::kClass) begin = i + 1;
      } else if (t == "}") {
        if (scopes.size() == 1) throw Refused{code[i].line, "a '}' without its '{'"};
        const Scope closed = scopes.back();
        scopes.pop_back();
        if (scopes.back() == Scope::kOther) continue;
        // Behind a class only its ';'. What an initialiser's braces end goes on to it; a function's body does not.
        if ((closed == Scope::kClass || closed == Scope::kEnum) && (i + 1 == code.size() || code[i + 1].text != ";"))
          throw Refused{code[i].line, "a variable declared behind its class"};
        const Line plain = without_template(statement);
        const bool is_concept = !plain.empty() && plain[0].text == "concept";
        const bool goes_on = closed == Scope::kOther && i + 1 < code.size() &&
                             (code[i + 1].text == ";" || code[i + 1].text == "," || parentheses > 0 || is_concept);
        if (!goes_on) begin = i + 1;
      } else if (t == ";" && (scopes.back() == Scope::kNamespace || scopes.back() == Scope::kClass) &&
                 parentheses == 0) {
        check_statement(statement, scopes.back());
        begin = i + 1;
      } else if (t == ":" && scopes.back() == Scope::kClass && statement.size() == 1) {
        begin = i + 1;  // public:
      }
    }
    if (scopes.size() != 1 || parentheses != 0)
      throw Refused{code.empty() ? 1 : code.back().line, "brackets that do not match"};
  }

  bool in_ptx_;
  const SourceMap& sources_;
  std::vector<Token> original_tokens_;
  std::set<std::string> original_directives_, original_statements_;
};

}  // namespace

std::optional<DeviceCodeRefusal> refuse_device_code(const std::string& path, std::string_view text,
                                                    std::string_view original, const SourceMap& sources) {
  try {
    Checker(path, original, sources).run(text);
    return std::nullopt;
  } catch (const Refused& refused) {
    return DeviceCodeRefusal{fmt::format("{}:{}: {}", path, refused.line, refused.why), refused.keeps_state};
  } catch (const UnclearSource& unclear) {
    return DeviceCodeRefusal{fmt::format("{}:{}: {}", path, unclear.line, unclear.why)};
  }
}

std::optional<std::string> why_not_device_code(const std::string& path, std::string_view text,
                                               std::string_view original, const SourceMap& sources) {
  const auto refusal = refuse_device_code(path, text, original, sources);
  return refusal ? std::optional(refusal->why) : std::nullopt;
}

}  // namespace flashcore
