#include "lab/process/peer_process.h"

#include <algorithm>
#include <chrono>

#include "core/error.h"
#include "core/foreign_text.h"
#include "core/json_text.h"
#include "core/process_end.h"
#include "lab/process/worker.h"
#include "lab/record/json_io.h"

namespace flashcore {
namespace {

using nlohmann::json;
using Talk = ChildProcess::Talk;

ChildProcess::Clock::time_point deadline_in(double seconds) {
  return ChildProcess::Clock::now() +
         std::chrono::duration_cast<ChildProcess::Clock::duration>(std::chrono::duration<double>(seconds));
}

PeerOffer parse_offer(const json& offer) {
  PeerOffer made{offer.at("name").get<std::string>(), offer.value("version", ""), {}, offer.value("source_hash", "")};
  if (offer.contains("notes")) made.notes = offer.at("notes").get<std::vector<std::string>>();
  return made;
}

}  // namespace

PeerProcess::PeerProcess(std::vector<std::string> command, PeerDeadlines deadlines)
    : command_(std::move(command)), deadlines_(deadlines) {
  FC_CHECK(!command_.empty());
}

void PeerProcess::start() {
  std::vector<std::string> command = command_;
  command.front() = find_program(command_.front());
  if (command.front().empty())
    throw_environment("the peer's program '{}' is not here, or cannot be executed; give a path or a name on PATH",
                      excerpt(command_.front()));
  child_ = std::make_unique<ChildProcess>(command);
  given_up_ = false;
}

void PeerProcess::lose(const std::string& what) {
  const std::string words = child_->stderr_tail();
  child_.reset();
  throw PeerGone(fmt::format("{} {}{}", command_.front(), what, words.empty() ? "" : ": " + words));
}

void PeerProcess::give_up(const std::string& what) {
  given_up_ = true;
  lose(what);
}

json PeerProcess::ask(const json& question) {
  if (!child_) start();
  const auto op = question.at("op").get<std::string>();
  const double limit = deadlines_.of(op);
  const double seconds = seconds_left_ ? std::min(limit, std::max(seconds_left_(), deadlines_.least)) : limit;
  const auto deadline = deadline_in(seconds);
  Talk talk = child_->send_line(dump_line(question), deadline, cancelled_);
  std::string line;
  if (talk == Talk::kDone) talk = child_->read_line(line, deadline, cancelled_);
  switch (talk) {
    case Talk::kDone: break;
    case Talk::kCancelled: child_.reset(); throw Cancelled("stopped while a peer was asked for " + op);
    case Talk::kClosed: lose(fmt::format("{} while asked for {}", child_->how_it_ended(), op));
    case Talk::kTimeout:
      give_up(fmt::format("gave no answer to {} within {:.3g} s{} and was ended", op, seconds,
                          seconds < limit ? ", which the budget left it," : ""));
    case Talk::kFlood: give_up(fmt::format("answered {} without end and was ended", op));
  }
  json answer;
  try {
    answer = parse_json(line, "the answer");
  } catch (const Error&) {
  }
  if (!answer.is_object())
    lose(
        fmt::format("answered {} with '{}', which is no JSON object (what libraries print belongs on stderr), and was "
                    "ended",
                    op, excerpt(line, 120)));
  if (answer.contains("error"))
    throw PeerError(answer["error"].is_string() ? answer["error"].get<std::string>() : answer["error"].dump());
  return answer;
}

PeerHello PeerProcess::hello(const json& question) {
  std::string why;
  try {
    const json answer = ask(question);
    PeerHello hello;
    if (answer.value("protocol", 0) != kProtocol)
      throw_environment("it speaks protocol {}, and this program {}", answer.value("protocol", json()).dump(),
                        kProtocol);
    hello.name = answer.value("name", command_.front());
    for (const json& offer : answer.at("parties")) hello.parties.push_back(parse_offer(offer));
    if (answer.contains("absent")) hello.absent = answer.at("absent").get<std::map<std::string, std::string>>();
    return hello;
  } catch (const json::exception& e) {
    why = fmt::format("its answer to hello is not of the form that docs/peers.md has ({})", e.what());
  } catch (const PeerGone& e) {
    throw_environment("a peer cannot join: {}", e.what());
  } catch (const std::runtime_error& e) {
    if (dynamic_cast<const Cancelled*>(&e)) throw;
    why = e.what();
  }
  throw_environment("the peer {} cannot join: {}", command_.front(), why);
}

void PeerProcess::end() { child_.reset(); }

std::vector<std::string> parse_peer_command(const std::string& text) {
  if (!text.starts_with("[")) return {text};
  const json words = parse_json(text, "--peer");
  const bool all_words = words.is_array() && !words.empty() &&
                         std::all_of(words.begin(), words.end(), [](const json& word) { return word.is_string(); });
  if (!all_words)
    throw_bad_input("--peer {} is no list of words; give a program, or [\"program\", \"argument\"]", text);
  return words.get<std::vector<std::string>>();
}

}  // namespace flashcore
