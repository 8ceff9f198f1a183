#include "device/emulator/clocks.h"

namespace flashcore::emulator {
namespace {

void join_times(std::vector<std::uint32_t>& into, const std::vector<std::uint32_t>& from) {
  if (into.size() < from.size()) into.resize(from.size(), 0);
  for (std::size_t i = 0; i < from.size(); ++i) into[i] = std::max(into[i], from[i]);
}

}  // namespace

void Clocks::raise(std::vector<std::uint32_t>& times, Agent agent, std::uint32_t time) {
  if (times.size() <= agent) times.resize(agent + std::size_t{1}, 0);
  times[agent] = std::max(times[agent], time);
}

void Clocks::join(const Clocks& other) {
  join_times(seen, other.seen);
  join_times(fenced, other.fenced);
  steps = std::max(steps, other.steps);
}

void Knowledge::see(Agent other, std::uint32_t time_of_other) {
  auto more = std::make_shared<Clocks>(*base);
  Clocks::raise(more->seen, other, time_of_other);
  base = std::move(more);
}

void HandOver::release(Knowledge& from) {
  if (std::find(joined_.begin(), joined_.end(), from.base) == joined_.end()) {
    gathered_.join(*from.base);
    joined_.push_back(from.base);
  }
  gathered_.steps = std::max(gathered_.steps, from.steps);
  Clocks::raise(gathered_.seen, from.agent, from.time);
  for (const OwnAgent& mine : from.own) {
    if (mine.agent != kNobody && mine.seen > 0) Clocks::raise(gathered_.seen, mine.agent, mine.seen);
  }
  ++from.time;
}

SharedClocks HandOver::take() {
  auto taken = std::make_shared<const Clocks>(std::move(gathered_));
  gathered_ = {};
  joined_.clear();
  return taken;
}

void ClockJoiner::acquire(Knowledge& to, const SharedClocks& from) {
  to.steps = std::max(to.steps, from->steps);
  if (to.base == from) return;
  for (const Entry& entry : recent_) {
    if (entry.a == to.base && entry.b == from) {
      to.base = entry.joined;
      return;
    }
  }
  auto joined = std::make_shared<Clocks>(*to.base);
  joined->join(*from);
  recent_[next_++ % 8] = {to.base, from, joined};
  to.base = std::move(joined);
}

}  // namespace flashcore::emulator
