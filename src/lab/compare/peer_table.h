#pragma once
// Who takes part in a peer run: the programs that joined, what they offer, and the laboratory's own party. Asks them;
// of order, rounds and figures it knows nothing.

#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "device/device.h"
#include "lab/process/peer_process.h"

namespace flashcore {

inline constexpr const char* kLaboratory = "laboratory";
inline constexpr const char* kOurParty = "flashcore";

// One implementation on one problem.
struct Party {
  std::string name, version = {};
  std::vector<std::string> notes = {};
  int program = -1;  // in the table; below 0: the laboratory's
  int handle = -1, launches = 1;
  std::string code_hash = {};                   // of ours: of the machine code that its program made
  std::vector<double> times = {}, clocks = {};  // microseconds of one launch, MHz

  double clock_mhz() const;
  std::vector<double> rounded_samples() const;  // as rows keep them
};

// A party's program died, hung or answered a sample with an error. The next question to it starts it anew.
class PartyFailed : public std::runtime_error {
 public:
  PartyFailed(std::string name, const std::string& what) : std::runtime_error(what), party(std::move(name)) {}
  std::string party;
};

class PeerTable {
 public:
  // `seconds_left`: of the budget, which bounds the waits for programs, and not for the laboratory.
  PeerTable(std::string device, PeerDeadlines deadlines, std::function<bool()> stop,
            std::function<double()> seconds_left);
  // Starts the programs and hears what they offer. `wanted` empty: everything. Error kBadInput for a name that nobody
  // knows, for one that two programs offer, and for one that is empty or long; kEnvironment for a party `flashcore` of
  // another source than this program's, whose times would not be of what is gated here.
  void join(const std::vector<std::vector<std::string>>& programs, const std::vector<std::string>& wanted);
  void start_laboratory(const std::string& program);

  bool any() const { return !programs_.empty(); }
  const std::vector<Party>& offered() const { return offered_; }
  const std::map<std::string, std::string>& absent() const { return absent_; }
  const DeviceInfo& device() const { return device_; }
  const Ceilings& ceilings() const { return ceilings_; }

  nlohmann::json ask_laboratory(const nlohmann::json& question);  // PeerGone, PeerError
  // Fills handle, launches and notes; "" or why the party refused. PartyFailed.
  std::string prepare(Party& party, nlohmann::json question);
  void sample(Party& party, double warm_up_ms, double measure_ms);                 // PartyFailed
  nlohmann::json output(const Party& party, const std::filesystem::path& folder);  // PartyFailed
  void release_all();                                                              // what is prepared

 private:
  struct Program {
    std::unique_ptr<PeerProcess> process;
    std::vector<int> handles;
  };
  Program& program_of(const Party& party);
  nlohmann::json ask(const Party& party, const nlohmann::json& question);
  void greet(Program& program);

  std::string device_name_;
  PeerDeadlines deadlines_;
  std::function<bool()> stop_;
  std::function<double()> seconds_left_;
  std::vector<Program> programs_;
  Program laboratory_;
  std::vector<Party> offered_;
  std::map<std::string, std::string> absent_;
  nlohmann::json hello_;
  DeviceInfo device_;
  Ceilings ceilings_;
};

}  // namespace flashcore
