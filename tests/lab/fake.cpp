#include "lab/fake.h"

#include <signal.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <map>

#include "core/error.h"
#include "device/red_zone.h"
#include "lab/statistics/statistics.h"

namespace flashcore::test {
namespace {

double virtual_now_us = 0;
std::vector<std::function<void()>> late_work;
double placement = 0;  // of the device in use

// A number in [-1, 1) for an address; neighbours have nothing to do with each other.
double luck_of(const void* address) {
  SplitMix random(reinterpret_cast<std::uintptr_t>(address));
  return 2 * random.uniform() - 1;
}

class FakeBuffer : public Buffer {
 public:
  FakeBuffer(std::size_t bytes, std::size_t red_zone)
      : bytes_(bytes), zone_(red_zone), memory_(bytes + 2 * red_zone + 256) {
    const auto address = reinterpret_cast<std::uintptr_t>(memory_.data()) + red_zone;
    begin_ = memory_.data() + red_zone + (256 - address % 256) % 256;
    for (std::size_t i = 0; i < zone_; ++i) begin_[i - zone_] = begin_[bytes_ + i] = zone_byte(i);
  }
  void* data() const override { return begin_; }
  std::size_t size() const override { return bytes_; }
  bool red_zones_intact() const override {
    const auto intact = [](const unsigned char* from, std::size_t n) {
      for (std::size_t i = 0; i < n; ++i)
        if (from[i] != zone_byte(i)) return false;
      return true;
    };
    return intact(begin_ - zone_, zone_) && intact(begin_ + bytes_, zone_);
  }

 private:
  static unsigned char zone_byte(std::size_t i) { return std::to_integer<unsigned char>(red_zone_byte(i)); }
  std::size_t bytes_, zone_;
  mutable std::vector<unsigned char> memory_;
  unsigned char* begin_;
};

class FakeDevice;

class FakeTimer : public Timer {
 public:
  FakeTimer(FakeDevice& device, std::vector<Launch> rotation) : device_(device), rotation_(std::move(rotation)) {}
  Sample sample() override;
  int launches_per_sample() const override { return launches_; }
  void use_launches(int launches) override { launches_ = launches; }

 private:
  int launches_ = 2;
  FakeDevice& device_;
  std::vector<Launch> rotation_;
  std::size_t next_ = 0;
};

class FakeDevice : public Device {
 public:
  explicit FakeDevice(const FakeDeviceOptions& options) : options_(options), random_(options.seed) {
    placement = options.placement;
    info_.limits.kind = DeviceKind::kCpu;
    info_.limits.l2_bytes = 1 << 16;
    info_.key = options.key;
    info_.name = "Fake";
    info_.id = "fake";
    info_.memory_bytes = 1 << 28;
  }
  const DeviceInfo& info() const override { return info_; }
  std::unique_ptr<Buffer> allocate(std::size_t bytes, std::size_t red_zone) override {
    return std::make_unique<FakeBuffer>(bytes, red_zone);
  }
  void upload(void* to, const void* from, std::size_t bytes) override { std::memcpy(to, from, bytes); }
  void download(void* to, const void* from, std::size_t bytes) override { std::memcpy(to, from, bytes); }
  void fill(void* to, unsigned char byte, std::size_t bytes) override { std::memset(to, byte, bytes); }
  void synchronize() override {}
  std::unique_ptr<Module> load(const Artifact&) override { throw_internal("a fake device loads nothing"); }
  void launch(const Module&, const LaunchSpec&) override {}
  std::unique_ptr<Timer> make_timer(std::span<const Launch> rotation, Regime, double) override {
    return std::make_unique<FakeTimer>(*this, std::vector<Launch>(rotation.begin(), rotation.end()));
  }
  void idle(double milliseconds) override {
    virtual_now_us += 1e3 * milliseconds;
    for (const auto& work : std::exchange(late_work, {})) work();
  }
  double now_seconds() override { return 1e-6 * virtual_now_us; }
  EnvironmentReading read_environment() override {
    EnvironmentReading reading;
    if (options_.throttle_every_us > 0) {
      reading.power_w = throttled() ? 700 : 500;
      reading.throttle_reasons = throttled() ? "sw_power_cap" : "none";
    }
    return reading;
  }
  const Ceilings& ceilings() override { return options_.ceilings; }

