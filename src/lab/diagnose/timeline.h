#pragma once
// Timeline: what each warp of a kernel did and when, from the marks of an instrumented build
// (kernels/tile/timeline.cuh), and what the marks themselves cost.

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/family.h"
#include "kernels/tile/activity.h"
#include "lab/record/trial.h"

namespace flashcore {

std::string_view word_of(tile::Role role);           // "consumer"
std::string_view word_of(tile::Activity activity);   // "wait_k", in JSON
std::string_view title_of(tile::Activity activity);  // "wait for K", for people
bool is_wait(tile::Activity activity);
// Q·K or P·V.
bool is_multiply(tile::Activity activity);

struct Segment {
  tile::Activity activity;
  std::uint32_t item;        // the block of keys, where the kernel says one
  std::uint64_t begin, end;  // of Timeline::unit, from the first recorded one on
};

// One warp. Its segments follow each other without a gap.
struct Track {
  tile::Role role = tile::Role::kWarp;
  std::uint32_t cta = 0, warp = 0;
  std::optional<std::uint32_t> sm;  // none on the emulator, where each CTA has a clock of its own
  std::vector<Segment> segments;
  std::uint64_t dropped = 0;  // records that found no place; then the segments are the track's beginning
  std::uint64_t begin() const { return segments.empty() ? 0 : segments.front().begin; }
  std::uint64_t end() const { return segments.empty() ? 0 : segments.back().end; }
};

// What marks cost. Times are of interleaved samples; steps, on the emulator, of one launch each.
struct Distortion {
  std::optional<Comparison> comparison;  // speed-up of the instrumented build over the plain one
  double plain_us = 0, instrumented_us = 0;
  std::uint64_t plain_steps = 0, instrumented_steps = 0;
  // Of a GPU's compiler; none on the emulator.
  std::optional<KernelFacts> plain_build, instrumented_build;
  // "1.6% slower (95% 1.2% to 2.1%)".
  std::string sentence() const;
};

struct Timeline {
  PlacedProblem problem;
  std::string candidate;
  DeviceInfo device;
  double clock_mhz = 0;  // cycles per us; 0: not known, or steps of the emulator
  std::uint64_t launched_ctas = 0, recorded_ctas = 0, dropped = 0;
  std::vector<Track> tracks;  // by CTA, then warp; of warps that have a role
  Distortion distortion;
  // What is wrong with the marks or the outputs: such a timeline is not to be believed.
  std::vector<std::string> faults;
  const char* unit() const { return device.limits.emulated ? "steps" : "cycles"; }
  std::uint64_t end() const;
  std::uint64_t marked() const;  // from the first mark to the last
};

// A role's time in one activity, over all its tracks.
struct ActivitySum {
  tile::Role role;
  tile::Activity activity;
  std::uint64_t total = 0;
  double share = 0;  // of the role's whole time
  std::uint64_t count = 0;
  double median = 0;  // of one segment
};
// By role, longest first. The shares of a role are 1 together.
std::vector<ActivitySum> activity_sums(const Timeline& timeline);
// Of the recorded CTAs' time, how much has a warp in Q·K or P·V; 0 without tracks.
double multiplying_share(const Timeline& timeline);

struct TimelineOptions {
  int ctas = 16;  // at most so many, evenly spaced over the grid
  std::size_t buffer_bytes = std::size_t{64} << 20;
  std::uint64_t seed = 1;
  bool compare = true;  // times both builds, on a device with a clock
  bool judge = true;    // by the quick gate first; a candidate that fails it has a fault and no tracks
};
// Error kBadInput: a family without marks, a problem without query rows, more tracks than the buffer holds. An emulated
// device has launched nothing yet: its odd launches are not counted.
Timeline record_timeline(Device& device, const PlacedProblem& problem, const Candidate& candidate,
                         const TimelineOptions& options);

// The tracks of a buffer whose first byte is a track's; times are clocks as they are. Adds to `faults`.
struct RawTrack {
  Track track;
  tile::TrackHeader header;
  bool ended = false;  // its end was read
  // The last mark and the common time are of one moment: a track without its end, or with dropped marks, has lost the
  // mark and kept the time.
  bool has_end_time() const { return ended && track.dropped == 0 && header.last_time_ns > header.first_time_ns; }
};
std::vector<RawTrack> decode_tracks(std::span<const std::byte> buffer, std::size_t track_bytes,
                                    std::vector<std::string>& faults);
// Puts the clocks of all SMs onto one axis that begins at 0, by the device's common time.
void align_clocks(std::vector<RawTrack>& tracks, double clock_mhz);
// Cycles per us by the tracks themselves; 0 where they have no common time.
double clock_of_tracks(const std::vector<RawTrack>& tracks);

// One of the results of flashcore.timeline/1:
// {"problem", "candidate", ..., "tracks": [{"role", "cta", "warp", "sm", "segments": [[activity, item, begin, end]]}]}.
inline constexpr const char* kTimelineSchema = "flashcore.timeline/1";
nlohmann::json timeline_json(const Timeline& timeline);
// The Trace Event Format, which Perfetto and chrome://tracing open: a process for each CTA, a thread for each warp. A
// step of the emulator is shown as a microsecond.
nlohmann::json timeline_trace(const Timeline& timeline);

}  // namespace flashcore
