#include "lab/record/machine.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

namespace flashcore {
namespace {

constexpr const char* kSource = "FLASHCORE_SOURCE";
constexpr const char* kVariables[] = {kSource, "FLASHCORE_EMULATOR_SEED", "FLASHCORE_CXX"};

double most_by_others(const std::vector<MachineReading>& readings) {
  double most = -1;
  for (const MachineReading& reading : readings) most = std::max(most, reading.others_busy);
  return most;
}

std::vector<int> own_cpus() {
  cpu_set_t set;
  std::vector<int> cpus;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  return cpus;
}

std::optional<double> read_busy() {
  std::ifstream file("/proc/stat");
  std::stringstream text;
  text << file.rdbuf();
  return busy_seconds(text.str(), own_cpus(), sysconf(_SC_CLK_TCK));
}

double used_seconds(int who) {
  rusage usage;
  if (getrusage(who, &usage) != 0) return 0;
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

std::vector<std::string> stat_of_all_processes() {
  std::vector<std::string> lines;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    const std::string name = entry.path().filename().string();
    if (!std::isdigit(static_cast<unsigned char>(name[0]))) continue;
    std::ifstream file(entry.path() / "stat");
    std::string line;
    if (std::getline(file, line)) lines.push_back(std::move(line));
  }
  return lines;
}

double clock_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

void to_json(nlohmann::json& j, const MachineReading& m) {
  const auto known = [](double load) { return load >= 0 ? nlohmann::json(load) : nlohmann::json(); };
  j = {{"load_average", {known(m.load_before), known(m.load_after)}},
       {"others_busy", known(m.others_busy)},
       {"cores", m.cores},
       {"variables", m.variables}};
}

void from_json(const nlohmann::json& j, MachineReading& m) {
  const auto load = [](const nlohmann::json& value) { return value.is_null() ? -1 : value.get<double>(); };
  m.load_before = load(j.at("load_average").at(0));
  m.load_after = load(j.at("load_average").at(1));
  if (j.contains("others_busy")) m.others_busy = load(j.at("others_busy"));
  j.at("cores").get_to(m.cores);
  j.at("variables").get_to(m.variables);
}

std::string load_words(const std::vector<MachineReading>& readings) {
  double low = -1, high = -1;
  int cores = 0;
  for (const MachineReading& reading : readings) {
    for (const double load : {reading.load_before, reading.load_after}) {
      if (load < 0) continue;
      low = low < 0 ? load : std::min(low, load);
      high = std::max(high, load);
    }
    cores = std::max(cores, reading.cores);
  }
  if (high < 0) return "";
  const double others = most_by_others(readings);
  return fmt::format("load average {:.1f} to {:.1f}{} (this run included){}", low, high,
                     cores > 0 ? fmt::format(" on {} cores", cores) : "",
                     others >= 0 ? fmt::format(", other programs kept up to {:.1f} cores busy", others) : "");
}

std::string busy_words(const std::vector<MachineReading>& readings) {
  const double others = most_by_others(readings);
  if (others < kBusyCores) return "";
  return fmt::format("the machine was busy: other programs kept up to {:.1f} cores busy while candidates were timed",
                     others);
}

std::optional<double> busy_seconds(std::string_view proc_stat, const std::vector<int>& cpus, long ticks_per_second) {
  // cpuN user nice system idle iowait irq softirq steal guest guest_nice; guests count as users too.
  constexpr int kIdle = 3, kIowait = 4, kSteal = 7;
  double ticks = 0;
  std::size_t found = 0;
  std::istringstream lines{std::string(proc_stat)};
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string name;
    words >> name;
    if (!name.starts_with("cpu") || name.size() == 3) continue;
    const bool ours =
        std::any_of(cpus.begin(), cpus.end(), [&](int cpu) { return name.substr(3) == std::to_string(cpu); });
    if (!ours) continue;
    ++found;
    double value = 0;
    for (int i = 0; i <= kSteal && words >> value; ++i) ticks += i == kIdle || i == kIowait ? 0 : value;
  }
  if (found != cpus.size() || cpus.empty() || ticks_per_second <= 0) return std::nullopt;
  return ticks / static_cast<double>(ticks_per_second);
}

double descendant_seconds(const std::vector<std::string>& stat_lines, int root, long ticks_per_second) {
  struct Process {
    int parent = 0;
    double ticks = 0;
  };
  std::map<int, Process> processes;
  for (const std::string& line : stat_lines) {
    // pid (name) state ppid ... utime stime cutime cstime; a name may hold blanks and brackets.
    const std::size_t after_name = line.rfind(')');
    if (after_name == std::string::npos) continue;
    std::istringstream words(line.substr(after_name + 1));
    Process process;
    std::string skipped;
    words >> skipped >> process.parent;
    for (int i = 0; i < 9; ++i) words >> skipped;
    double ticks = 0;
    for (int i = 0; i < 4 && words >> ticks; ++i) process.ticks += ticks;
    if (words) processes[std::atoi(line.c_str())] = process;
  }
  const auto is_ours = [&](int pid) {
    // Bounded: ids are used again, so what was read one after the other may hold a circle.
    for (std::size_t step = 0; step <= processes.size(); ++step) {
      const auto found = processes.find(pid);
      if (found == processes.end()) return false;
      if (found->second.parent == root) return true;
      pid = found->second.parent;
    }
    return false;
  };
  double ticks = 0;
  for (const auto& [pid, process] : processes) ticks += pid != root && is_ours(pid) ? process.ticks : 0;
  return ticks_per_second > 0 ? ticks / static_cast<double>(ticks_per_second) : 0;
}

double own_seconds() {
  return used_seconds(RUSAGE_SELF) + used_seconds(RUSAGE_CHILDREN) +
         descendant_seconds(stat_of_all_processes(), getpid(), sysconf(_SC_CLK_TCK));
}

LoadMeter::LoadMeter() : load_(read_load_average()), busy_(read_busy()), own_(own_seconds()), at_(clock_seconds()) {}

void LoadMeter::read(MachineReading& reading) const {
  constexpr double kShortest = 0.1;  // the kernel counts in hundredths of a second
  reading.load_before = load_;
  reading.load_after = read_load_average();
  const double seconds = clock_seconds() - at_;
  const std::optional<double> busy = read_busy();
  if (!busy || !busy_ || seconds < kShortest) return;
  reading.others_busy = std::max(0.0, (*busy - *busy_ - (own_seconds() - own_)) / seconds);
}

double read_load_average() {
  double load = 0;
  return getloadavg(&load, 1) == 1 ? load : -1;
}

std::map<std::string, std::string> repro_variables() {
  std::map<std::string, std::string> set;
  for (const char* name : kVariables) {
    const char* value = std::getenv(name);
    if (value == nullptr || *value == '\0') continue;
    std::error_code error;
    // Repeated from another folder, a relative path would name another tree.
    const auto absolute = std::filesystem::absolute(value, error);
    set[name] = std::string_view(name) == kSource && !error ? absolute.lexically_normal().string() : value;
  }
  return set;
}

std::string repro_prefix(const std::map<std::string, std::string>& variables, std::string_view device_id) {
  std::string prefix;
  for (const char* name : kVariables) {
    const auto found = variables.find(name);
    if (found == variables.end() || (name != kSource && !device_id.starts_with("emulator"))) continue;
    prefix += fmt::format("{}={} ", name, shell_quote(found->second));
  }
  return prefix;
}

std::string shell_quote(std::string_view text) {
  const auto plain = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || std::string_view("_-+=:,./@%").find(c) != std::string::npos;
  };
  if (!text.empty() && std::all_of(text.begin(), text.end(), plain)) return std::string(text);
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

bool lowers_clocks(std::string_view throttle_reasons) {
  static constexpr const char* kLowering[] = {"sw_power_cap", "hw_slowdown",    "sw_thermal",
                                              "hw_thermal",   "hw_power_brake", "reliability"};
  return std::any_of(std::begin(kLowering), std::end(kLowering),
                     [&](const char* word) { return throttle_reasons.find(word) != std::string_view::npos; });
}

}  // namespace flashcore
