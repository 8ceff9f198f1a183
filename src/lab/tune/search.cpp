#include "lab/tune/search.h"

#include <algorithm>
#include <limits>

#include "core/error.h"
#include "core/random.h"

namespace flashcore {
namespace {

class ExhaustiveSearch : public Search {
 public:
  explicit ExhaustiveSearch(SearchSpace space) : Search(std::move(space)) {}

 private:
  std::size_t choose() override {
    while (!is_untried(next_)) ++next_;
    return next_;
  }
  std::size_t next_ = 0;
};

class RandomSearch : public Search {
 public:
  RandomSearch(SearchSpace space, std::uint64_t seed) : Search(std::move(space)), random_(seed) {}

 protected:
  // The n-th untried point: uniform, and it ends even when one is left of a hundred thousand.
  std::size_t random_untried() {
    std::size_t skip = random_.below(untried());
    for (std::size_t index = 0;; ++index)
      if (is_untried(index) && skip-- == 0) return index;
  }
  SplitMix& random() { return random_; }

 private:
  std::size_t choose() override { return random_untried(); }
  SplitMix random_;
};

class EvolutionSearch final : public RandomSearch {
 public:
  EvolutionSearch(SearchSpace space, std::uint64_t seed) : RandomSearch(std::move(space), seed) {}

 private:
  static constexpr std::size_t kFounders = 6;  // random points before breeding starts
  static constexpr std::size_t kElites = 12;   // who may breed
  static constexpr std::size_t kTournament = 3;
  static constexpr double kImmigrants = 0.1;  // share of proposals drawn at random: the way out of a local optimum
  static constexpr int kAttempts = 40;        // children that may turn out infeasible or tried before one gives up

  struct Individual {
    std::size_t index;
    double cost;
  };

  void learn(std::size_t index, double cost) override {
    if (cost == std::numeric_limits<double>::infinity()) return;
    const auto at = std::upper_bound(elites_.begin(), elites_.end(), cost,
                                     [](double c, const Individual& i) { return c < i.cost; });
    elites_.insert(at, {index, cost});
    if (elites_.size() > kElites) elites_.pop_back();
    ++learnt_;
  }

  std::size_t choose() override {
    if (learnt_ < kFounders || random().uniform() < kImmigrants) return random_untried();
    for (int attempt = 0; attempt < kAttempts; ++attempt) {
      const auto child = index_of(mutate(cross(parent(), parent()), attempt));
      if (child && is_untried(*child)) return *child;
    }
    return random_untried();
  }

  const ConfigValues& parent() {
    std::size_t best = random().below(elites_.size());
    for (std::size_t round = 1; round < kTournament; ++round) best = std::min(best, random().below(elites_.size()));
    return space().feasible[elites_[best].index];
  }

  ConfigValues cross(const ConfigValues& a, const ConfigValues& b) {
    ConfigValues child = a;
    for (std::size_t i = 0; i < child.size(); ++i)
      if (random().below(2)) child[i] = b[i];
    return child;
  }

  // One field on average moves to a neighbouring value; later attempts mutate more, because what is near has been
  // tried.
  ConfigValues mutate(ConfigValues config, int attempt) {
    const auto& fields = space().space.fields();
    const double rate = (1.0 + attempt / 10) / static_cast<double>(std::max<std::size_t>(fields.size(), 1));
    for (std::size_t i = 0; i < fields.size(); ++i) {
      if (random().uniform() >= rate) continue;
      const auto& values = fields[i].values;
      const auto at = static_cast<std::size_t>(std::find(values.begin(), values.end(), config[i]) - values.begin());
      const std::size_t moved = random().below(2) ? at + 1 : at - 1;  // below 0 wraps past the end
      if (moved < values.size()) config[i] = values[moved];
    }
    return config;
  }

  std::vector<Individual> elites_;  // best first
  std::size_t learnt_ = 0;
};

}  // namespace

Search::Search(SearchSpace space)
    : space_(std::move(space)), untried_(space_.feasible.size(), 1), untried_count_(space_.feasible.size()) {
  for (std::size_t i = 0; i < space_.feasible.size(); ++i) by_config_.emplace_back(space_.feasible[i], i);
  std::sort(by_config_.begin(), by_config_.end());
}

void Search::learn(std::size_t, double) {}

std::optional<std::size_t> Search::index_of(const ConfigValues& config) const {
  const auto at = std::lower_bound(by_config_.begin(), by_config_.end(), config,
                                   [](const auto& entry, const ConfigValues& c) { return entry.first < c; });
  if (at == by_config_.end() || at->first != config) return std::nullopt;
  return at->second;
}

void Search::mark_tried(std::size_t index) {
  if (!untried_[index]) return;
  untried_[index] = 0;
  --untried_count_;
}

std::optional<ConfigValues> Search::propose() {
  if (untried_count_ == 0) return std::nullopt;
  const auto first = index_of(space_.first);
  const std::size_t index = first && is_untried(*first) ? *first : choose();
  FC_CHECK(index < space_.feasible.size() && is_untried(index));
  mark_tried(index);
  return space_.feasible[index];
}

void Search::observe(const Trial& trial) {
  std::optional<std::size_t> index;
  try {
    index = index_of(space_.space.parse(trial.config, space_.first, trial.family));
  } catch (const Error&) {
    return;  // a stored trial of a config that the space no longer has
  }
  if (!index) return;
  mark_tried(*index);
  if (const auto cost = cost_of(trial)) learn(*index, *cost);
}

std::optional<double> cost_of(const Trial& trial) {
  if (trial.timing) return trial.timing->p50_us;
  if (trial.ended == Ended::kPassed || trial.ended == Ended::kInconclusive || trial.ended == Ended::kError ||
      trial.ended == Ended::kEnvironment)
    return std::nullopt;
  return std::numeric_limits<double>::infinity();
}

std::unique_ptr<Search> make_search(std::string_view strategy, SearchSpace space, std::uint64_t seed) {
  if (strategy == "exhaustive") return std::make_unique<ExhaustiveSearch>(std::move(space));
  if (strategy == "random") return std::make_unique<RandomSearch>(std::move(space), seed);
  if (strategy == "evolution") return std::make_unique<EvolutionSearch>(std::move(space), seed);
  throw_bad_input("unknown search strategy '{}'; it is one of: evolution, random, exhaustive", strategy);
}

}  // namespace flashcore
