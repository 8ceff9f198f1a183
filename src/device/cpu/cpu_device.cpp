#include "device/cpu/cpu_device.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cstring>
#include <fstream>
#include <optional>
#include <thread>

#include "core/error.h"
#include "core/parallel.h"
#include "device/cpu/aligned_memory.h"
#include "device/cpu/bf16_units.h"
#include "device/cpu/ceilings.h"
#include "device/cpu/cpu_threads.h"
#include "device/cpu/thread_pool.h"
#include "device/red_zone.h"

namespace flashcore {
namespace {

using Clock = std::chrono::steady_clock;

double elapsed_us(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string model_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("model name")) continue;
    const std::size_t colon = line.find(':');
    if (colon != std::string::npos && colon + 2 < line.size()) return line.substr(colon + 2);
  }
  return "CPU";
}

// What decides how fast a CPU multiplies.
std::string_view instructions() {
  if (has_bf16(Bf16Unit::kTiles)) return "AMX";
  if (has_bf16(Bf16Unit::kDots)) return "AVX512-BF16";
  const std::string_view target = simd_target_name();
  return target.starts_with("AVX3") ? "AVX512" : target;  // Highway's word
}

// Bytes of the largest data or unified cache that the first core sees.
std::int64_t last_level_cache_bytes() {
  std::int64_t largest = 0;
  for (int index = 0; index < 8; ++index) {
    const std::string folder = fmt::format("/sys/devices/system/cpu/cpu0/cache/index{}/", index);
    const std::string size = first_line(folder + "size");
    if (size.empty() || !std::isdigit(static_cast<unsigned char>(size[0])) ||
        first_line(folder + "type") == "Instruction")
      continue;
    const std::int64_t unit = size.back() == 'K' ? 1 << 10 : size.back() == 'M' ? 1 << 20 : 1;
    largest = std::max(largest, static_cast<std::int64_t>(std::stoll(size)) * unit);
  }
  // Containers may hide sysfs. 32 MB is a common size; it only sets how much memory the cold regime sweeps.
  return largest > 0 ? largest : std::int64_t{32} << 20;
}

class CpuBuffer : public Buffer {
 public:
  CpuBuffer(std::size_t bytes, std::size_t red_zone)
      : front_((red_zone + kAlignment - 1) / kAlignment * kAlignment), size_(bytes), memory_(front_ + bytes + front_) {
    for_each_red_byte([&](std::size_t at) {
      memory_.data()[at] = red_zone_byte(at);
      return true;
    });
  }
  void* data() const override { return memory_.data() + front_; }
  std::size_t size() const override { return size_; }
  bool red_zones_intact() const override {
    return for_each_red_byte([&](std::size_t at) { return memory_.data()[at] == red_zone_byte(at); });
  }

 private:
  static constexpr std::size_t kAlignment = 256;

  template <class Visit>
  bool for_each_red_byte(Visit&& visit) const {
    for (std::size_t i = 0; i < front_; ++i) {
      if (!visit(i) || !visit(front_ + size_ + i)) return false;
    }
    return true;
  }

  std::size_t front_, size_;
  AlignedMemory memory_;
};

class CpuTimer : public Timer {
 public:
  // Sweeps `sweep` between samples if it is not empty (the cold regime).
  CpuTimer(std::span<const Launch> rotation, std::span<std::byte> sweep, double sample_us)
      : rotation_(rotation.begin(), rotation.end()), sweep_(sweep) {
    const auto start = Clock::now();
    rotation_[0]();  // pages, code and the pool's threads
    double once_us = elapsed_us(start);
    if (!sweep_.empty()) return;
    while (batch_us(calls_) < sample_us) {
      once_us = std::max(batch_us(calls_) / calls_, 1e-3);
      calls_ = std::max(calls_ + 1, static_cast<int>(std::min(1.1 * sample_us / once_us, calls_ * 16.0)));
      if (calls_ >= kMaxCalls) break;
    }
  }

  Sample sample() override {
    if (sweep_.empty()) {
      rotation_[0]();  // the first after a pause wakes threads and fetches code
      return {batch_us(calls_) / calls_, 0};
    }
    sweep_caches();
    const Launch& launch = rotation_[next_++ % rotation_.size()];
    const auto start = Clock::now();
    launch();
    return {elapsed_us(start), 0};
  }
  int launches_per_sample() const override { return calls_; }
  void use_launches(int launches) override {
    if (sweep_.empty()) calls_ = std::clamp(launches, 1, kMaxCalls);
  }

 private:
  static constexpr int kMaxCalls = 10'000'000;

  double batch_us(int calls) {
    const auto start = Clock::now();
    for (int i = 0; i < calls; ++i) rotation_[0]();
    return elapsed_us(start);
  }

  // Every thread reads its share, so that the caches of each core are swept and not only the shared one.
  void sweep_caches() {
    ThreadPool& pool = cpu_thread_pool();
    const std::size_t share = sweep_.size() / static_cast<std::size_t>(pool.size()) / 64 * 64;
    pool.run_on_each([&](int worker) {
      const float sum = read_through(sweep_.subspan(static_cast<std::size_t>(worker) * share, share));
      if (std::isnan(sum)) sweep_[0] = std::byte{1};  // never: the memory holds ones; keeps the reads
    });
  }

