#include "cli/console.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>

namespace flashcore::cli {

namespace {

constexpr double kBarInterval = 0.1;   // seconds between redraws: more only flickers
constexpr double kLineInterval = 5.0;  // seconds between plain lines: a log is read, not watched
constexpr std::size_t kBarWidth = 28;

std::size_t display_width(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; }));
}

bool looks_numeric(std::string_view text) {
  if (text.empty() || text == "-") return true;
  const std::size_t first = text[0] == '+' || text[0] == '-' || text[0] == '<' ? 1 : 0;
  return first < text.size() && std::isdigit(static_cast<unsigned char>(text[first])) != 0;
}

std::string painted(std::string_view text, Tone tone) {
  switch (tone) {
    case Tone::kGood: return fmt::format("\x1b[32m{}\x1b[0m", text);
    case Tone::kBad: return fmt::format("\x1b[31m{}\x1b[0m", text);
    case Tone::kWarn: return fmt::format("\x1b[33m{}\x1b[0m", text);
    case Tone::kDim: return fmt::format("\x1b[2m{}\x1b[0m", text);
    case Tone::kPlain: break;
  }
  return std::string(text);
}

}  // namespace

Table Table::failures() const {
  Table failed(header_);
  for (const auto& row : rows_) {
    if (std::any_of(row.begin(), row.end(), [](const Cell& cell) { return cell.tone == Tone::kBad; })) failed.add(row);
  }
  return failed;
}

std::string Table::print(bool colour) const {
  const std::size_t columns = header_.size();
  std::vector<std::size_t> width(columns);
  std::vector<bool> right(columns, true);
  for (std::size_t c = 0; c < columns; ++c) {
    width[c] = display_width(header_[c]);
    for (const auto& row : rows_) {
      if (c >= row.size()) continue;
      width[c] = std::max(width[c], display_width(row[c].text));
      right[c] = right[c] && looks_numeric(row[c].text);
    }
  }
  std::string out;
  const auto put = [&](std::size_t c, const std::string& text, Tone tone, bool last) {
    const std::string padding(width[c] - display_width(text), ' ');
    const std::string shown = colour ? painted(text, tone) : text;
    out += right[c] ? padding + shown : (last ? shown : shown + padding);
    out += last ? "\n" : "  ";
  };
  for (std::size_t c = 0; c < columns; ++c) put(c, header_[c], Tone::kDim, c + 1 == columns);
  for (const auto& row : rows_) {
    for (std::size_t c = 0; c < columns; ++c)
      put(c, c < row.size() ? row[c].text : "", c < row.size() ? row[c].tone : Tone::kPlain, c + 1 == columns);
  }
  return out;
}

Console::Console(bool quiet, bool json_on_stdout)
    : stream_(json_on_stdout ? stderr : stdout),
      quiet_(quiet),
      json_on_stdout_(json_on_stdout),
      terminal_(isatty(fileno(stream_)) == 1) {
  const char* no_color = std::getenv("NO_COLOR");
  colour_ = terminal_ && (no_color == nullptr || *no_color == '\0');
}

Console::~Console() { end_progress(); }

void Console::write(const std::string& text) {
  end_progress();
  std::fwrite(text.data(), 1, text.size(), stream_);
  std::fflush(stream_);
}

void Console::table(const Table& table) {
  const Table shown = quiet_ ? table.failures() : table;
  if (!shown.empty() && !(quiet_ && json_on_stdout_)) write(shown.print(colour_));
}

void Console::progress(std::int64_t done, std::int64_t total, std::string_view what) {
  if (quiet_) return;
  const auto now = std::chrono::steady_clock::now();
  const bool finished = total > 0 && done >= total;
  const double since = std::chrono::duration<double>(now - last_progress_).count();
  if (since < (terminal_ ? kBarInterval : kLineInterval) && !finished) return;
  last_progress_ = now;
  const std::string count = total > 0 ? fmt::format("{}/{}", done, total) : fmt::format("{}", done);
  if (!terminal_) {
    fmt::print(stream_, "{}  {}\n", count, what);
    std::fflush(stream_);
    return;
  }
  const std::size_t filled =
      total > 0 ? static_cast<std::size_t>(done * static_cast<std::int64_t>(kBarWidth) / total) : 0;
  const std::string bar = std::string(filled, '#') + std::string(kBarWidth - std::min(filled, kBarWidth), '.');
  fmt::print(stream_, "\r\x1b[K[{}] {}  {}", bar, count, shorten(what, 70));
  std::fflush(stream_);
  bar_shown_ = true;
}

void Console::end_progress() {
  if (!bar_shown_) return;
  bar_shown_ = false;
  fmt::print(stream_, "\r\x1b[K");
  std::fflush(stream_);
}

std::string Console::paint(std::string_view text, Tone tone) const {
  return colour_ ? painted(text, tone) : std::string(text);
}

std::string shorten(std::string_view text, std::size_t width) {
  if (text.size() <= width || width < 5) return std::string(text);
  const std::size_t tail = (width - 3) / 2;
  return fmt::format("{}...{}", text.substr(0, width - 3 - tail), text.substr(text.size() - tail));
}

std::string human_bytes(double bytes) {
  constexpr double kStep = 1024;
  if (bytes < kStep) return fmt::format("{:.0f} B", bytes);
  if (bytes < kStep * kStep) return fmt::format("{:.1f} KiB", bytes / kStep);
  if (bytes < kStep * kStep * kStep) return fmt::format("{:.1f} MiB", bytes / (kStep * kStep));
  return fmt::format("{:.1f} GiB", bytes / (kStep * kStep * kStep));
}

std::string human_time_us(double time_us) {
  if (time_us < 1e3) return fmt::format("{:.2f} us", time_us);
  if (time_us < 1e6) return fmt::format("{:.2f} ms", time_us / 1e3);
  return fmt::format("{:.2f} s", time_us / 1e6);
}

}  // namespace flashcore::cli
