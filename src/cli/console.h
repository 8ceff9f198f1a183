#pragma once
// What a person sees: lines, aligned tables and progress. Only the command line prints; everything below it returns
// values.

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

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
  bool empty() const { return rows_.empty(); }
  Table failures() const;  // the rows with a cell in Tone::kBad
  std::string print(bool colour) const;

 private:
  std::vector<std::string> header_;
  std::vector<std::vector<Cell>> rows_;
};

// Writes to stdout, or to stderr when stdout carries the JSON. `quiet` leaves the closing summary and what failed.
class Console {
 public:
  Console(bool quiet, bool json_on_stdout);
  ~Console();
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  template <class... Args>
  void line(fmt::format_string<Args...> format, Args&&... args) {
    if (!quiet_) write(fmt::format(format, std::forward<Args>(args)...) + "\n");
  }
  // Said even when quiet: the one line that a script's log should keep. Silent when stdout carries the JSON and quiet
  // is asked.
  template <class... Args>
  void summary(fmt::format_string<Args...> format, Args&&... args) {
    if (!quiet_ || !json_on_stdout_) write(fmt::format(format, std::forward<Args>(args)...) + "\n");
  }
  void table(const Table& table);
  // A bar on a terminal, redrawn in place; elsewhere a plain line at most every few seconds. total 0: not known.
  void progress(std::int64_t done, std::int64_t total, std::string_view what);
  void end_progress();
  std::string paint(std::string_view text, Tone tone) const;

 private:
  void write(const std::string& text);

  std::FILE* stream_;
  bool quiet_, json_on_stdout_, terminal_, colour_;
  bool bar_shown_ = false;
  std::chrono::steady_clock::time_point last_progress_{};
};

// "b1_h8…": at most `width` characters, the middle left out.
std::string shorten(std::string_view text, std::size_t width);
std::string human_bytes(double bytes);
std::string human_time_us(double time_us);

}  // namespace flashcore::cli