  double noise() {
    drift_ += options_.drift * random_.normal() + options_.warming;
    double slower = drift_ + options_.noise * random_.normal();
    if (throttled()) slower += std::log1p(options_.throttle_slowdown);
    if (options_.outliers > 0 && random_.uniform() < options_.outliers)
      slower += std::log1p(options_.outlier_slowdown * random_.uniform());
    return std::exp(slower);
  }

 private:
  bool throttled() const {
    return options_.throttle_every_us > 0 &&
           std::fmod(virtual_now_us, options_.throttle_every_us) > options_.throttle_every_us / 2;
  }

  FakeDeviceOptions options_;
  DeviceInfo info_;
  SplitMix random_;
  double drift_ = 0;
};

Sample FakeTimer::sample() {
  const double before = virtual_now_us;
  for (int i = 0; i < launches_per_sample(); ++i) rotation_[next_++ % rotation_.size()]();
  return {(virtual_now_us - before) / launches_per_sample() * device_.noise(), 0};
}

float read(DType dtype, const void* data, std::int64_t index) { return load_element(dtype, data, index); }

ConfigSpace space_of(Fault fault) {
  std::vector<Field> fields = {{"block", {16, 32, 64}}, {"unroll", {1, 2, 4}}, {"spread", {0, 1, 2}}};
  if (fault == Fault::kAllEqual) {
    fields[0].values = {16, 32};
    for (Field* field : {&fields[1], &fields[2]}) {
      field->values.clear();
      for (int value = 0; value < 10; ++value) field->values.push_back(value + (field == &fields[1]));
    }
  }
  return ConfigSpace(std::move(fields));
}

// Blocked online softmax, one row at a time: just enough of a kernel for the faults of one to be planted in it.
class FakeFamily : public Family {
 public:
  FakeFamily(std::string name, Fault fault) : name_(std::move(name)), fault_(fault), space_(space_of(fault)) {}

  std::string name() const override { return name_; }
  std::string description() const override { return "fake"; }
  DeviceKind kind() const override { return DeviceKind::kCpu; }
  std::optional<std::string> why_unsupported(const Problem& problem, const DeviceLimits& limits) const override {
    if (limits.kind != DeviceKind::kCpu) return "runs on the fake device only";
    if (problem.head_dim > 128 || problem.head_dim_v > 128) return "head dims up to 128";
    return std::nullopt;
  }
  const ConfigSpace& space() const override { return space_; }
  ConfigValues default_config(const Problem&, const DeviceLimits&) const override { return {16, 1, 0}; }
  std::optional<std::string> why_invalid(const ConfigValues& c, const Problem&, const DeviceLimits&) const override {
    if (c[0] == 64 && c[1] == 4) return "block=64 leaves no room for unroll=4";
    return std::nullopt;
  }
  Launch cpu_launch(const ConfigValues& config, const Problem& problem, const AttentionArgs& args) const override {
    return [this, config, problem, args, calls = std::make_shared<int>(0)] { run(config, problem, args, (*calls)++); };
  }

 private:
  void run(const ConfigValues& config, const Problem& p, const AttentionArgs& a, int call) const {
    misbehave();
    virtual_now_us += cost(config) * (1 + placement * luck_of(a.o));
    if (fault_ == Fault::kWritesFirstCallOnly && call > 0) return;
    if (fault_ == Fault::kReturnsCachedResult && replay(p, a)) return;
    for (std::int64_t b = 0; b < p.batch; ++b)
      for (std::int64_t h = 0; h < p.heads_q; ++h)
        for (std::int64_t row = 0; row < p.seqlen_q; ++row) compute_row(config, p, a, b, h, row);
    if (fault_ == Fault::kOutOfBounds) store_element(p.dtype, a.o, a.layouts.o.span(), 1.0f);
    if (fault_ == Fault::kMutatesInput) store_element(p.dtype, const_cast<void*>(a.k), 3, 0.5f);
    if (fault_ == Fault::kWritesGaps) store_element(p.dtype, a.o, a.layouts.o.columns, 1.0f);
    if (fault_ == Fault::kNonDeterministic) {
      const float o = read(p.dtype, a.o, 0);
      store_element(p.dtype, a.o, 0, o * (1 + 1e-6f * static_cast<float>(++noise_)));
    }
    if (fault_ == Fault::kReturnsCachedResult) remember(p, a);
  }

