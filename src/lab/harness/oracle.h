#pragma once
// What a candidate is judged against: inputs, the rows of them that are worth fp64, and the reference for those.

#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "core/data.h"
#include "core/reference.h"
#include "lab/harness/operands.h"
#include "lab/record/checks.h"

namespace flashcore {

// Sequences of a ragged batch that are shorter than those of the problem, on the same inputs.
struct ShorterSequences {
  std::vector<std::int32_t> block_table = {};  // of a paged problem, where it is another one
  std::vector<SequenceLengths> sequences;
  RowSample rows;
  Reference reference;
  ErrorBound bound;
};

inline constexpr std::size_t kAllSets = static_cast<std::size_t>(-1);

struct Oracle {
  double max_reference_flops = 0;  // that `rows` are chosen by, as is the seed
  std::uint64_t seed = 0;
  AttentionInputs inputs;
  RowSample rows;
  Reference reference;
  ErrorBound bound;
  // Where `rows` is a sample: every row by an idealised kernel in fp32. Filled by OracleCache::every_row().
  mutable std::optional<AttentionOutputs> every_row;
  // Filled by OracleCache::shorter().
  mutable std::vector<ShorterSequences> shorter, used;
  mutable std::shared_ptr<const Oracle> other;
};

// With what an OracleCache has added since it was made: of a ragged or paged problem that is as much again.
std::size_t bytes_of(const Oracle& oracle);

// The fp64 reference costs far more than the candidate it judges, and a search asks for the same one again and again:
// the latest are kept, up to `max_bytes`, which are counted whenever one is made. One per process that evaluates; not
// thread-safe.
class OracleCache {
 public:
  explicit OracleCache(std::size_t max_bytes = std::size_t{1} << 30) : max_bytes_(max_bytes) {}
  std::shared_ptr<const Oracle> get(const PlacedProblem& problem, Pattern pattern, std::uint64_t seed,
                                    double max_reference_flops);

  // Every row of one of this cache's oracles by ideal_forward(), computed once.
  static const AttentionOutputs& every_row(const PlacedProblem& problem, const Oracle& oracle);
  // Of one of a ragged problem: shorter_sequences(), `most` of them, and what they give, computed once. Until the next
  // call for the same oracle.
  static std::span<const ShorterSequences> shorter(const PlacedProblem& problem, const Oracle& oracle,
                                                   std::size_t most = kAllSets);
  // The same of other data, normal, in every operand: block tables, slopes, sinks, factors, and tensors of functions,
  // whose conditions hold in the first quarter of the last index, and whose whole numbers change every five places.
  static const Oracle& other(const PlacedProblem& problem, const Oracle& oracle);

  // Sequences that lie where the problem's do and of which the first rows and keys count: `reference` and `rows` are of
  // inputs and outputs whose rows that count are packed (pack_rows). Of the last two sets all rows of q, or all keys
  // count. Of a paged problem's first one a used entry of the table is -1, and one beyond the pool. As shorter().
  static std::span<const ShorterSequences> used(const PlacedProblem& problem, const Oracle& oracle,
                                                std::size_t most = kAllSets);

 private:
  struct Entry {
    std::string key;
    std::shared_ptr<const Oracle> oracle;
  };
  std::size_t max_bytes_;
  std::list<Entry> entries_;  // most recently used first
};

// The process's own.
OracleCache& shared_oracles();

// The first check that is switched on and finds the error out of bounds. Of error_bound, scale, bias and lse.
std::optional<Check> exceeded(const OutputError& error, const ErrorBound& bound);
// "relative error 0.1 exceeds its bound 0.01, ...": what is out of bounds.
std::string describe_error(const OutputError& error, const ErrorBound& bound);

// How close an error is to its bound: 1 is at the bound, the largest of its parts.
double share_of_bound(const OutputError& error, const ErrorBound& bound);

}  // namespace flashcore
