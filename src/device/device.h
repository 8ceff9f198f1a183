#pragma once
// Device: where candidates run. Limits, memory, loading, launching, timing. Knows nothing of attention.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/tensor.h"
#include "device/artifact.h"

namespace flashcore {

enum class DeviceKind { kCpu, kCuda };

// What a kernel may use. For compiling without a GPU these come from a table by architecture (limits_of_arch).
struct DeviceLimits {
  DeviceKind kind = DeviceKind::kCpu;
  int arch = 0;                    // 80, 86, 89, 90, 100, 120; 0 on a CPU
  int multiprocessors = 1;         // SMs; cores on a CPU
  int shared_bytes_per_block = 0;  // opt-in maximum
  int shared_bytes_per_multiprocessor = 0;
  int registers_per_multiprocessor = 0;
  int max_threads_per_block = 0;
  int max_threads_per_multiprocessor = 0;
  std::int64_t l2_bytes = 0;  // last-level cache on a CPU
  double clock_mhz = 0;       // the SMs' highest; 0: not known
  double dram_peak_gbps = 0;  // by memory clock and bus width; 0: not known
  bool emulated = false;      // a GPU executed by the CPU: has no time, and its own compiler
  bool amx = false;           // a CPU whose matrix tiles for bf16 this process may use (device/cpu/bf16_units.h)
  bool avx512_bf16 = false;   // a CPU with vector instructions that multiply bf16
};

struct DeviceInfo {
  DeviceLimits limits;
  std::string key;   // file-safe, one per model: "h200", "cpu_xeon_2c"; names folders under results/
  std::string name;  // as the vendor says it: "NVIDIA H200"
  std::string id;    // "cuda:0", "cpu", "emulator"
  std::int64_t memory_bytes = 0;
  std::string driver;  // "580.159.03 (CUDA 13.0)"; empty on a CPU
};

struct Dim3 {
  unsigned x = 1, y = 1, z = 1;
};

// How a tile's rows lie in shared memory: the 16-byte chunks of each 128, 64 or 32 bytes change places by address, so
// that matrix instructions meet no bank conflicts. The value is the width in bytes; a box's rows are at most as wide.
enum class TensorSwizzle : unsigned { kNone = 0, k32 = 32, k64 = 64, k128 = 128 };

// A tensor's elements; kByte: any of 8 bits.
enum class TensorElement : unsigned { kFloat16, kBFloat16, kByte };
constexpr unsigned bytes_of(TensorElement element) { return element == TensorElement::kByte ? 1 : 2; }

// A tensor map of Hopper's tensor memory accelerator, to be encoded into the parameters at `param_offset` (128 bytes):
// 4-D tensors in tiles of `box`, zeros outside the tensor.
struct TensorMapSpec {
  std::size_t param_offset = 0;
  const void* address = nullptr;  // multiple of 16 bytes
  TensorElement element = TensorElement::kFloat16;
  std::uint64_t extents[4] = {};        // innermost first
  std::uint64_t strides_bytes[3] = {};  // of dimensions 1 to 3; multiples of 16
  std::uint32_t box[4] = {};
  TensorSwizzle swizzle = TensorSwizzle::k128;
  // From the address to element 0, a multiple of 16. What lies in between is not touched as long as the coordinates
  // that a kernel asks for lead back into the tensor.
  std::int64_t offset_bytes = 0;

  // Of element 0, which need not be an address of anything.
  void* first_element() const {
    return reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(address) +
                                   static_cast<std::uintptr_t>(offset_bytes));
  }
};

// One kernel launch: geometry and the bytes of its single parameter struct.
struct LaunchSpec {
  Dim3 grid, block, cluster;
  unsigned shared_bytes = 0;
  unsigned kernel = 0;        // of the module's: 0 is the one that does the work
  bool programmatic = false;  // may start before the launch before it has ended (programmatic dependent launch)
  std::vector<std::byte> params;
  std::vector<TensorMapSpec> tensor_maps;  // still to be encoded into params (Device::encode_tensor_maps)
};

// What runs after what: launches on one stream, in order, unless a graph records them now and runs them later.
struct StreamOrder {
  std::uint64_t id = 0;  // the stream's, never used again in the process
  bool captured = false;
};

