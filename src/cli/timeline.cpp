// flashcore timeline: what each warp of a kernel did and when, by time stamps of an instrumented build.

#include "lab/diagnose/timeline.h"

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <thread>

#include "cli/arguments.h"
#include "cli/common.h"
#include "cli/verbs.h"
#include "core/error.h"
#include "core/files.h"
#include "lab/record/digest.h"
#include "lab/record/number_text.h"
#include "lab/report/timeline_page.h"
#include "lab/verify/judged_file.h"

namespace flashcore::cli {

namespace {

struct TimelineArguments {
  Common common;
  std::string trace, html;
  TimelineOptions options;
  bool no_compare = false;
};

void print_timeline(Console& console, const Timeline& timeline) {
  console.line("problem    {}", timeline.problem.id());
  console.line("candidate  {}", timeline.candidate);
  console.line("recorded   {} of {}, {}, {} {} from the first mark to the last", timeline.recorded_ctas,
               plural(static_cast<std::int64_t>(timeline.launched_ctas), "CTA"),
               plural(static_cast<std::int64_t>(timeline.tracks.size()), "warp"), timeline.marked(), timeline.unit());
  const bool cut = timeline.dropped > 0;
  console.line("multiplies {} of a CTA's time some warp is in Q·K or P·V{}", text::percent(multiplying_share(timeline)),
               cut ? ", of the beginning that was recorded" : "");
  const Distortion& distortion = timeline.distortion;
  if (distortion.plain_build && distortion.instrumented_build) {
    const KernelFacts &plain = *distortion.plain_build, &marked = *distortion.instrumented_build;
    console.line("build      {} registers with marks, {} without; {} and {} bytes spilled", marked.registers,
                 plain.registers, marked.spill_store_bytes + marked.spill_load_bytes,
                 plain.spill_store_bytes + plain.spill_load_bytes);
  }
  Table table({"role", "activity", cut ? "share of the beginning" : "share", "times",
               fmt::format("median {}", timeline.unit())});
  for (const ActivitySum& sum : activity_sums(timeline))
    table.add({std::string(word_of(sum.role)), std::string(title_of(sum.activity)), text::percent(sum.share),
               std::to_string(sum.count), text::number(sum.median)});
  console.table(table);
}

// A launch on the emulator may take minutes and cannot be ended from within, so that the program ends beside it: with
// 2, and with the JSON of a verb that was interrupted. Nothing else has been recorded by then.
class EndAtInterrupt {
 public:
  EndAtInterrupt(const Common& common, Console& console)
      : thread_([this, &common, &console] {
          std::unique_lock lock(mutex_);
          while (!wake_.wait_for(lock, std::chrono::milliseconds(50), [this] { return over_; }))
            if (interrupted()) end(common, console);
        }) {}
  // Whatever comes now finds the recording done.
  ~EndAtInterrupt() {
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }
  EndAtInterrupt(const EndAtInterrupt&) = delete;
  EndAtInterrupt& operator=(const EndAtInterrupt&) = delete;

 private:
  [[noreturn]] static void end(const Common& common, Console& console) {
    try {
      write_json(common, {{"schema", kTimelineSchema}, {"results", nlohmann::json::array()}});
      console.summary("nothing was recorded{}", stopped_by());
    } catch (const std::exception& e) {
      print_error(e.what());
    }
    std::fflush(stdout);
    std::_Exit(kNotJudged);  // the other thread is in the launch still
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  bool over_ = false;
  std::thread thread_;  // last: it reads what is above
};

int run_timeline(const TimelineArguments& arguments) {
  const Common& common = arguments.common;
  check_json_target(common);
  check_output_file("--trace", arguments.trace);
  check_output_file("--html", arguments.html);
  require_distinct({{"--json", common.json}, {"--trace", arguments.trace}, {"--html", arguments.html}}, {});
  const Suite suite = select_problems(common, "quick");
  if (suite.problems.size() != 1)
    throw_bad_input("a timeline is of one problem; name it with --problem, as --problem b1_h2_s256_d64_fp16");
  const PlacedProblem& problem = suite.problems.front().problem;
  const std::string pinned = candidate_text(common);
  const auto device = open_named_device(common.device);
  const Candidate candidate = pinned.empty() ? dispatch(problem, device->info()).candidate
                                             : parse_candidate(pinned, problem, device->info().limits);
  TimelineOptions options = arguments.options;
  options.compare = !arguments.no_compare;
  Console console(common.quiet, json_on_stdout(common));
  const Timeline timeline = [&] {
    const EndAtInterrupt watch(common, console);
    return record_timeline(*device, problem, candidate, options);
  }();
  if (!timeline.tracks.empty()) print_timeline(console, timeline);
  if (!arguments.trace.empty()) write_file_atomically(arguments.trace, timeline_trace(timeline).dump() + "\n");
  if (!arguments.html.empty()) write_file_atomically(arguments.html, timeline_html(timeline));
  nlohmann::json row = timeline_json(timeline);
  row[kCandidateHash] = candidate_hash_of(timeline.candidate, problem, timeline.device.limits);
  write_json(common, {{"schema", kTimelineSchema}, {kDigest, ""}, {"results", {std::move(row)}}});
  for (const std::string& fault : timeline.faults) print_error("not to be believed: " + fault);
  if (timeline.dropped > 0)
    print_warning(fmt::format("{} records found no place: lanes show the beginning only; record fewer CTAs with --ctas",
                              timeline.dropped));
  console.summary("distortion: {}{}", timeline.distortion.sentence(), stopped_by());
  if (!timeline.faults.empty()) return kFailed;
  return unless_interrupted(timeline.dropped > 0 ? kNotJudged : kDone);
}

}  // namespace

Run add_timeline(CLI::App& app) {
  auto arguments = std::make_shared<TimelineArguments>();
  add_common(app, arguments->common, kDevice | kProblem | kFamily | kConfig | kJson);
  app.add_option("--trace", arguments->trace, "a trace that Perfetto (ui.perfetto.dev) opens")
      ->type_name("FILE")
      ->check(not_empty());
  app.add_option("--html", arguments->html, "a page with the lanes and the sums")
      ->type_name("FILE")
      ->check(not_empty());
  app.add_option("--ctas", arguments->options.ctas, "at most so many CTAs are recorded, evenly spaced over the grid")
      ->type_name("N")
      ->check(whole_between(1, 1'000'000))
      ->capture_default_str();
  app.add_option("--seed", arguments->options.seed, "of the data")->check(seed_number())->capture_default_str();
  app.add_flag("--no-compare", arguments->no_compare, "do not time what the marks cost");
  add_examples(app, {"timeline --device emulator --problem b1_h1_s128_d64_fp16 --family sm90_fwd --html timeline.html",
                     "timeline --device emulator --problem b1_h1_s64_d64_fp16 --family sm80_fwd --trace trace.json",
                     "timeline --device cpu --problem b1_h1_s64_d64_fp16  # exit 3"});
  return [arguments] {
    watch_interrupts();
    return run_timeline(*arguments);
  };
}

}  // namespace flashcore::cli
