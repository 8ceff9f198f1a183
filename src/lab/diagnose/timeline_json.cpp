// A timeline as JSON: our own, and the Trace Event Format.

#include <nlohmann/json.hpp>
#include <set>

#include "lab/diagnose/timeline.h"

namespace flashcore {
namespace {

using nlohmann::json;

std::string process_name(const Track& track) {
  return track.sm ? fmt::format("SM {}, CTA {}", *track.sm, track.cta) : fmt::format("CTA {}", track.cta);
}
std::string thread_name(const Track& track) { return fmt::format("warp {}: {}", track.warp, word_of(track.role)); }

json build_json(const std::optional<KernelFacts>& facts) {
  if (!facts) return {};
  return {{"registers", facts->registers},
          {"spill_store_bytes", facts->spill_store_bytes},
          {"spill_load_bytes", facts->spill_load_bytes},
          {"stack_bytes", facts->stack_bytes}};
}

json distortion_json(const Timeline& timeline) {
  const Distortion& d = timeline.distortion;
  json j = {{"sentence", d.sentence()}};
  if (d.comparison) {
    j["slowdown"] = 1 / d.comparison->speedup - 1;
    j["ci95"] = {1 / d.comparison->ci95_high - 1, 1 / d.comparison->ci95_low - 1};
    j["plain_us"] = d.plain_us, j["instrumented_us"] = d.instrumented_us, j["blocks"] = d.comparison->blocks;
  }
  if (d.plain_steps > 0) j["plain_steps"] = d.plain_steps, j["instrumented_steps"] = d.instrumented_steps;
  if (d.plain_build)
    j["plain_build"] = build_json(d.plain_build), j["instrumented_build"] = build_json(d.instrumented_build);
  return j;
}

// Metadata of the Trace Event Format.
json named(const char* what, std::uint64_t pid, std::uint64_t tid, const json& args) {
  return {{"ph", "M"}, {"name", what}, {"pid", pid}, {"tid", tid}, {"args", args}};
}

}  // namespace

json timeline_json(const Timeline& timeline) {
  json tracks = json::array(), sums = json::array();
  for (const Track& track : timeline.tracks) {
    json segments = json::array();
    for (const Segment& s : track.segments) segments.push_back({word_of(s.activity), s.item, s.begin, s.end});
    tracks.push_back({{"role", word_of(track.role)},
                      {"cta", track.cta},
                      {"warp", track.warp},
                      {"sm", track.sm ? json(*track.sm) : json()},
                      {"dropped", track.dropped},
                      {"segments", std::move(segments)}});
  }
  for (const ActivitySum& sum : activity_sums(timeline))
    sums.push_back({{"role", word_of(sum.role)},
                    {"activity", word_of(sum.activity)},
                    {"total", sum.total},
                    {"share", sum.share},
                    {"count", sum.count},
                    {"median", sum.median},
                    {"is_wait", is_wait(sum.activity)}});
  return {{"problem", timeline.problem.id()},
          {"candidate", timeline.candidate},
          {"device", timeline.device},
          {"unit", timeline.unit()},
          {"clock_mhz", timeline.clock_mhz},
          {"launched_ctas", timeline.launched_ctas},
          {"recorded_ctas", timeline.recorded_ctas},
          {"end", timeline.end()},
          {"dropped", timeline.dropped},
          {"multiplying_share", multiplying_share(timeline)},
          {"distortion", distortion_json(timeline)},
          {"faults", timeline.faults},
          {"sums", std::move(sums)},
          {"tracks", std::move(tracks)}};
}

json timeline_trace(const Timeline& timeline) {
  const double per_us = timeline.clock_mhz > 0 ? timeline.clock_mhz : 1;
  json events = json::array();
  std::set<std::uint64_t> processes;
  for (const Track& track : timeline.tracks) {
    const std::uint64_t pid = track.cta + std::uint64_t{1}, tid = track.warp + std::uint64_t{1};
    if (processes.insert(pid).second) {
      events.push_back(named("process_name", pid, 0, {{"name", process_name(track)}}));
      events.push_back(named("process_sort_index", pid, 0, {{"sort_index", pid}}));
    }
    events.push_back(named("thread_name", pid, tid, {{"name", thread_name(track)}}));
    events.push_back(named("thread_sort_index", pid, tid, {{"sort_index", tid}}));
    for (const Segment& segment : track.segments)
      events.push_back({{"ph", "X"},
                        {"name", title_of(segment.activity)},
                        {"cat", is_wait(segment.activity) ? "wait" : "work"},
                        {"pid", pid},
                        {"tid", tid},
                        {"ts", static_cast<double>(segment.begin) / per_us},
                        {"dur", static_cast<double>(segment.end - segment.begin) / per_us},
                        {"args", {{"block", segment.item}, {timeline.unit(), segment.end - segment.begin}}}});
  }
  return {{"traceEvents", std::move(events)},
          {"displayTimeUnit", "ns"},
          {"otherData",
           {{"problem", timeline.problem.id()},
            {"candidate", timeline.candidate},
            {"device", timeline.device.name},
            {"time", timeline.clock_mhz > 0            ? "microseconds of the device"
                     : timeline.device.limits.emulated ? "a microsecond is a step of the emulator"
                                                       : "a microsecond is a cycle; the clock is not known"},
            {"distortion", timeline.distortion.sentence()}}}};
}

}  // namespace flashcore