// Device memory, freed when dropped. `red_zone` bytes of a known pattern lie before and after it.
class Buffer {
 public:
  virtual ~Buffer() = default;
  virtual void* data() const = 0;  // an address on the device; aligned to 256 bytes
  virtual std::size_t size() const = 0;
  // False if a byte of the red zones before or after changed since allocation: somebody wrote out of bounds.
  virtual bool red_zones_intact() const = 0;
};

class Module {
 public:
  virtual ~Module() = default;
};

// What a buffer holds, for reports that name it.
struct BufferLabel {
  std::string name;  // "q"
  DType dtype = DType::kF32;
  std::optional<TensorLayout> layout;
};

// Enqueues one call of a candidate on the device's stream (on the CPU: runs it). Made by kernels/program.h.
using Launch = std::function<void()>;

enum class Regime {
  kGraph,  // replays of a captured graph of many launches, warm L2: the one to quote under 100 us
  kCold,   // inputs rotated through more than 2x L2, persisting lines reset
  kWarm,   // one launch between two events, inputs as the last launch left them
};
enum class Condition {
  kBurst,      // an idle gap, then a few milliseconds of work: compares designs
  kSustained,  // 100 ms of warm-up, then 200 ms or more: what a user gets
};
std::string_view to_string(Regime regime);
std::string_view to_string(Condition condition);
Regime parse_regime(std::string_view name);
Condition parse_condition(std::string_view name);

struct Sample {
  double time_us = 0;    // device time of ONE launch
  double clock_mhz = 0;  // SM clock during the sample: cycles over time, measured on the device. 0: not known (CPU)
  // Read right after the sample by who takes it (lab/measure). 0 and empty: not known.
  double power_w = 0;
  std::string throttle = {};  // as EnvironmentReading::throttle_reasons
};

// One candidate made ready to be timed. sample() runs a fixed number of launches and returns the time of one.
class Timer {
 public:
  virtual ~Timer() = default;
  virtual Sample sample() = 0;
  virtual int launches_per_sample() const = 0;
  // Takes samples of so many launches from now on, where the regime has more than one. Two timers that are compared
  // must have the same number: the first launches after a pause are slow, and more of them would dilute that. >= 1.
  virtual void use_launches(int launches);
};

// Somebody else's work, made ready to be timed as ours is: on a GPU a captured graph, on a CPU a call.
struct ForeignWork {
  void* graph = nullptr;            // a CUgraphExec (cudaGraphExec_t is the same); its owner keeps it
  int launches = 1;                 // of what is timed, in one replay of the graph
  std::function<void()> call = {};  // once what is timed; returns when it is done
  double sample_us = 0;             // as make_timer, where the timer counts the calls itself
};

// Clocks are observed, never set.
struct EnvironmentReading {
  double clock_sm_mhz = 0, clock_memory_mhz = 0, power_w = 0, temperature_c = 0;
  std::string throttle_reasons;  // "none", "sw_power_cap", ...; empty if not known
};
void to_json(nlohmann::json& json, const EnvironmentReading& reading);
void from_json(const nlohmann::json& json, EnvironmentReading& reading);

// Measured, never assumed; under one power condition. Upper bounds that no kernel can beat.
struct Ceilings {
  double matmul_tflops_16bit =
      0;                       // tensor-core peak loop on random data, fp16/bf16 in, fp32 accumulate; CPU: bf16 units
  double fma_tflops_fp32 = 0;  // CPU: SIMD FMA peak over all cores; GPU: 0 if not measured
  double read_gbps = 0;        // reading far more than the last-level cache
  double cache_read_gbps = 0;  // reading what fits in half of it
  double empty_launch_us = 0;
};
void to_json(nlohmann::json& json, const Ceilings& ceilings);
void from_json(const nlohmann::json& json, Ceilings& ceilings);

class Device {
 public:
  virtual ~Device() = default;
  virtual const DeviceInfo& info() const = 0;

  virtual std::unique_ptr<Buffer> allocate(std::size_t bytes, std::size_t red_zone = 0) = 0;
  virtual void upload(void* destination, const void* host, std::size_t bytes) = 0;
  virtual void download(void* host, const void* source, std::size_t bytes) = 0;
  virtual void fill(void* destination, unsigned char byte, std::size_t bytes) = 0;
  // Devices that watch memory name it in their reports; the others ignore it.
  virtual void label(const Buffer&, const BufferLabel&) {}
  // Waits for the stream. A fault of an earlier launch (illegal address, ...) surfaces here as DeviceFault.
  virtual void synchronize() = 0;

