#pragma once
// What a person sees: lines, aligned tables and progress. Only the command line prints; everything below it returns
// values. Text is untrusted (names come from suites and stores, messages from compilers and candidates): whatever is
// printed goes through core/visible_text.h, so that no escape sequence reaches a terminal but the Console's own
// colours.

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/visible_text.h"

namespace flashcore::cli {

enum class Tone { kPlain, kGood, kBad, kWarn, kDim };

struct Cell {
  std::string text;
  Tone tone = Tone::kPlain;
  Cell(std::string t, Tone c = Tone::kPlain) : text(std::move(t)), tone(c) {}  // NOLINT: cells read as text
  Cell(const char* t, Tone c = Tone::kPlain) : text(t), tone(c) {}             // NOLINT
};

// Columns whose every cell starts with a digit or sign are aligned right.
class Table {
 public:
  explicit Table(std::vector<std::string> header) : header_(std::move(header)) {}
  void add(std::vector<Cell> row) { rows_.push_back(std::move(row)); }
  // Below the rows: what a row has to say at length, a crash report or a compiler's message, and the command that
  // repeats it. Alike texts are printed once.
  void add_detail(std::string title, std::string text, Tone tone = Tone::kBad, std::string repeat = {});
  bool empty() const { return rows_.empty(); }
  Table failures() const;  // the rows with a cell in Tone::kBad, and the details of that tone
  std::string print(bool colour) const;

 private:
  struct Detail {
    std::string title, text;
    Tone tone;
    std::string repeat;
    int times = 1;
  };
  std::vector<std::string> header_;
  std::vector<std::vector<Cell>> rows_;
  std::vector<Detail> details_;
};

// Text in a colour of ours; only Console::paint makes it.
struct Painted {
  std::string text;
};

// How an argument is shown: text without its control characters, on one line.
template <class T>
auto shown(const T& value) {
  if constexpr (std::is_arithmetic_v<T>) return value;
  else if constexpr (std::is_same_v<T, Painted>) return std::string_view(value.text);
  else if constexpr (std::is_convertible_v<const T&, std::string_view>) return visible(value);
  else return visible(fmt::format("{}", T(value)));  // fmt takes views as temporaries only
}
template <class T>
using Shown = decltype(shown(std::declval<const std::remove_cvref_t<T>&>()));

// How far a long task is.
struct Progress {
  std::int64_t done = 0, total = 0;  // total 0: not known
  double share = -1;  // of the whole, where that is bounded by time: fills the bar. Below 0: done / total
  std::string best;   // the best so far, "12.3 us": kept where the rest does not fit
  std::string what;   // in hand
};
// One line of at most `columns` columns: "[####....] 3/12  best 12.3 us  what". Narrow terminals lose the bar first.
std::string progress_line(const Progress& progress, std::size_t columns);
// $COLUMNS, else what the terminal says, else 80.
std::size_t terminal_columns(int descriptor);

// Writes to stdout, or to stderr when stdout carries the JSON. `quiet` leaves the closing summary and what failed.
class Console {
 public:
  Console(bool quiet, bool json_on_stdout);
  ~Console();
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  template <class... Args>
  void line(fmt::format_string<Shown<Args>...> format, const Args&... args) {
    if (!quiet_) write(fmt::format(format, shown(args)...) + "\n");
  }
  // Said even when quiet: the one line that a script's log should keep. Silent when stdout carries the JSON and quiet
  // is asked.
  template <class... Args>
  void summary(fmt::format_string<Shown<Args>...> format, const Args&... args) {
    if (!quiet_ || !json_on_stdout_) write(fmt::format(format, shown(args)...) + "\n");
  }
  // Text of several lines under a summary, indented: a report, a compiler's log.
  void block(std::string_view text);
  void table(const Table& table);
  // A bar on a terminal, redrawn in place; elsewhere a plain line at most every few seconds. total 0: not known.
  void progress(std::int64_t done, std::int64_t total, std::string_view what);
  void progress(const Progress& progress);
  void end_progress();
  Painted paint(std::string_view text, Tone tone) const;

 private:
  void write(const std::string& text);

  std::FILE* stream_;
  bool quiet_, json_on_stdout_, terminal_, colour_;
  bool bar_shown_ = false;
  std::chrono::steady_clock::time_point last_progress_{};
};

// Lines of at most `columns` columns, cut between words; a longer word has a line of its own.
std::vector<std::string> wrapped(std::string_view text, std::size_t columns);

std::string human_bytes(double bytes);
std::string human_time_us(double time_us);
std::string plural(std::int64_t count, std::string_view singular);  // "1 problem", "2 problems"

}  // namespace flashcore::cli