  double cost(const ConfigValues& config) const {
    const double honest = fault_ == Fault::kAllEqual ? 100 : fake_cost_us(config);
    if (fault_ == Fault::kThreePercentSlower) return 1.03 * honest;
    if (fault_ == Fault::kHalfPercentSlower) return 1.005 * honest;
    if (fault_ == Fault::kTwiceAsSlow) return 2 * honest;
    return fault_ == Fault::kTooFast ? 1e-3 : honest;
  }

  void misbehave() const {
    if (fault_ == Fault::kSegfault) {
      signal(SIGSEGV, SIG_DFL);  // the address sanitizer's handler would make an ordinary exit of it
      raise(SIGSEGV);
    }
    if (fault_ == Fault::kHang)
      for (;;) pause();
    if (fault_ == Fault::kDeviceFault) throw DeviceFault("an illegal memory access was encountered");
    if (fault_ == Fault::kLogsAndAborts) {
      std::puts("printed to stdout by a library");
      std::fputs("last words of the child\n", stderr);
      std::fflush(nullptr);
      abort();
    }
  }

  std::int64_t visible(const Problem& p, std::int64_t row, int block) const {
    std::int64_t keys = fault_ == Fault::kMissingMask ? p.seqlen_kv : p.visible_keys(row);
    if (fault_ == Fault::kWrongTail && keys == p.seqlen_kv) keys = keys / block * block;
    return keys;
  }

  void compute_row(const ConfigValues& config, const Problem& p, const AttentionArgs& a, std::int64_t b, std::int64_t h,
                   std::int64_t row) const {
    if (fault_ == Fault::kLeavesRowUnwritten && row == p.seqlen_q - 1 && h == p.heads_q - 1) return;
    constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
    const ProblemLayouts& l = a.layouts;
    const std::int64_t hk = h / p.group_size(), keys = visible(p, row, config[0]);
    const auto scale = static_cast<float>(p.softmax_scale());
    std::vector<float> acc(static_cast<std::size_t>(p.head_dim_v), 0.0f), scores;
    float row_max = kMinusInfinity, row_sum = 0;
    for (std::int64_t first = 0; first < keys; first += config[0]) {
      const std::int64_t last = std::min<std::int64_t>(first + config[0], keys);
      scores.clear();
      float block_max = row_max;
      for (std::int64_t j = first; j < last; ++j) {
        float dot = 0;
        for (std::int64_t c = 0; c < p.head_dim; ++c)
          dot += read(p.dtype, a.q, l.q.offset(b, h, row) + c) * read(p.dtype, a.k, l.k.offset(b, hk, j) + c);
        scores.push_back(dot * scale);
        // fmax drops a NaN, and a NaN score has to make its row NaN.
        block_max =
            std::isnan(scores.back()) || std::isnan(block_max) ? std::nanf("") : std::max(block_max, scores.back());
      }
      if (block_max == kMinusInfinity) continue;
      const float rescale = fault_ == Fault::kMissingRescale && first > 0 ? 1.0f : std::exp(row_max - block_max);
      row_max = block_max;
      row_sum *= rescale;
      for (float& x : acc) x *= rescale;
      for (std::int64_t j = first; j < last; ++j) {
        const float weight = std::exp(scores[static_cast<std::size_t>(j - first)] - row_max);
        row_sum += weight;
        for (std::int64_t c = 0; c < p.head_dim_v; ++c)
          acc[static_cast<std::size_t>(c)] += weight * read(p.dtype, a.v, l.v.offset(b, hk, j) + c);
      }
    }
    const bool empty = row_max == kMinusInfinity;
    const float share = fault_ == Fault::kHalvesLargeLogits && row_max > 40 ? 0.5f : 1.0f;
    for (std::int64_t c = 0; c < p.head_dim_v; ++c)
      store_element(p.dtype, a.o, l.o.offset(b, h, row) + c,
                    empty ? 0.0f : share * acc[static_cast<std::size_t>(c)] / row_sum);
    if (a.lse != nullptr)
      a.lse[(b * p.heads_q + h) * p.seqlen_q + row] = empty ? kMinusInfinity : row_max + std::log(row_sum);
  }