  std::vector<Launch> rotation_;
  std::span<std::byte> sweep_;
  std::size_t next_ = 0;
  int calls_ = 1;
};

class CpuDevice : public Device {
 public:
  CpuDevice() {
    info_.name = cpu_name(model_name(), instructions());
    info_.id = "cpu";
    info_.memory_bytes = static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
    info_.limits.kind = DeviceKind::kCpu;
    info_.limits.multiprocessors = cpu_threads();
    info_.limits.l2_bytes = last_level_cache_bytes();
    info_.limits.amx = has_bf16(Bf16Unit::kTiles);
    info_.limits.avx512_bf16 = has_bf16(Bf16Unit::kDots);
    info_.key = cpu_key(info_.name, info_.limits.multiprocessors);
  }

  const DeviceInfo& info() const override { return info_; }

  std::unique_ptr<Buffer> allocate(std::size_t bytes, std::size_t red_zone) override {
    return std::make_unique<CpuBuffer>(bytes, red_zone);
  }
  void upload(void* destination, const void* host, std::size_t bytes) override {
    if (bytes > 0) std::memcpy(destination, host, bytes);
  }
  void download(void* host, const void* source, std::size_t bytes) override {
    if (bytes > 0) std::memcpy(host, source, bytes);
  }
  void fill(void* destination, unsigned char byte, std::size_t bytes) override {
    if (bytes > 0) std::memset(destination, byte, bytes);
  }
  void synchronize() override {}  // a launch has ended when its call returns

  std::unique_ptr<Module> load(const Artifact&) override {
    throw_internal("the CPU loads no artifact; CPU families run through Family::cpu_launch");
  }
  void launch(const Module&, const LaunchSpec&) override {
    throw_internal("the CPU launches no module; CPU families run through Family::cpu_launch");
  }

  std::unique_ptr<Timer> make_timer(std::span<const Launch> rotation, Regime regime, double sample_us) override {
    FC_CHECK(!rotation.empty());
    constexpr double kDefaultSampleUs = 2000;  // thousands of times the clock's resolution
    return std::make_unique<CpuTimer>(rotation, regime == Regime::kCold ? sweep_memory() : std::span<std::byte>(),
                                      sample_us > 0 ? sample_us : kDefaultSampleUs);
  }

  std::unique_ptr<Timer> make_foreign_timer(ForeignWork work) override {
    if (!work.call) throw_bad_input("the CPU times calls, and there is none; give a function that computes once");
    const Launch call = std::move(work.call);
    return make_timer({&call, 1}, Regime::kWarm, work.sample_us);
  }

  void idle(double milliseconds) override {
    std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(milliseconds));
  }
  EnvironmentReading read_environment() override { return {}; }

  const Ceilings& ceilings() override {
    static const Ceilings measured = measure_cpu_ceilings(info_.limits.l2_bytes, info_.memory_bytes);
    return measured;
  }

 private:
  // More than twice the last-level cache, made on first use and kept: timers hold a view of it.
  std::span<std::byte> sweep_memory() {
    if (!sweep_) {
      const std::int64_t wanted = info_.limits.l2_bytes * 9 / 4;
      sweep_.emplace(static_cast<std::size_t>(std::min(wanted, info_.memory_bytes / 4)));
      std::memset(sweep_->data(), 1, sweep_->size());
    }
    return sweep_->bytes();
  }

  DeviceInfo info_;
  std::optional<AlignedMemory> sweep_;
};

}  // namespace

std::string cpu_name(const std::string& model_name, std::string_view instructions) {
  const std::size_t clock = std::min(model_name.find('@'), model_name.size());
  std::string words = model_name.substr(0, clock);
  if (words.find_first_of("0123456789") != std::string::npos) return model_name;
  words.erase(words.find_last_not_of(' ') + 1);
  const std::string rest = clock < model_name.size() ? " " + model_name.substr(clock) : "";
  return fmt::format("{} ({}){}", words, instructions, rest);
}

std::string cpu_key(std::string_view model_name, int cores) {
  // Words that say nothing of which CPU it is.
  static constexpr std::string_view kNoise[] = {"intel", "amd", "r", "tm", "cpu", "processor", "core", "gen", "with"};
  std::string key = "cpu", word;
  const auto flush = [&] {
    const bool core_count = word.ends_with("core") && word.size() > 4;
    if (!word.empty() && !core_count && std::ranges::find(kNoise, word) == std::end(kNoise)) key += "_" + word;
    word.clear();
  };
  // What follows '@' is the clock.
  for (char c : model_name.substr(0, model_name.find('@'))) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (letter) word += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    // "64-Core" is one word, to be dropped whole; "i7-1260P" is two.
    if (!letter &&
        !(c == '-' && !word.empty() && std::ranges::all_of(word, [](char w) { return w >= '0' && w <= '9'; })))
      flush();
  }
  flush();
  return key + fmt::format("_{}c", cores);
}

std::unique_ptr<Device> open_cpu_device() { return std::make_unique<CpuDevice>(); }

}  // namespace flashcore
