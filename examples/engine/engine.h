// Continuous batching: requests arrive at any time, each step computes a few rows of many, pages follow the lengths.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "attention.h"
#include "model.h"
#include "pages.h"

namespace engine {

struct Request {
  int id = 0, arrives = 0;  ///< at which step
  int prompt = 0, wanted = 0;
  std::vector<int> tokens;          ///< the prompt, and what was generated
  std::vector<std::int32_t> pages;  ///< of the cache, in the order of the keys
  int cached = 0;                   ///< tokens whose keys are in the cache
  std::vector<float> rows;          ///< what the last layer made of each cached token, [cached, width]

  int pending() const { return static_cast<int>(tokens.size()) - cached; }
  int most_keys() const { return prompt + wanted - 1; }  ///< the last token is never attended to
};

struct Counts {
  int steps = 0, prompt_tokens = 0, generated = 0, finished = 0;
  double attention_seconds = 0;
};

/// Random prompts, which arrive `per_step` to a step on average.
struct Traffic {
  int requests = 24, longest_prompt = 96, longest_output = 24;
  double per_step = 0.5;
};
std::deque<Request> random_requests(const Traffic& traffic, int vocabulary, std::uint64_t seed);

class Engine {
 public:
  /// With `share_a_page` requests wrongly have a page in common, for check() to find.
  Engine(const flashcore::Context& context, const ToyModel& model, const CacheSizes& cache, fc_dtype dtype,
         std::deque<Request> requests, bool share_a_page);

  bool is_done() const { return waiting_.empty() && running_.empty(); }
  void step();
  /// Each finished request again, alone and dense: the largest relative distance of a row.
  double check() const;

  const Counts& counts() const { return counts_; }
  const PagePool& pool() const { return pool_; }
  const Attention& attention() const { return attention_; }
  int running() const { return static_cast<int>(running_.size()); }
  /// Requests that have arrived and do not run yet.
  int queued() const;

 private:
  struct Share {
    Request* request;
    int rows;
  };
  void admit();
  std::vector<Share> share_rows();
  StepTables tables_of(const std::vector<Share>& shares);
  void append(int layer, const Share& share, std::span<const float> k, std::span<const float> v);
  void finish_rows(const std::vector<Share>& shares, std::span<const float> x);
  int pages_of(int keys) const { return (keys + attention_.sizes().page_size - 1) / attention_.sizes().page_size; }
  int page_at(const Request& request, int index) const;

  const ToyModel& model_;
  Attention attention_;
  PagePool pool_;
  std::deque<Request> waiting_;
  std::vector<std::unique_ptr<Request>> running_, finished_;
  int promised_ = 0;  // pages that running requests may take at most
  bool share_a_page_;
  Counts counts_;
};

}  // namespace engine
