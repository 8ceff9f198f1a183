#include "lab/compare/peer_table.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "core/error.h"
#include "core/foreign_text.h"
#include "kernels/source_hash.h"
#include "lab/compare/peer_rows.h"
#include "lab/record/trial.h"
#include "lab/statistics/statistics.h"

namespace flashcore {

using nlohmann::json;

double Party::clock_mhz() const {
  std::vector<double> known;
  std::copy_if(clocks.begin(), clocks.end(), std::back_inserter(known), [](double mhz) { return mhz > 0; });
  return known.empty() ? 0 : median(known);
}

std::vector<double> Party::rounded_samples() const { return round_samples(times); }

namespace {

constexpr std::size_t kMaxPartyName = 64;
constexpr std::int64_t kMaxLaunches = 1'000'000;  // of one sample

void require_our_source(const PeerOffer& offer, const std::string& program) {
  if (offer.source_hash == source_hash()) return;
  throw_environment(
      "the peer program {} offers the party 'flashcore' of {}, and this program, which gates it, is of source {}: let "
      "both be of one build (unset FLASHCORE_LIBRARY and FLASHCORE_BINARY, or set both to it), or give the party "
      "another name",
      program, offer.source_hash.empty() ? "no \"source_hash\"" : "source " + excerpt(offer.source_hash),
      source_hash());
}

// A name is a key of results and a column of tables.
void require_name(const std::string& name, const std::string& program) {
  if (!name.empty() && name.size() <= kMaxPartyName) return;
  throw_bad_input("the peer program {} offers a party whose name {}; give it one of 1 to {} bytes", program,
                  name.empty() ? "is empty" : fmt::format("has {} bytes ('{}')", name.size(), excerpt(name, 40)),
                  kMaxPartyName);
}

}  // namespace

PeerTable::PeerTable(std::string device, PeerDeadlines deadlines, std::function<bool()> stop,
                     std::function<double()> seconds_left)
    : device_name_(std::move(device)),
      deadlines_(deadlines),
      stop_(std::move(stop)),
      seconds_left_(std::move(seconds_left)) {}

void PeerTable::join(const std::vector<std::vector<std::string>>& programs, const std::vector<std::string>& wanted) {
  hello_ = {{"op", "hello"}, {"protocol", PeerProcess::kProtocol}, {"device", device_name_}};
  if (!wanted.empty()) hello_["parties"] = wanted;
  const auto is_wanted = [&](const std::string& name) {
    return wanted.empty() || name == kOurParty || std::find(wanted.begin(), wanted.end(), name) != wanted.end();
  };
  std::set<std::string> names;
  for (std::size_t i = 0; i < programs.size(); ++i) {
    Program& program = programs_.emplace_back();
    program.process = std::make_unique<PeerProcess>(programs[i], deadlines_);
    program.process->cancel_when(stop_);
    program.process->bound_by(seconds_left_);
    const PeerHello hello = program.process->hello(hello_);
    for (const auto& [name, why] : hello.absent) require_name(name, program.process->name());
    for (const PeerOffer& offer : hello.parties) {
      require_name(offer.name, program.process->name());
      if (offer.name == kLaboratory || !names.insert(offer.name).second)
        throw_bad_input("the peer program {} offers '{}', which {}; give it another name", program.process->name(),
                        excerpt(offer.name), offer.name == kLaboratory ? "is ours" : "another one offers too");
      if (!is_wanted(offer.name)) continue;
      if (offer.name == kOurParty) require_our_source(offer, program.process->name());
      offered_.push_back(
          {.name = offer.name, .version = offer.version, .notes = offer.notes, .program = static_cast<int>(i)});
    }
    for (const auto& [name, why] : hello.absent)
      if (is_wanted(name)) absent_.emplace(name, why);
  }
  for (const std::string& name : wanted)
    if (!names.contains(name) && !absent_.contains(name))
      throw_bad_input("no program offers the peer '{}'; offered are {}", excerpt(name), fmt::join(names, ", "));
}

void PeerTable::start_laboratory(const std::string& program) {
  laboratory_.process = std::make_unique<PeerProcess>(
      std::vector<std::string>{program.empty() ? "/proc/self/exe" : program, "timer-server", "--device", device_name_},
      deadlines_);
  laboratory_.process->cancel_when(stop_);
  try {
    const json answer = laboratory_.process->ask({{"op", "device"}});
    device_ = answer.at("device").get<DeviceInfo>();
    ceilings_ = answer.at("ceilings").get<Ceilings>();
  } catch (const PeerError& e) {
    throw_environment("{}", e.what());
  } catch (const PeerGone& e) {
    throw_environment("the laboratory's process cannot start: {}", e.what());
  }
}

json PeerTable::ask_laboratory(const json& question) { return laboratory_.process->ask(question); }

PeerTable::Program& PeerTable::program_of(const Party& party) {
  return party.program < 0 ? laboratory_ : programs_.at(static_cast<std::size_t>(party.program));
}

// A program that was ended and is started anew hears the first question again.
void PeerTable::greet(Program& program) {
  if (&program == &laboratory_ || program.process->is_running()) return;
  if (program.process->was_given_up() && seconds_left_ && seconds_left_() <= 0)
    throw PeerGone("its program was ended before, and nothing is left of the budget to start it again");
  program.handles.clear();
  program.process->hello(hello_);
}

json PeerTable::ask(const Party& party, const json& question) {
  Program& program = program_of(party);
  try {
    greet(program);
    return program.process->ask(question);
  } catch (const PeerGone& e) {
    program.handles.clear();
    throw PartyFailed(party.name, e.what());
  } catch (const PeerError& e) {
    throw PartyFailed(party.name, e.what());
  } catch (const Error& e) {
    throw PartyFailed(party.name, e.what());
  }
}

std::string PeerTable::prepare(Party& party, json question) {
  question["party"] = party.name;
  json answer;
  try {
    answer = ask(party, question);
  } catch (const PartyFailed& failed) {
    if (program_of(party).process->is_running()) return failed.what();
    throw;
  }
  try {
    if (answer.contains("refused")) return answer.at("refused").get<std::string>();
    party.handle = answer.at("handle").get<int>();
    program_of(party).handles.push_back(party.handle);
    const json launches = answer.value("launches", json(1));
    const bool is_count = launches.is_number_integer() && launches >= 1 && launches <= kMaxLaunches;
    if (!is_count)
      return fmt::format("its answer to prepare has launches {}; a sample is of 1 to {} launches",
                         excerpt(launches.dump(), 40), kMaxLaunches);
    party.launches = launches.get<int>();
    party.code_hash = answer.value("code_hash", "");
    if (answer.contains("notes"))
      for (const auto& note : answer.at("notes").get<std::vector<std::string>>()) party.notes.push_back(note);
  } catch (const json::exception& e) {
    return fmt::format("its answer to prepare is not of the form that docs/peers.md has ({})", e.what());
  }
  return "";
}

void PeerTable::sample(Party& party, double warm_up_ms, double measure_ms) {
  const json answer =
      ask(party, {{"op", "sample"}, {"handle", party.handle}, {"warm_up_ms", warm_up_ms}, {"measure_ms", measure_ms}});
  const auto number = [&](const char* key) {
    return answer.contains(key) && answer[key].is_number() ? answer[key].get<double>() : 0.0;
  };
  const double time_us = number("time_us");
  if (!(time_us > 0) || !std::isfinite(time_us))
    throw PartyFailed(party.name, fmt::format("its sample is {} instead of a time", answer.dump()));
  party.times.push_back(time_us);
  party.clocks.push_back(number("clock_mhz"));
}

json PeerTable::output(const Party& party, const std::filesystem::path& folder) {
  return ask(party, {{"op", "output"}, {"handle", party.handle}, {"folder", folder.string()}});
}

void PeerTable::release_all() {
  std::vector<Program*> all = {&laboratory_};
  for (Program& program : programs_) all.push_back(&program);
  for (Program* program : all) {
    for (const int handle : std::exchange(program->handles, {})) {
      if (!program->process->is_running()) break;
      try {
        program->process->ask({{"op", "release"}, {"handle", handle}});
      } catch (const PeerError&) {  // it had let go of it already
      } catch (const PeerGone&) {
      }
    }
  }
}

}  // namespace flashcore
