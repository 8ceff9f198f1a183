#include "cli/console.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>

namespace flashcore::cli {

namespace {

constexpr double kBarInterval = 0.1;   // seconds between redraws: more only flickers
constexpr double kLineInterval = 5.0;  // seconds between plain lines: a log is read, not watched
constexpr std::size_t kBarWidth = 28;
constexpr std::size_t kLeastBar = 8;  // a shorter one shows nothing

bool looks_numeric(std::string_view text) {
  if (text.empty() || text == "-") return true;
  const std::size_t first = text[0] == '+' || text[0] == '-' || text[0] == '<' ? 1 : 0;
  return first < text.size() && std::isdigit(static_cast<unsigned char>(text[first])) != 0;
}

// Our own colours are the only escape sequences that reach the terminal.
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
  for (const Detail& detail : details_) {
    if (detail.tone == Tone::kBad) failed.details_.push_back(detail);
  }
  return failed;
}

void Table::add_detail(std::string title, std::string text, Tone tone, std::string repeat) {
  for (Detail& known : details_) {
    if (known.text == text && known.tone == tone) {
      ++known.times;
      return;
    }
  }
  details_.push_back({std::move(title), std::move(text), tone, std::move(repeat)});
}

std::string Table::print(bool colour) const {
  const std::size_t columns = header_.size();
  std::vector<std::vector<Cell>> rows = rows_;
  for (auto& row : rows) {
    for (Cell& cell : row) cell.text = visible(cell.text);
  }
  std::vector<std::size_t> width(columns);
  std::vector<bool> right(columns, true);
  for (std::size_t c = 0; c < columns; ++c) {
    width[c] = display_width(header_[c]);
    for (const auto& row : rows) {
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
  for (const auto& row : rows) {
    for (std::size_t c = 0; c < columns; ++c)
      put(c, c < row.size() ? row[c].text : "", c < row.size() ? row[c].tone : Tone::kPlain, c + 1 == columns);
  }
  for (const Detail& detail : details_) {
    const std::string title =
        visible(detail.title) + (detail.times > 1 ? fmt::format(" and {} more", detail.times - 1) : "");
    out += fmt::format("\n{}\n  {}\n", colour ? painted(title, detail.tone) : title, visible_block(detail.text, "  "));
    if (!detail.repeat.empty()) out += fmt::format("  to repeat: {}\n", visible(detail.repeat));
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

void Console::block(std::string_view text) {
  if (!quiet_ || !json_on_stdout_) write("  " + visible_block(text, "  ") + "\n");
}

void Console::progress(std::int64_t done, std::int64_t total, std::string_view what) {
  progress(Progress{done, total, -1, {}, std::string(what)});
}

void Console::progress(const Progress& progress) {
  if (quiet_) return;
  const auto now = std::chrono::steady_clock::now();
  const bool finished = progress.total > 0 && progress.done >= progress.total;
  const double since = std::chrono::duration<double>(now - last_progress_).count();
  if (since < (terminal_ ? kBarInterval : kLineInterval) && !finished) return;
  last_progress_ = now;
  if (!terminal_) {
    Progress plain = progress;
    plain.share = -1;
    fmt::print(stream_, "{}\n", progress_line(plain, 0));
    std::fflush(stream_);
    return;
  }
  // Asked each time: a window is resized while a long run goes on. One column less, or some terminals wrap.
  const std::size_t columns = terminal_columns(fileno(stream_));
  fmt::print(stream_, "\r\x1b[K{}", progress_line(progress, columns > 1 ? columns - 1 : 1));
  std::fflush(stream_);
  bar_shown_ = true;
}

void Console::end_progress() {
  if (!bar_shown_) return;
  bar_shown_ = false;
  fmt::print(stream_, "\r\x1b[K");
  std::fflush(stream_);
}

Painted Console::paint(std::string_view text, Tone tone) const {
  const std::string safe = visible(text);
  return {colour_ ? painted(safe, tone) : safe};
}

std::size_t terminal_columns(int descriptor) {
  constexpr int kDefault = 80;
  const char* named = std::getenv("COLUMNS");
  const int wanted = named != nullptr ? std::atoi(named) : 0;
  winsize size{};
  if (wanted > 0) return static_cast<std::size_t>(wanted);
  if (ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return kDefault;
}

// `columns` 0: no bar, and as long as it takes.
std::string progress_line(const Progress& progress, std::size_t columns) {
  std::string line =
      progress.total > 0 ? fmt::format("{}/{}", progress.done, progress.total) : fmt::format("{}", progress.done);
  if (!progress.best.empty()) line += "  best " + visible(progress.best);
  const std::string what = visible(progress.what);
  if (columns == 0) return what.empty() ? line : line + "  " + what;
  const double share = progress.share >= 0  ? progress.share
                       : progress.total > 0 ? static_cast<double>(progress.done) / static_cast<double>(progress.total)
                                            : 0;
  const std::size_t beside = display_width(line) + 3;  // brackets and a blank
  if (beside + kLeastBar <= columns) {
    const std::size_t bar = std::min(kBarWidth, std::max(kLeastBar, (columns - beside) / 2));
    const auto filled = static_cast<std::size_t>(std::clamp(share, 0.0, 1.0) * static_cast<double>(bar));
    line = fmt::format("[{}{}] {}", std::string(filled, '#'), std::string(bar - filled, '.'), line);
  }
  const std::size_t used = display_width(line);
  constexpr std::size_t kLeastText = 6;
  if (!what.empty() && used + 2 + kLeastText <= columns) line += "  " + shorten(what, columns - used - 2);
  return shorten(line, columns);
}

std::vector<std::string> wrapped(std::string_view text, std::size_t columns) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (word.empty()) continue;
    if (!lines.empty() && display_width(lines.back()) + 1 + display_width(word) <= columns)
      lines.back() += " " + std::string(word);
    else lines.emplace_back(word);
  }
  return lines;
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

std::string plural(std::int64_t count, std::string_view singular) {
  return fmt::format("{} {}{}", count, singular, count == 1 ? "" : "s");
}

}  // namespace flashcore::cli
