// flashcore doctor: what is here, what is missing and the fix, measured ceilings, noise floor.

#include "cli/common.h"
#include "cli/verbs.h"
#include "core/error.h"
#include "core/operands.h"
#include "lab/compare/noise.h"
#include "lab/compare/wake_up.h"

namespace flashcore::cli {

namespace {

Noise noise_of(Device& device) {
  const bool on_cpu = device.info().limits.kind == DeviceKind::kCpu;
  const PlacedProblem problem = PlacedProblem::parse(on_cpu ? "b1_h4_s256_d64_fp32" : "b1_h8_s512_d64_fp16");
  return measure_noise(device, problem, dispatch(problem, device.info()).candidate);
}

std::vector<std::unique_ptr<Device>> open_all(const std::string& only) {
  std::vector<std::unique_ptr<Device>> devices;
  if (!only.empty()) {
    devices.push_back(open_named_device(only));
    return devices;
  }
  for (int i = 0; i < 64; ++i) {
    try {
      devices.push_back(open_device(fmt::format("cuda:{}", i)));
    } catch (const Error&) {
      break;  // the survey says why
    }
  }
  devices.push_back(open_device("cpu"));
  return devices;
}

void print_device(Console& console, const DeviceInfo& info) {
  const DeviceLimits& l = info.limits;
  console.line("\n{}  {}  (key {})", info.id, info.name, info.key);
  if (l.kind == DeviceKind::kCpu) {
    console.line("  {} cores, last-level cache {}, memory {}", l.multiprocessors,
                 human_bytes(static_cast<double>(l.l2_bytes)), human_bytes(static_cast<double>(info.memory_bytes)));
  } else {
    console.line("  sm_{}, {} SMs, shared memory {} a block, L2 {}, memory {}, driver {}", l.arch, l.multiprocessors,
                 human_bytes(l.shared_bytes_per_block), human_bytes(static_cast<double>(l.l2_bytes)),
                 human_bytes(static_cast<double>(info.memory_bytes)), info.driver);
  }
}

void print_measured(Console& console, const Ceilings& c, const Noise& noise) {
  if (c.matmul_tflops_16bit > 0) console.line("  ceiling: matmul 16-bit  {:.4g} TFLOP/s", c.matmul_tflops_16bit);
  if (c.fma_tflops_fp32 > 0) console.line("  ceiling: FMA fp32       {:.3f} TFLOP/s", c.fma_tflops_fp32);
  console.line("  ceiling: memory read    {:.1f} GB/s, cache {:.1f} GB/s", c.read_gbps, c.cache_read_gbps);
  console.line("  empty launch            {}", human_time_us(c.empty_launch_us));
  console.line(
      "  noise of this process   {} against itself: ratio {:.4f}, 95% interval {:.4f}..{:.4f} ({} ABBA blocks)",
      noise.problem, noise.ratio.estimate, noise.ratio.low, noise.ratio.high, noise.blocks);
  console.line(
      "                          of one process and one place in memory; from process to process it is more, which "
      "`flashcore ab` measures (between_process)");
  if (!noise.wrong.empty())
    console.line("  WRONG                   {} computes wrong outputs here: {}; see `flashcore check --problem {}`",
                 noise.candidate, noise.wrong, noise.problem);
}

nlohmann::json describe(Device& device, const Noise& noise, const std::optional<WakeUpSummary>& wake_up) {
  const DeviceInfo& info = device.info();
  return {{"id", info.id},
          {"name", info.name},
          {"key", info.key},
          {"arch", info.limits.arch},
          {"multiprocessors", info.limits.multiprocessors},
          {"l2_bytes", info.limits.l2_bytes},
          {"memory_bytes", info.memory_bytes},
          {"driver", info.driver},
          {"ceilings", device.ceilings()},
          {"environment", device.read_environment()},
          {"noise",
           {{"problem", noise.problem},
            {"candidate", noise.candidate},
            {"ratio", noise.ratio.estimate},
            {"ci95", {noise.ratio.low, noise.ratio.high}},
            {"blocks", noise.blocks},
            {"processes", 1},
            {"wrong", noise.wrong}}},
          {"wake_up", wake_up ? nlohmann::json(*wake_up) : nlohmann::json()}};
}

// A library looked for in many places says so at length; the table takes the first, --json all.
std::string first_of(const std::string& detail) { return shorten(detail.substr(0, detail.find("; ")), 70); }

int doctor(const Common& common) {
  check_json_target(common);
  Console console(common.quiet, json_on_stdout(common));
  const std::vector<Finding> findings = survey_environment();
  Table table({"item", "state", "detail", "fix"});
  nlohmann::json items = nlohmann::json::array();
  bool usable = true;
  for (const Finding& f : findings) {
    usable = usable && (f.present || !f.required);
    table.add({f.item,
               {f.present    ? "here"
                : f.required ? "MISSING"
                             : "absent",
                f.present    ? Tone::kGood
                : f.required ? Tone::kBad
                             : Tone::kWarn},
               first_of(f.detail),
               f.fix});
    items.push_back(
        {{"item", f.item}, {"present", f.present}, {"required", f.required}, {"detail", f.detail}, {"fix", f.fix}});
  }
  console.line("flashcore {}", FLASHCORE_VERSION);
  console.table(table);

  nlohmann::json devices = nlohmann::json::array();
  for (const auto& device : open_all(common.device)) {
    print_device(console, device->info());
    const Noise noise = noise_of(*device);
    if (interrupted()) break;
    print_measured(console, device->ceilings(), noise);
    std::optional<WakeUpSummary> wake_up;
    if (device->info().limits.kind == DeviceKind::kCpu) wake_up = measure_wake_ups();
    if (wake_up) console.line("  wake-up                 {}", wake_up_words(*wake_up));
    devices.push_back(describe(*device, noise, wake_up));
  }
  write_json(
      common,
      {{"schema", "flashcore.doctor/1"}, {"version", FLASHCORE_VERSION}, {"findings", items}, {"results", devices}});
  if (interrupted() && devices.empty()) {
    console.summary("nothing was measured{}", stopped_by());
    return kNotJudged;
  }
  console.summary("{}", usable ? "usable: " + plural(static_cast<std::int64_t>(devices.size()), "device")
                               : std::string("not usable: see MISSING above"));
  return unless_interrupted(usable ? kDone : kNoEnvironment);
}

}  // namespace

Run add_doctor(CLI::App& app) {
  auto common = std::make_shared<Common>();
  add_common(app, *common, kDevice | kJson);
  add_examples(app, {"doctor", "doctor --device cpu --json doctor.json"});
  return [common] {
    watch_interrupts();
    return doctor(*common);
  };
}

}  // namespace flashcore::cli