  // A compiled artifact onto the device; raises its dynamic shared-memory limit. CPU: Error kInternal.
  virtual std::unique_ptr<Module> load(const Artifact& artifact) = 0;
  virtual void launch(const Module& module, const LaunchSpec& spec) = 0;
  // Once per binding, not per launch. A device without tensor maps is handed none.
  virtual void encode_tensor_maps(LaunchSpec& spec);
  // As launch(), in order on a stream of the caller's (a CUstream, null being its default stream; devices without
  // streams take null only), with `params` in place of spec.params.
  virtual void launch_on(void* stream, const Module& module, const LaunchSpec& spec, std::span<const std::byte> params);
  // Gives another address to a tensor map that encode_tensor_maps wrote into `params`. Cheap enough for every launch.
  virtual void readdress_tensor_map(const TensorMapSpec& map, const void* address, std::span<std::byte> params);
  // Of a stream of the caller's; devices without streams take null only.
  virtual StreamOrder order_of(void* stream);
  // Waits for a stream of the caller's.
  virtual void synchronize_stream(void* stream);

  // `rotation`: the same candidate on different buffers; used in turn (kGraph and kWarm use the first only if it has
  // one). The timer picks launches per sample so that a sample lasts at least `sample_us` (default by device).
  virtual std::unique_ptr<Timer> make_timer(std::span<const Launch> rotation, Regime regime, double sample_us = 0) = 0;
  // By the same rules as make_timer in the regime kGraph (on a CPU: kWarm). A graph runs on the device's own stream:
  // work that it depends on has ended before. Error kBadInput where the device cannot time such work.
  virtual std::unique_ptr<Timer> make_foreign_timer(ForeignWork work);
  virtual void idle(double milliseconds) = 0;  // lets clocks and temperature settle: the gap before a burst
  // What time limits are kept by, from any origin: the steady clock, or a simulated device's own.
  virtual double now_seconds();
  virtual EnvironmentReading read_environment() = 0;
  virtual const Ceilings& ceilings() = 0;  // measured on first use, cached for the process
  // What the last launch of a kernel that does the work did (LaunchSpec::kernel), where the device counts (the
  // emulator): null elsewhere.
  virtual nlohmann::json counters();
};

// The context is lost: the process that saw it must end. The worker turns it into a Trial.
class DeviceFault : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// "cpu", "cuda", "cuda:1", "emulator", "emulator:sm_80", or "" for the best there is (cuda:0 if there is one, else
// cpu). Error kEnvironment with the fix if it is not there; kBadInput if the word is not known.
std::unique_ptr<Device> open_device(std::string_view name);
// Architecture limits from NVIDIA's tables, for compiling without the GPU. Accepts "sm_90", "sm_90a", "90". They leave
// open what models of one architecture differ in: clock and DRAM.
DeviceLimits limits_of_arch(std::string_view arch);
// A GPU known by its key, for one that is not here, and for records of before these were recorded.
struct GpuModel {
  std::string_view key;  // DeviceInfo::key
  int arch, multiprocessors;
  double clock_mhz, dram_peak_gbps;  // as DeviceLimits
};
const GpuModel* find_gpu_model(std::string_view key);  // null: not known
// limits_of_arch, with what is known of that model of it.
DeviceLimits limits_of_model(std::string_view arch, std::string_view key);
// Both edges of the memory clock move a bit on each line of the bus.
constexpr double dram_peak_gbps(double memory_clock_mhz, int bus_bits) {
  return 2 * memory_clock_mhz * bus_bits / 8 / 1000;
}
const std::vector<std::string>& known_archs();  // "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"

// --- what `doctor` prints -------------------------------------------------------------------------------------------
struct Finding {
  std::string item;  // "NVIDIA driver"
  bool present = false;
  bool required = false;
  std::string detail;  // version and path, or what is missing
  std::string fix;     // what to do about it; empty if present
};
std::vector<Finding> survey_environment();

}  // namespace flashcore
