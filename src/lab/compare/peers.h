#pragma once
// flashcore beside other attentions, measured by one engine. Peers are programs that make attention ready and answer
// JSON lines (docs/peers.md). In each round every party gives one sample, in an order drawn by chance, each after the
// same idle gap, so that a drifting clock meets all alike. Timed outputs are judged here against fp64, and only what is
// right has a time.
//
// A program that offers a party named "flashcore" times ours in its own process, as it times its peers; that is what is
// published then. Its library must be of the source that is gated here, and the laboratory's own samples of the same
// rounds must agree with it (kAgreement, kCpuAgreement).

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/suite.h"
#include "lab/measure/spec.h"
#include "lab/process/peer_process.h"
#include "lab/record/checkout.h"
#include "lab/record/store.h"

namespace flashcore {

struct PeersOptions : MeasurementSpec {  // the seed is of the inputs; max_seconds is not used
  std::string device;                    // as open_device
  bool on_gpu = false;
  Suite suite;
  std::optional<std::string> candidate;            // none: what dispatch picks
  std::vector<std::vector<std::string>> programs;  // the peers' commands
  std::vector<std::string> parties;                // names wanted; empty: every one that is offered
  int rounds = 24;
  std::uint64_t order_seed = 0;  // of the order of rounds; 0: by chance
  double budget_seconds = 440;   // peers that are slow to set up are left out when it runs short; it bounds waits
  double gap_ms = -1;            // idle before each sample; negative: the device's default
  Checkout checkout;             // recorded
  std::string laboratory;        // the program whose timer-server is asked; empty: this one
  PeerDeadlines deadlines = {};
};

struct PeersResult {
  std::string run;
  nlohmann::json rows = nlohmann::json::array();  // flashcore.bench/1, one per problem that was begun
  std::map<std::string, std::string> absent;      // peer -> why it cannot be had here
  bool interrupted = false;
};

// Hears each row when it is done, and who is absent from all.
using PeersProgress = std::function<void(const nlohmann::json& row, const std::map<std::string, std::string>& absent)>;

// Error kEnvironment if a program cannot join; kBadInput if a wanted party is offered by none.
PeersResult run_peers(const PeersOptions& options, Store* store, const PeersProgress& progress,
                      const std::function<bool()>& stop);

}  // namespace flashcore
