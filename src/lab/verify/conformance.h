#pragma once
// Conformance: does the emulated GPU do what the hardware does. One micro-test for each ptx/ function
// (kernels/conformance) runs on a device; hardware outputs are recorded once and every other device is compared.

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "device/compiler.h"
#include "device/device.h"

namespace flashcore {

struct ConformanceTest {
  std::string name;
  std::string file;       // "arithmetic": kernels/conformance/arithmetic.cuh
  std::string type;       // within flashcore::conformance
  std::string functions;  // of ptx/ that it tests, divided by blanks
  int words;              // of output
  bool hopper = false;    // needs sm_90a
  // What may differ. 0: no bit. Else float outputs: |a - b| <= ulps · 2^-23 · max(|a|, |b|, floor).
  double ulps = 0;
  double floor = 0;  // for sums, the size of what is summed: cancellation loses bits of that
  Dim3 grid{};
  int cluster = 1;                              // CTAs, along x
  bool programmatic = false;                    // launched so
  TensorSwizzle swizzle = TensorSwizzle::k128;  // of its tensor maps
};
const std::vector<ConformanceTest>& conformance_tests();

// The kernel of a test, to be compiled from conformance_sources() for conformance_arch().
KernelSource conformance_kernel(const ConformanceTest& test);
std::string conformance_arch(const ConformanceTest& test, const DeviceLimits& limits);
// Of all that a recording of the test depends on, besides the hardware: its text, what it shares, its input.
std::string conformance_hash(const ConformanceTest& test);

// Runs one test in this process; its outputs, longer ones as hashes of 256 words each. DeviceFault and CompileError as
// for any kernel.
std::vector<std::uint32_t> run_conformance_test(Device& device, const ConformanceTest& test);

struct ConformanceRun {
  DeviceInfo device;
  std::map<std::string, std::vector<std::uint32_t>> outputs;  // by the test's name
  std::map<std::string, std::string> failures;                // why a test gave none
};
// Runs every test that the device has, each in a child process: a crash, a fault that loses the context or a hang ends
// one test. This process must not have opened a CUDA device. Errors as open_device. `stop` is polled.
ConformanceRun run_conformance(const std::string& device, const std::function<bool()>& stop = {});

struct ConformanceRecording {
  struct Entry {
    std::string hash;  // conformance_hash() when it was recorded
    std::vector<std::uint32_t> words;
  };
  std::map<std::string, Entry> tests;
};
enum class Conformity { kSame, kDifferent, kNotRecorded };
struct ConformanceResult {
  std::string test;
  Conformity conformity = Conformity::kNotRecorded;
  std::string note;  // what differs, why there was no output, or why there is nothing to compare with
  double worst_ulps = 0;
};
// A test that failed is different. Tests that changed since they were recorded are not recorded.
std::vector<ConformanceResult> compare_conformance(const ConformanceRun& run, const ConformanceRecording& recording);
ConformanceResult compare_conformance_test(const ConformanceTest& test, const std::vector<std::uint32_t>& words,
                                           const ConformanceRecording& recording);

// {"schema": "flashcore.conformance/1", "device", "outputs": {name: {"hash", "words": hex}}, "failures": {name: why}}.
nlohmann::json conformance_json(const ConformanceRun& run);
// Error kBadInput if it is no such document.
ConformanceRecording parse_conformance(const nlohmann::json& document);
// results/h200/conformance.json as built in; empty if there is none.
ConformanceRecording recorded_conformance();

}  // namespace flashcore
