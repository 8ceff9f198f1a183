#include "lab/verify/conformance.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "core/dtype.h"
#include "core/error.h"
#include "core/hash.h"
#include "core/random.h"
#include "device/emulator/emulator_compiler.h"
#include "kernels/conformance/params.h"
#include "kernels/embedded.h"
#include "lab/process/isolate.h"
#include "lab/record/digest.h"
#include "lab/record/trial.h"
#include "lab/verify/conformance_recorded.h"

namespace flashcore {
namespace {

using nlohmann::json;
using namespace conformance;

constexpr const char* kConformanceSchema = "flashcore.conformance/1";
// Longer outputs are kept as hashes of their blocks: exact tests need no more.
constexpr std::size_t kMaxStoredWords = 8192, kHashedWords = 256;
constexpr double kTestSeconds = 60;

struct alignas(64) EncodedMap {
  std::byte bytes[128];
};
using HostParams = Params<EncodedMap>;

// The same on every machine, whatever its C library.
std::uint32_t random_bits(std::uint32_t i) {
  const auto top = static_cast<std::uint32_t>(split_mix_finish((i + 1) * kSplitMixStep) >> 32);
  return top ^ top >> 31;  // as recorded on GPUs: without the finaliser's last step
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

TensorMapSpec tensor_at(std::size_t offset, const void* address, TensorSwizzle swizzle) {
  constexpr std::uint64_t kRow = kTensorColumns * 2;
  // A box's row is as wide as the swizzle; 16 bytes without one.
  const unsigned row_bytes = swizzle == TensorSwizzle::kNone ? 16 : static_cast<unsigned>(swizzle);
  return {offset,
          address,
          TensorElement::kFloat16,
          {kTensorColumns, kTensorRows, kTensorHeads, 1},
          {kRow, kRow * kTensorRows, kRow * kTensorRows * kTensorHeads},
          {row_bytes / 2, kBoxRows, 1, 1},
          swizzle};
}

std::string hash_of(const std::vector<std::uint32_t>& words) {
  return hash128({reinterpret_cast<const char*>(words.data()), words.size() * 4});
}

std::vector<std::uint32_t> shortened(const std::vector<std::uint32_t>& words) {
  if (words.size() <= kMaxStoredWords) return words;
  std::vector<std::uint32_t> hashes;
  for (std::size_t at = 0; at < words.size(); at += kHashedWords) {
    const std::size_t count = std::min(kHashedWords, words.size() - at);
    const std::string hash = hash128({reinterpret_cast<const char*>(words.data() + at), count * 4});
    hashes.push_back(static_cast<std::uint32_t>(std::stoul(hash.substr(0, 8), nullptr, 16)));
  }
  return hashes;
}

std::string hex_of(const std::vector<std::uint32_t>& words) {
  std::string text;
  for (const std::uint32_t word : words) text += fmt::format("{:08x}", word);
  return text;
}
std::vector<std::uint32_t> words_of(const std::string& hex) {
  std::vector<std::uint32_t> words;
  for (std::size_t at = 0; at + 8 <= hex.size(); at += 8)
    words.push_back(static_cast<std::uint32_t>(std::stoul(hex.substr(at, 8), nullptr, 16)));
  return words;
}

// The text without the other tests' structs: theirs may change.
std::string text_for(const std::string& text, const std::string& type) {
  const std::string own = type.substr(0, type.find('<'));
  std::string kept;
  std::size_t at = 0;
  while (true) {
    const std::size_t begin = text.find("\nstruct ", at);
    if (begin == std::string::npos) return kept + text.substr(at);
    const std::size_t end = text.find("\n};\n", begin);
    FC_CHECK(end != std::string::npos);
    const bool other = text.compare(begin + 8, own.size() + 1, own + " ") != 0;
    kept += text.substr(at, (other ? begin : end) - at);
    at = end;
  }
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
    if (!(ulps <= test.ulps) && result.note.empty())
      result.note = fmt::format("word {}: {} ({:#010x}), recorded {} ({:#010x}): {:.1f} ulps apart, {} allowed", i, a,
                                ours[i], b, theirs[i], ulps, test.ulps);
  }
}

void compare_bits(const ConformanceTest& test, const std::vector<std::uint32_t>& ours,
                  const std::vector<std::uint32_t>& theirs, ConformanceResult& result) {
  const auto at = std::mismatch(ours.begin(), ours.end(), theirs.begin());
  if (at.first == ours.end()) return;
  const auto word = static_cast<std::size_t>(at.first - ours.begin());
  result.note = static_cast<std::size_t>(test.words) > kMaxStoredWords
                    ? fmt::format("words {} to {} differ somewhere", word * kHashedWords, (word + 1) * kHashedWords - 1)
                    : fmt::format("word {}: {:#010x}, recorded {:#010x}", word, *at.first, *at.second);
}

// A child's answer: open_device's errors keep their kind.
json describe(const std::string& device) {
  try {
    return {{"info", open_device(device)->info()}};
  } catch (const Error& e) {
    return {{"error", e.what()}, {"kind", e.kind()}};
  }
}

DeviceInfo info_in_a_child(const std::string& device) {
  json answer;
  run_isolated(
      1, {.timeout_seconds = kTestSeconds}, [&](std::int64_t) { return describe(device).dump(); },
      [&](std::int64_t, const Isolated& result) {
        if (!result.completed) throw_environment("the device '{}' cannot be opened: {}", device, result.failure);
        answer = json::parse(result.output);
      });
  if (answer.contains("error")) throw Error(answer.at("kind").get<ErrorKind>(), answer.at("error").get<std::string>());
  return answer.at("info").get<DeviceInfo>();
}

}  // namespace

KernelSource conformance_kernel(const ConformanceTest& test) {
  return {fmt::format("conformance/{}.cuh", test.file),
          fmt::format("flashcore::conformance::conform<flashcore::conformance::{}>", test.type),
          kSharedBytes,
          kThreads,
          {}};
}

std::string conformance_arch(const ConformanceTest& test, const DeviceLimits& limits) {
  return test.hopper ? "sm_90a" : fmt::format("sm_{}", limits.arch);
}

std::string conformance_hash(const ConformanceTest& test) {
  const SourceMap& sources = conformance_sources();
  Hasher hasher;
  hasher.add(text_for(sources.at(conformance_kernel(test).file), test.type))
      .add(test.type)
      .add(sources.at("conformance/common.cuh"))
      .add(sources.at("conformance/params.h"))
      .add(fmt::format("{} words, {}x{}x{} CTAs in clusters of {}", test.words, test.grid.x, test.grid.y, test.grid.z,
                       test.cluster))
      .add(hash_of(make_input()));
  if (test.swizzle != TensorSwizzle::k128) hasher.add(fmt::format("swizzle {}", static_cast<unsigned>(test.swizzle)));
  return hasher.hex();
}

std::vector<std::uint32_t> run_conformance_test(Device& device, const ConformanceTest& test) {
  const DeviceLimits& limits = device.info().limits;
  static const std::unique_ptr<Compiler> ours = limits.emulated ? open_emulator_compiler() : open_compiler();
  const auto module =
      device.load(ours->compile(conformance_kernel(test), conformance_sources(), conformance_arch(test, limits)));
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
  spec.grid = test.grid;
  spec.cluster.x = static_cast<unsigned>(test.cluster);
  spec.programmatic = test.programmatic;
  spec.block.x = kThreads;
  spec.shared_bytes = kSharedBytes;
  spec.params.resize(sizeof params);
  std::memcpy(spec.params.data(), &params, sizeof params);
  if (test.hopper) {
    spec.tensor_maps = {
        tensor_at(offsetof(HostParams, map_in), static_cast<char*>(in->data()) + 4 * kF16Words, test.swizzle),
        tensor_at(offsetof(HostParams, map_out),
                  static_cast<char*>(out->data()) + 4 * std::min(kStoredWords, test.words), test.swizzle)};
    device.encode_tensor_maps(spec);
  }
  device.launch(*module, spec);
  device.synchronize();
  device.download(output.data(), out->data(), output.size() * 4);
  if (!out->red_zones_intact()) throw_internal("the micro-test {} wrote out of bounds", test.name);
  return shortened(output);
}

ConformanceRun run_conformance(const std::string& device, const std::function<bool()>& stop) {
  ConformanceRun run;
  run.device = info_in_a_child(device);
  std::vector<ConformanceTest> tests;
  for (const ConformanceTest& test : conformance_tests()) {
    if (!test.hopper || run.device.limits.arch == 90) tests.push_back(test);
  }
  // A fault on hardware loses the process's context, so each test has its own; the emulator loses nothing.
  const IsolateOptions options{
      .parallel = 2, .batch = run.device.limits.emulated ? 8 : 1, .timeout_seconds = kTestSeconds};
  run_isolated(
      static_cast<std::int64_t>(tests.size()), options,
      [&](std::int64_t i) {
        return hex_of(run_conformance_test(*open_device(device), tests[static_cast<std::size_t>(i)]));
      },
      [&](std::int64_t i, const Isolated& result) {
        const std::string name = tests[static_cast<std::size_t>(i)].name;
        if (result.completed) run.outputs[name] = words_of(result.output);
        else run.failures[name] = result.failure;
      },
      stop);
  return run;
}

ConformanceResult compare_conformance_test(const ConformanceTest& test, const std::vector<std::uint32_t>& words,
                                           const ConformanceRecording& recording) {
  ConformanceResult result{test.name, Conformity::kNotRecorded, "", 0};
  const auto recorded = recording.tests.find(test.name);
  if (recorded == recording.tests.end()) {
    result.note = "not recorded on hardware yet";
    return result;
  }
  if (recorded->second.hash != conformance_hash(test)) {
    result.note = "has changed since it was recorded on hardware";
    return result;
  }
  const std::vector<std::uint32_t>& theirs = recorded->second.words;
  if (words.size() != theirs.size()) result.note = fmt::format("{} words, recorded {}", words.size(), theirs.size());
  else if (test.ulps > 0) compare_floats(test, words, theirs, result);
  else compare_bits(test, words, theirs, result);
  result.conformity = result.note.empty() ? Conformity::kSame : Conformity::kDifferent;
  return result;
}

std::vector<ConformanceResult> compare_conformance(const ConformanceRun& run, const ConformanceRecording& recording) {
  std::vector<ConformanceResult> results;
  for (const ConformanceTest& test : conformance_tests()) {
    const auto ours = run.outputs.find(test.name);
    if (ours != run.outputs.end()) results.push_back(compare_conformance_test(test, ours->second, recording));
    const auto failure = run.failures.find(test.name);
    if (failure != run.failures.end()) results.push_back({test.name, Conformity::kDifferent, failure->second, 0});
  }
  return results;
}

json conformance_json(const ConformanceRun& run) {
  json document = {{"schema", kConformanceSchema},
                   {"device", {{"key", run.device.key}, {"name", run.device.name}, {"driver", run.device.driver}}},
                   {"outputs", json::object()},
                   {"failures", run.failures}};
  for (const ConformanceTest& test : conformance_tests()) {
    const auto words = run.outputs.find(test.name);
    if (words != run.outputs.end())
      document["outputs"][test.name] = {{"hash", conformance_hash(test)}, {"words", hex_of(words->second)}};
  }
  seal(document);
  return document;
}

ConformanceRecording parse_conformance(const json& document) {
  ConformanceRecording recording;
  try {
    if (document.at("schema") != kConformanceSchema)
      throw_bad_input("the schema is {}, not {}: give a file that check --conformance --record wrote",
                      document.at("schema").dump(), kConformanceSchema);
    for (const auto& [name, entry] : document.at("outputs").items())
      recording.tests[name] = {entry.at("hash").get<std::string>(), words_of(entry.at("words").get<std::string>())};
  } catch (const std::logic_error& e) {  // of stoul
    throw_bad_input("not a conformance recording: {}", e.what());
  } catch (const json::exception& e) {
    throw_bad_input("not a conformance recording: {}", e.what());
  }
  return recording;
}

ConformanceRecording recorded_conformance() {
  const auto& files = embedded_conformance();
  const auto found = files.find("conformance.json");
  return found == files.end() ? ConformanceRecording{} : parse_conformance(json::parse(found->second));
}

}  // namespace flashcore