  bool replay(const Problem& p, const AttentionArgs& a) const {
    const auto found = cache_.find(p.id());
    if (found == cache_.end()) return false;
    std::memcpy(a.o, found->second.first.data(), found->second.first.size());
    if (a.lse == nullptr) return true;
    std::memcpy(a.lse, found->second.second.data(), found->second.second.size() * sizeof(float));
    return true;
  }
  void remember(const Problem& p, const AttentionArgs& a) const {
    if (a.lse == nullptr) return;
    auto& [o, lse] = cache_[p.id()];
    o.resize(static_cast<std::size_t>(a.layouts.o.span()) * size_of(p.dtype));
    std::memcpy(o.data(), a.o, o.size());
    lse.assign(a.lse, a.lse + a.layouts.lse_elements);
  }

  std::string name_;
  Fault fault_;
  ConfigSpace space_;
  mutable int noise_ = 0;
  mutable std::map<std::string, std::pair<std::vector<char>, std::vector<float>>> cache_;
};

}  // namespace

std::unique_ptr<Device> make_fake_device(const FakeDeviceOptions& options) {
  return std::make_unique<FakeDevice>(options);
}

std::unique_ptr<Family> make_fake_family(const std::string& name, Fault fault) {
  return std::make_unique<FakeFamily>(name, fault);
}

void spend_us(double us) { virtual_now_us += us; }
void run_when_idle(std::function<void()> work) { late_work.push_back(std::move(work)); }
FakeDeviceOptions realistic_device(std::uint64_t seed) {
  FakeDeviceOptions options;
  options.seed = seed;
  options.noise = 0.004;
  options.drift = 0.001;
  SplitMix random(seed);
  options.warming = 0.0003 * random.normal();
  options.throttle_every_us = 20000 + 20000 * random.uniform();
  options.throttle_slowdown = 0.05;
  options.outliers = 0.05;
  options.placement = 0.02;
  return options;
}

double fake_cost_us(const ConfigValues& config) {
  const double block = std::abs(std::log2(config[0] / 32.0)), unroll = std::abs(std::log2(config[1] / 2.0));
  return 100 * (1 + 0.3 * block + 0.2 * unroll + 0.1 * std::abs(config[2] - 1));
}

AllFakeFamilies::AllFakeFamilies() {
  const std::pair<const char*, Fault> all[] = {{"fake_none", Fault::kNone},
                                               {"fake_wrong_tail", Fault::kWrongTail},
                                               {"fake_missing_mask", Fault::kMissingMask},
                                               {"fake_missing_rescale", Fault::kMissingRescale},
                                               {"fake_out_of_bounds", Fault::kOutOfBounds},
                                               {"fake_leaves_row", Fault::kLeavesRowUnwritten},
                                               {"fake_first_call_only", Fault::kWritesFirstCallOnly},
                                               {"fake_cached_result", Fault::kReturnsCachedResult},
                                               {"fake_mutates_input", Fault::kMutatesInput},
                                               {"fake_nondeterministic", Fault::kNonDeterministic},
                                               {"fake_writes_gaps", Fault::kWritesGaps},
                                               {"fake_slower_3", Fault::kThreePercentSlower},
                                               {"fake_slower_half", Fault::kHalfPercentSlower},
                                               {"fake_slower_100", Fault::kTwiceAsSlow},
                                               {"fake_halves_large_logits", Fault::kHalvesLargeLogits},
                                               {"fake_too_fast", Fault::kTooFast},
                                               {"fake_segfault", Fault::kSegfault},
                                               {"fake_hang", Fault::kHang},
                                               {"fake_device_fault", Fault::kDeviceFault},
                                               {"fake_aborts", Fault::kLogsAndAborts},
                                               {"fake_equal", Fault::kAllEqual}};
  for (const auto& [name, fault] : all)
    families_.push_back(std::make_unique<ScopedFamily>(make_fake_family(name, fault)));
}

}  // namespace flashcore::test
