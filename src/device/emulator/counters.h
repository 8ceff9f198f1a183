#pragma once
// What a launch did, counted. A warp's accesses are put together into requests as the hardware would make them: the
// n-th execution of an instruction by each of its lanes is one request.

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>

#include "device/emulator/source_lines.h"

namespace flashcore::emulator {

// Of one source line (one return address). Of a line that waits, `requests` are threads that waited, and the rest is 0.
// Of one that moves a tile with one instruction, `requests` are instructions, `bytes` is the size of a unit, and no
// lane takes part.
struct SiteCounters {
  enum Kind : std::uint8_t {
    kNone,
    kGlobalLoad,
    kGlobalStore,
    kSharedLoad,
    kSharedStore,
    kBarrierWait,  // bar.sync, the cluster's barrier
    kPhaseWait,    // mbarrier
    kCopyWait,     // cp.async.wait_group
    kTmaLoad,      // and a bulk copy: sectors of what it reads, once however many CTAs receive it
    kTmaStore,
    kOperands,  // of wgmma in shared memory: rows of 128 bytes, each a pass over the banks
  } kind = kNone;
  bool waits() const { return kind >= kBarrierWait && kind <= kCopyWait; }
  bool moves_tile() const { return kind >= kTmaLoad; }
  bool in_sectors() const {
    return kind == kGlobalLoad || kind == kGlobalStore || kind == kTmaLoad || kind == kTmaStore;
  }
  int bytes = 0;               // per lane
  std::uint64_t requests = 0;  // of a warp
  std::uint64_t lanes = 0;     // that took part, over all requests
  std::uint64_t possible = 0;  // that could have: the warp's, or those that the instruction takes addresses of
  std::uint64_t units = 0;     // sectors of 32 bytes (global) or passes over the banks (shared) they took
  std::uint64_t least = 0;     // the fewest they could have taken
  void add(const SiteCounters& other);
};

struct Counters {
  std::uint64_t ctas = 0;
  std::uint64_t mma_flops = 0, mma_instructions = 0;
  std::uint64_t mma_with_copies = 0;   // instructions while an asynchronous copy of the CTA was under way
  std::uint64_t copies_at_mma = 0;     // copies under way, summed over instructions
  std::uint64_t async_copies = 0;      // cp.async and TMA
  std::uint64_t tma_bytes = 0;         // into shared memory, what lies outside the tensor included
  std::uint64_t tma_stored_bytes = 0;  // into global memory
  std::uint64_t cluster_bytes = 0;     // into other CTAs' shared memory
  std::uint64_t ex2 = 0;
  std::uint64_t barrier_waits = 0;  // threads
  std::uint64_t copy_waits = 0;     // threads
  std::uint64_t steps = 0;          // of the thread that ends last (Knowledge::steps)
  std::map<const void*, SiteCounters> sites;
  void add(const Counters& other);
};

// The counters in the words of `flashcore bench --device emulator`. `lines_of` names a site.
nlohmann::json counters_json(const Counters& counters, const std::function<CallLines(const void*)>& lines_of);

// The requests of one warp at one site that not all lanes have joined yet.
class RequestLog {
 public:
  // Lane `lane` of a warp whose lanes are `full` accesses `address`; whole requests are counted into `site`.
  void add(int lane, std::uint64_t address, std::uint32_t full, SiteCounters& site);
  void flush(std::uint32_t full, SiteCounters& site);

 private:
  struct Request {
    std::uint32_t mask = 0;
    std::array<std::uint64_t, 32> address;
  };
  // A lane that never comes must not make the others' requests pile up. Fibers run ahead of each other by all the
  // copies of a prologue: a single warp starts 256 before its next lane begins.
  static constexpr std::size_t kMaxOpen = 4096;

  std::deque<Request> open_;
  std::uint32_t first_ = 0;  // number of open_.front()
  std::array<std::uint32_t, 32> next_{};
};

// Adds one instruction that moves `bytes`, in as few units as there can be.
void count_tile(SiteCounters::Kind kind, std::uint64_t bytes, SiteCounters& site);

// Adds one whole request of the lanes `mask` out of `full`.
void count_request(std::uint32_t mask, std::uint32_t full, const std::array<std::uint64_t, 32>& address,
                   SiteCounters& site);

}  // namespace flashcore::emulator
