#include "lab/conformance.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "core/dtype.h"
#include "core/error.h"
#include "core/hash.h"
#include "device/emulator/emulator_compiler.h"
#include "kernels/conformance/params.h"
#include "kernels/embedded.h"
#include "lab/conformance_recorded.h"

namespace flashcore {
namespace {

using nlohmann::json;
using namespace conformance;

constexpr const char* kSchema = "flashcore.conformance/1";
// Beyond these an output is kept as its hash: exact tests need no more.
constexpr std::size_t kMaxStoredWords = 8192;

struct alignas(64) EncodedMap {
  std::byte bytes[128];
};
using HostParams = Params<EncodedMap>;

// The same on every machine, whatever its C library.
std::uint32_t random_bits(std::uint32_t i) {
  std::uint64_t z = (i + 1) * 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return static_cast<std::uint32_t>(z >> 32);
}
float random_float(std::uint32_t i, float range) {
  return (static_cast<float>(random_bits(i) >> 8) * 0x1p-23f - 1.0f) * range;
}

std::vector<std::uint32_t> make_input() {
  constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kSpecial[] = {0.0f,      -0.0f,          1.0f,         -1.0f,           kInf,
                                -kInf,     kNan,           0x1p-126f,    0x1p-127f,       -0x1p-149f,
                                65504.f,   65519.f,        65520.f,      -65520.f,        0x1p-14f,
                                0x1p-24f,  0x1p-25f,       0x1.8p-25f,   0x1.fffffep127f, 127.f,
                                128.f,     -126.f,         -127.0f,      -149.f,          -150.f,
                                2049.f,    2051.f,         257.f,        259.f,           0x1.01p0f,
                                0x1.03p0f, 1e-3f,          3.1415927f,   1e30f,           -1e-30f,
                                0.5f,      0x1.fffffep-1f, 0x1.000002p0f};
  std::vector<std::uint32_t> words(kInputWords);
  for (std::uint32_t i = 0; i < kRegionWords; ++i) {
    float value = random_float(i, i % 3 == 0 ? 100.0f : 8.0f);
    if (i < 64) value = kSpecial[i % std::size(kSpecial)];
    words[kFloatWords + i] = std::bit_cast<std::uint32_t>(value);
    const float low = random_float(10000 + i, 2.0f), high = random_float(20000 + i, 2.0f);
    words[kF16Words + i] = float_to_half(low) | static_cast<std::uint32_t>(float_to_half(high)) << 16;
    words[kBf16Words + i] = float_to_bfloat16(low) | static_cast<std::uint32_t>(float_to_bfloat16(high)) << 16;
    words[kRawWords + i] = random_bits(30000 + i);
  }
  return words;
}

TensorMapSpec tensor_at(std::size_t offset, const void* address) {
  constexpr std::uint64_t kRow = kTensorColumns * 2;
  return {offset,
          address,
          false,
          {kTensorColumns, kTensorRows, kTensorHeads, 1},
          {kRow, kRow * kTensorRows, kRow * kTensorRows * kTensorHeads},
          {kTensorColumns, kBoxRows, 1, 1}};
}

std::vector<std::uint32_t> run_one(Device& device, const ConformanceTest& test) {
  const DeviceLimits& limits = device.info().limits;
  static const std::unique_ptr<Compiler> ours = limits.emulated ? open_emulator_compiler() : open_compiler();
  const KernelSource kernel{"conformance/kernel.cuh",
                            fmt::format("flashcore::conformance::conform<flashcore::conformance::{}>", test.type),
                            kSharedBytes,
                            kThreads,
                            {}};
  const std::string arch = test.hopper ? "sm_90a" : fmt::format("sm_{}", limits.arch);
  const auto module = device.load(ours->compile(kernel, device_sources(), arch));
  const std::vector<std::uint32_t> input = make_input();
  std::vector<std::uint32_t> output(static_cast<std::size_t>(test.words));
  const auto in = device.allocate(input.size() * 4, 4096), out = device.allocate(output.size() * 4, 4096);
  device.label(*in, {"the micro-test's input", DType::kF32, std::nullopt});
  device.label(*out, {"the micro-test's output", DType::kF32, std::nullopt});
  device.upload(in->data(), input.data(), input.size() * 4);
  device.fill(out->data(), 0, output.size() * 4);
  HostParams params{};
  params.in = in->data();
  params.out = static_cast<unsigned*>(out->data());
  LaunchSpec spec;
  spec.block.x = kThreads;
  spec.shared_bytes = kSharedBytes;
  spec.params.resize(sizeof params);
  std::memcpy(spec.params.data(), &params, sizeof params);
  if (test.hopper) {
    spec.tensor_maps = {tensor_at(offsetof(HostParams, map_in), static_cast<char*>(in->data()) + 4 * kF16Words),
                        tensor_at(offsetof(HostParams, map_out),
                                  static_cast<char*>(out->data()) + 4 * std::min(kStoredWords, test.words))};
    device.encode_tensor_maps(spec);
  }
  device.launch(*module, spec);
  device.synchronize();
  device.download(output.data(), out->data(), output.size() * 4);
  if (!out->red_zones_intact()) throw_internal("the micro-test {} wrote out of bounds", test.name);
  return output;
}

std::string hash_of(const std::vector<std::uint32_t>& words) {
  return hash128({reinterpret_cast<const char*>(words.data()), words.size() * 4});
}

// Large outputs stand for themselves by their hash, as four words.
std::vector<std::uint32_t> shortened(const std::vector<std::uint32_t>& words) {
  if (words.size() <= kMaxStoredWords) return words;
  const std::string hash = hash_of(words);
  std::vector<std::uint32_t> four;
  for (std::size_t i = 0; i < 4; ++i)
    four.push_back(static_cast<std::uint32_t>(std::stoul(hash.substr(8 * i, 8), nullptr, 16)));
  return four;
}

// What a recording depends on besides the hardware.
std::string tests_hash() {
  const std::vector<std::uint32_t> input = make_input();
  return Hasher()
      .add(device_sources().at("conformance/kernel.cuh"))
      .add(device_sources().at("conformance/params.h"))
      .add(hash_of(input))
      .hex();
}

void compare_floats(const ConformanceTest& test, const std::vector<std::uint32_t>& ours,
                    const std::vector<std::uint32_t>& theirs, ConformanceResult& result) {
  for (std::size_t i = 0; i < ours.size(); ++i) {
    const float a = std::bit_cast<float>(ours[i]), b = std::bit_cast<float>(theirs[i]);
    if (ours[i] == theirs[i] || (std::isnan(a) && std::isnan(b))) continue;
    const double size =
        std::max({std::fabs(static_cast<double>(a)), std::fabs(static_cast<double>(b)), test.floor, 0x1p-126});
    const double ulps = std::fabs(static_cast<double>(a) - static_cast<double>(b)) / size * 0x1p23;
    result.worst_ulps =
        std::isfinite(ulps) ? std::max(result.worst_ulps, ulps) : std::numeric_limits<double>::infinity();
    if (!(ulps <= test.ulps) && result.difference.empty())
      result.difference = fmt::format("word {}: {} ({:#010x}), recorded {} ({:#010x}): {:.1f} ulps apart, {} allowed",
                                      i, a, ours[i], b, theirs[i], ulps, test.ulps);
  }
}

}  // namespace

// Tolerances. ex2, lg2, rcp: the PTX ISA's maximum relative errors 2^-22, 2^-22 (absolute) and 2^-23, twice, as either
// side may be off. Matrix products: the hardware truncates while it aligns addends, a few ulps of the largest of them.
const std::vector<ConformanceTest>& conformance_tests() {
  static const std::vector<ConformanceTest> tests = {
      {"ex2", "Ex2", kRegionWords, false, 4, 0},
      {"lg2", "Lg2", kRegionWords, false, 4, 1},
      {"rcp", "Rcp", kRegionWords, false, 2, 0},
      {"fma", "Fma", kRegionWords},
      {"max", "Max", kRegionWords + 1},
      {"cvt_f16x2", "ToF16", kRegionWords},
      {"cvt_bf16x2", "ToBf16", kRegionWords},
      {"cvt_f32_f16", "FromF16", 65536},
      {"cvt_f32_bf16", "FromBf16", 65536},
      {"memory", "Memory", 8 * kThreads},
      {"cp_async", "CpAsync", 8 * kThreads},
      {"ldmatrix", "Ldmatrix<false>", 4 * kThreads},
      {"ldmatrix_trans", "Ldmatrix<true>", 4 * kThreads},
      {"shuffle", "Shuffle", 7 * kThreads},
      {"barriers", "Barriers", 4 * kThreads},
      {"mma_f16", "Mma<false>", 4 * kThreads, false, 16, 16},
      {"mma_bf16", "Mma<true>", 4 * kThreads, false, 16, 16},
      {"stmatrix", "Stmatrix", 4 * kThreads, true},
      {"mbarrier", "MBarrier", 3 * kThreads, true},
      {"setmaxnreg", "Setmaxnreg", kThreads, true},
      {"tma", "Tma", kStoredWords + kTensorHeads * kTensorRows * kTensorColumns / 2, true},
      {"wgmma_ss_f16_n64", "Wgmma<false, 64, false, false>", 32 * kThreads, true, 16, 16},
      {"wgmma_ss_bf16_n48", "Wgmma<true, 48, false, false>", 24 * kThreads, true, 16, 16},
      {"wgmma_rs_f16_n64", "Wgmma<false, 64, true, false>", 32 * kThreads, true, 16, 16},
      {"wgmma_rs_f16_n128_trans", "Wgmma<false, 128, true, true>", 64 * kThreads, true, 16, 16},
      {"wgmma_rs_bf16_n64_trans", "Wgmma<true, 64, true, true>", 32 * kThreads, true, 16, 16},
  };
  return tests;
}

ConformanceOutputs run_conformance(Device& device) {
  ConformanceOutputs outputs;
  for (const ConformanceTest& test : conformance_tests()) {
    if (test.hopper && device.info().limits.arch != 90) continue;
    outputs[test.name] = shortened(run_one(device, test));
  }
  return outputs;
}

std::vector<ConformanceResult> compare_conformance(const ConformanceOutputs& outputs,
                                                   const ConformanceOutputs& recorded) {
  std::vector<ConformanceResult> results;
  for (const ConformanceTest& test : conformance_tests()) {
    const auto ours = outputs.find(test.name);
    if (ours == outputs.end()) continue;
    ConformanceResult result{test.name, false, "", 0};
    const auto theirs = recorded.find(test.name);
    if (theirs != recorded.end()) {
      result.compared = true;
      if (ours->second.size() != theirs->second.size()) {
        result.difference = fmt::format("{} words of output, recorded {}", ours->second.size(), theirs->second.size());
      } else if (test.ulps > 0) {
        compare_floats(test, ours->second, theirs->second, result);
      } else if (ours->second != theirs->second) {
        const auto at = std::mismatch(ours->second.begin(), ours->second.end(), theirs->second.begin());
        result.difference =
            fmt::format("word {}: {:#010x}, recorded {:#010x}", at.first - ours->second.begin(), *at.first, *at.second);
      }
    }
    results.push_back(result);
  }
  return results;
}

json conformance_json(const DeviceInfo& device, const ConformanceOutputs& outputs) {
  json document = {{"schema", kSchema},
                   {"device", {{"key", device.key}, {"name", device.name}, {"driver", device.driver}}},
                   {"tests_hash", tests_hash()}};
  for (const auto& [name, words] : outputs) {
    std::string text;
    for (const std::uint32_t word : words) text += fmt::format("{:08x}", word);
    document["outputs"][name] = text;
  }
  return document;
}

ConformanceOutputs parse_conformance(const json& document) {
  ConformanceOutputs outputs;
  try {
    if (document.at("schema") != kSchema)
      throw_bad_input("the schema is {}, not {}", document.at("schema").dump(), kSchema);
    if (document.at("tests_hash") != tests_hash()) return {};
    for (const auto& [name, text] : document.at("outputs").items()) {
      const std::string hex = text.get<std::string>();
      for (std::size_t at = 0; at + 8 <= hex.size(); at += 8)
        outputs[name].push_back(static_cast<std::uint32_t>(std::stoul(hex.substr(at, 8), nullptr, 16)));
    }
  } catch (const json::exception& e) {
    throw_bad_input("not a conformance recording: {}", e.what());
  }
  return outputs;
}

ConformanceOutputs recorded_conformance() {
  const auto& files = embedded_conformance();
  const auto found = files.find("conformance.json");
  return found == files.end() ? ConformanceOutputs{} : parse_conformance(json::parse(found->second));
}

}  // namespace flashcore
