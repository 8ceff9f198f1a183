#pragma once
// Search: which config to try next. Only feasible points are ever proposed, each at most once.

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "core/config_space.h"
#include "lab/record/trial.h"

namespace flashcore {

// What a search may draw from: one family's space and its feasible points (kernels/family.h, feasible_configs).
struct SearchSpace {
  ConfigSpace space;
  std::vector<ConfigValues> feasible;
  ConfigValues first;  // the default config: proposed first if it is feasible
};

class Search {
 public:
  virtual ~Search() = default;
  // None once every feasible point has been proposed or observed.
  std::optional<ConfigValues> propose();
  // Learns from a trial of this space, proposed here or read from the store (trial.config is parsed). A point that is
  // observed is not proposed again.
  void observe(const Trial& trial);

  std::size_t untried() const { return untried_count_; }

 protected:
  explicit Search(SearchSpace space);
  // An index into feasible() that is untried; called only while there is one.
  virtual std::size_t choose() = 0;
  // `cost`: lower is better, infinite for a failure.
  virtual void learn(std::size_t index, double cost);

  const SearchSpace& space() const { return space_; }
  bool is_untried(std::size_t index) const { return untried_[index]; }
  std::optional<std::size_t> index_of(const ConfigValues& config) const;

 private:
  void mark_tried(std::size_t index);

  SearchSpace space_;
  std::vector<char> untried_;
  std::size_t untried_count_ = 0;
  std::vector<std::pair<ConfigValues, std::size_t>> by_config_;  // sorted
};

// "exhaustive": in order. "random": uniform without replacement. "evolution": tournaments among the best so far,
// crossover field by field, mutation to a neighbouring value. Error kBadInput listing them on another word.
std::unique_ptr<Search> make_search(std::string_view strategy, SearchSpace space, std::uint64_t seed);

// What a search minimises: the median time in microseconds; infinite for a trial that failed before it had one; none if
// the trial says nothing of the config's speed (not timed because an identical one was, or an error that was not its
// fault).
std::optional<double> cost_of(const Trial& trial);

}  // namespace flashcore
