#pragma once
// A peer: a program beside us that makes attention ready, and answers JSON lines (docs/peers.md has the protocol).
// Whatever it does, hangs, floods, dies or talks nonsense, the one who asks goes on.

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/child_process.h"

namespace flashcore {

// The peer has ended, or was ended because it did not keep to the protocol. The next question starts it anew.
class PeerGone : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// What the peer answered instead: {"error": "..."}. It goes on.
class PeerError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// An implementation that a peer offers.
struct PeerOffer {
  std::string name, version;
  std::vector<std::string> notes;  // "writes no LSE"
  std::string source_hash;         // of the party `flashcore`: of the library that it calls
};

struct PeerHello {
  std::string name;
  std::vector<PeerOffer> parties;
  std::map<std::string, std::string> absent;  // name -> why it cannot be had here
};

// Seconds until an answer to each question is overdue.
struct PeerDeadlines {
  double hello = 240, prepare = 900, other = 180;
  double least = 10;  // also where less is left of a budget, or the answers of all who are honest would be lost with it
  double of(const std::string& op) const {
    return op == "hello" ? hello : op == "prepare" || op == "judge" ? prepare : other;
  }
};

class PeerProcess {
 public:
  static constexpr int kProtocol = 1;

  // `command`: a program, found as execvp would, and its arguments.
  explicit PeerProcess(std::vector<std::string> command, PeerDeadlines deadlines = {});
  // Its first question; checks the answer's shape. Error kEnvironment if it cannot be started or does not answer so.
  PeerHello hello(const nlohmann::json& question);
  // One object out, one back. PeerGone, PeerError, or Cancelled (lab/process/worker.h) if `cancelled` says so.
  nlohmann::json ask(const nlohmann::json& question);
  void cancel_when(std::function<bool()> cancelled) { cancelled_ = std::move(cancelled); }
  // No wait is longer than what `seconds_left` says, but for PeerDeadlines::least.
  void bound_by(std::function<double()> seconds_left) { seconds_left_ = std::move(seconds_left); }
  bool is_running() const { return child_ != nullptr; }
  // It was ended because it kept silent or wrote without end, and has not been started since.
  bool was_given_up() const { return given_up_; }
  const std::string& name() const { return command_.front(); }
  void end();  // its stdin closes, and it is ended

 private:
  [[noreturn]] void lose(const std::string& what);
  [[noreturn]] void give_up(const std::string& what);
  void start();

  std::vector<std::string> command_;
  PeerDeadlines deadlines_;
  std::function<bool()> cancelled_;
  std::function<double()> seconds_left_;
  bool given_up_ = false;
  std::unique_ptr<ChildProcess> child_;
};

// A command as `--peer` has it: a JSON list of words, or one program without arguments.
std::vector<std::string> parse_peer_command(const std::string& text);

}  // namespace flashcore
