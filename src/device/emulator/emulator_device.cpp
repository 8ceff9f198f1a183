#include "device/emulator/emulator_device.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/error.h"
#include "core/foreign_text.h"
#include "core/parallel.h"
#include "device/emulator/foreign_module.h"
#include "device/emulator/instructions.h"

namespace flashcore {
namespace {

using namespace emulator;

class EmulatorBuffer final : public Buffer {
 public:
  explicit EmulatorBuffer(std::shared_ptr<Allocation> allocation) : allocation_(std::move(allocation)) {}
  void* data() const override { return allocation_->data(); }
  std::size_t size() const override { return allocation_->size(); }
  bool red_zones_intact() const override { return allocation_->red_zones_intact(); }
  Allocation& allocation() const { return *allocation_; }

 private:
  std::shared_ptr<Allocation> allocation_;
};

std::uint64_t seed_of_environment() {
  const char* text = std::getenv("FLASHCORE_EMULATOR_SEED");
  if (!text || !*text) return 1;
  const auto seed = parse_unsigned(text);
  if (!seed)
    throw_bad_input(
        "FLASHCORE_EMULATOR_SEED={} is not a whole number of 64 bits; give one, as a fault's report prints it",
        excerpt(text));
  return *seed;
}

class EmulatorDevice final : public Device {
 public:
  explicit EmulatorDevice(std::string_view arch) : seed_(seed_of_environment()) {
    info_.limits = limits_of_arch(arch);
    info_.limits.emulated = true;
    // Few, so that a persistent kernel's loop turns more than once even on a small problem.
    info_.limits.multiprocessors = 4;
    info_.key = fmt::format("emulator_sm{}", info_.limits.arch);
    info_.name = fmt::format("emulated sm_{} GPU", info_.limits.arch);
    info_.id = info_.limits.arch == 90 ? "emulator" : fmt::format("emulator:sm_{}", info_.limits.arch);
    info_.memory_bytes = static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  }

  const DeviceInfo& info() const override { return info_; }

  std::unique_ptr<Buffer> allocate(std::size_t bytes, std::size_t red_zone) override {
    return std::make_unique<EmulatorBuffer>(memory_.allocate(bytes, red_zone));
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
  void label(const Buffer& buffer, const BufferLabel& label) override {
    dynamic_cast<const EmulatorBuffer&>(buffer).allocation().label = label;
  }
  void synchronize() override {}  // a launch has ended when its call returns

  void encode_tensor_maps(LaunchSpec& spec) override {
    for (const TensorMapSpec& map : spec.tensor_maps) {
      FC_CHECK(map.param_offset + 128 <= spec.params.size());
      encode_tensor_map(map, spec.params.data() + map.param_offset);
    }
    spec.tensor_maps.clear();
  }

  std::unique_ptr<Module> load(const Artifact& artifact) override {
    if (artifact.foreign) return std::make_unique<ForeignModule>(artifact);
    return std::make_unique<EmulatorModule>(artifact);
  }

  void launch(const Module& module, const LaunchSpec& spec) override {
    if (const auto* foreign = dynamic_cast<const ForeignModule*>(&module)) return launch_foreign(*foreign, spec);
    const auto& kernel = dynamic_cast<const EmulatorModule&>(module);
    LaunchState state{.module = kernel,
                      .spec = spec,
                      .allocations = memory_.all(),
                      .memory = memory_,
                      .number = next_number(spec),
                      .seed = seed_};
    run_launch(state, hardware_threads());
    if (!state.plain() || spec.kernel != 0) return;
    std::vector<std::uint64_t> places;
    for (const auto& [address, site] : state.counters.sites) places.push_back(kernel.offset_of(address));
    kernel.lines().prepare(places);
    counters_ = counters_json(state.counters, [&](const void* address) { return kernel.lines_of(address); });
  }
  nlohmann::json counters() override { return counters_; }

  std::unique_ptr<Timer> make_timer(std::span<const Launch>, Regime, double) override { no_time(); }
  void idle(double) override {}
  EnvironmentReading read_environment() override { return {}; }
  const Ceilings& ceilings() override { no_time(); }

 private:
  void launch_foreign(const ForeignModule& kernel, const LaunchSpec& spec) {
    const std::uint32_t number = next_number(spec);
    const Counters counters = kernel.launch(spec, memory_, number, seed_);
    if (!is_plain_launch(number) || spec.kernel != 0) return;
    kernel.prepare_lines(counters);
    counters_ = counters_json(counters, [&](const void* offset) { return kernel.lines_of(offset); });
  }

  // Every other launch is a plain one. A module's further kernels take two numbers, so that this stays true of the
  // kernel that does the work, and what it counts is what is kept.
  std::uint32_t next_number(const LaunchSpec& spec) {
    return std::exchange(launches_, launches_ + (spec.kernel == 0 ? 1 : 2));
  }

  [[noreturn]] static void no_time() {
    throw_bad_input(
        "an emulated GPU has no time to measure: it counts what a launch does; the devices \"cuda\" and \"cpu\" have a "
        "time");
  }

  DeviceInfo info_;
  GlobalMemory memory_;
  std::uint64_t seed_;
  std::uint32_t launches_ = 0;
  nlohmann::json counters_;
};

}  // namespace

std::unique_ptr<Device> open_emulator(std::string_view arch) { return std::make_unique<EmulatorDevice>(arch); }

}  // namespace flashcore
