#pragma once
// Conformance: does the emulated GPU do what the hardware does. One micro-test for each ptx/ function
// (kernels/conformance) runs on a device; hardware outputs are recorded once and every other device is compared.

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "device/device.h"

namespace flashcore {

struct ConformanceTest {
  const char* name;
  const char* type;     // within flashcore::conformance
  int words;            // of output
  bool hopper = false;  // needs sm_90a
  // What may differ. 0: no bit. Else float outputs: |a - b| <= ulps · 2^-23 · max(|a|, |b|, floor).
  double ulps = 0;
  double floor = 0;  // for sums, the size of what is summed: cancellation loses bits of that
};
const std::vector<ConformanceTest>& conformance_tests();

using ConformanceOutputs = std::map<std::string, std::vector<std::uint32_t>>;
// Runs every test that the device's architecture has. DeviceFault and CompileError as for any kernel.
ConformanceOutputs run_conformance(Device& device);

struct ConformanceResult {
  std::string test;
  bool compared = false;   // false: no recording of this test
  std::string difference;  // empty: the same within the tolerance
  double worst_ulps = 0;
};
std::vector<ConformanceResult> compare_conformance(const ConformanceOutputs& outputs,
                                                   const ConformanceOutputs& recorded);

// {"schema": "flashcore.conformance/1", "device", "source_hash" of the micro-tests, "outputs": name -> hex words}.
nlohmann::json conformance_json(const DeviceInfo& device, const ConformanceOutputs& outputs);
// Error kBadInput if it is no such document. Tests whose inputs or kernel have changed since are left out.
ConformanceOutputs parse_conformance(const nlohmann::json& document);
// results/h200/conformance.json as built in; empty if there is none yet.
ConformanceOutputs recorded_conformance();

}  // namespace flashcore
