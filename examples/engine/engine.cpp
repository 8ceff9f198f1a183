#include "engine.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <random>

namespace engine {
namespace {

std::span<float> row_of(std::vector<float>& rows, int row, int width) {
  return std::span(rows).subspan(static_cast<std::size_t>(row) * static_cast<std::size_t>(width),
                                 static_cast<std::size_t>(width));
}

std::vector<float> matrix(int rows, int width) {
  return std::vector<float>(static_cast<std::size_t>(rows) * static_cast<std::size_t>(width));
}

}  // namespace

std::deque<Request> random_requests(const Traffic& traffic, int vocabulary, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto from_1_to = [&](int most) { return std::uniform_int_distribution<int>(1, most)(random); };
  std::exponential_distribution<double> gap(traffic.per_step);
  std::deque<Request> requests;
  double at = 0;
  for (int id = 0; id < traffic.requests; ++id, at += gap(random)) {
    Request request;
    request.id = id, request.arrives = static_cast<int>(at);
    request.prompt = from_1_to(traffic.longest_prompt), request.wanted = from_1_to(traffic.longest_output);
    for (int i = 0; i < request.prompt; ++i) request.tokens.push_back(from_1_to(vocabulary) - 1);
    requests.push_back(std::move(request));
  }
  return requests;
}

Engine::Engine(const flashcore::Context& context, const ToyModel& model, const CacheSizes& cache, fc_dtype dtype,
               std::deque<Request> requests, bool share_a_page)
    : model_(model),
      attention_(context, model.sizes(), cache, dtype),
      pool_(cache.pages),
      waiting_(std::move(requests)),
      share_a_page_(share_a_page) {}

int Engine::queued() const {
  return static_cast<int>(
      std::count_if(waiting_.begin(), waiting_.end(), [&](const Request& r) { return r.arrives <= counts_.steps; }));
}

// In the order of arrival. A request is let in when the pool has pages for all that it may ever need, so that none has
// to be thrown out; it takes them as it grows.
void Engine::admit() {
  const CacheSizes& sizes = attention_.sizes();
  while (!waiting_.empty() && waiting_.front().arrives <= counts_.steps && running() < sizes.max_requests) {
    const int needed = pages_of(waiting_.front().most_keys());
    if (promised_ + needed > pool_.pages()) return;
    promised_ += needed;
    running_.push_back(std::make_unique<Request>(std::move(waiting_.front())));
    waiting_.pop_front();
  }
}

// Decoding requests get their row first, so that a long prompt delays nobody; prompts share what is left, in chunks.
std::vector<Engine::Share> Engine::share_rows() {
  std::vector<Share> shares;
  int left = attention_.sizes().max_rows;
  for (const bool decoding : {true, false})
    for (const auto& request : running_) {
      const bool is_decoding = request->cached >= request->prompt;
      const int rows = std::min(request->pending(), left);
      if (is_decoding == decoding && rows > 0) shares.push_back({request.get(), rows}), left -= rows;
    }
  return shares;
}

int Engine::page_at(const Request& request, int index) const {
  if (share_a_page_ && index == 0) return running_.front()->pages.front();
  return request.pages[static_cast<std::size_t>(index)];
}

// Slots that no request has get no rows and no keys.
StepTables Engine::tables_of(const std::vector<Share>& shares) {
  const CacheSizes& sizes = attention_.sizes();
  StepTables tables{.cu_seqlens_q = {0},
                    .seqused_kv = std::vector<std::int32_t>(static_cast<std::size_t>(sizes.max_requests)),
                    .block_table = std::vector<std::int32_t>(
                        static_cast<std::size_t>(sizes.max_requests) * static_cast<std::size_t>(sizes.max_pages), -1)};
  for (std::size_t s = 0; s < static_cast<std::size_t>(sizes.max_requests); ++s) {
    const int rows = s < shares.size() ? shares[s].rows : 0;
    tables.cu_seqlens_q.push_back(tables.cu_seqlens_q.back() + rows);
    if (rows == 0) continue;
    Request& request = *shares[s].request;
    const int keys = request.cached + rows;
    while (static_cast<int>(request.pages.size()) < pages_of(keys)) request.pages.push_back(pool_.take());
    tables.seqused_kv[s] = keys;
    tables.is_decoding = tables.is_decoding && rows == 1;
  }
  for (std::size_t s = 0; s < shares.size(); ++s)
    for (std::size_t p = 0; p < shares[s].request->pages.size(); ++p)
      tables.block_table[s * static_cast<std::size_t>(sizes.max_pages) + p] =
          page_at(*shares[s].request, static_cast<int>(p));
  return tables;
}

void Engine::append(int layer, const Share& share, std::span<const float> k, std::span<const float> v) {
  const int page_size = attention_.sizes().page_size;
  const auto width = static_cast<std::size_t>(model_.sizes().width_kv());
  for (int row = 0; row < share.rows;) {
    const int key = share.request->cached + row;
    const int count = std::min(share.rows - row, page_size - key % page_size);
    const std::size_t first = static_cast<std::size_t>(row) * width, size = static_cast<std::size_t>(count) * width;
    attention_.append(layer, page_at(*share.request, key / page_size), key % page_size, k.subspan(first, size),
                      v.subspan(first, size));
    row += count;
  }
}

void Engine::step() {
  admit();
  const std::vector<Share> shares = share_rows();
  int total = 0;
  for (const Share& share : shares) total += share.rows;
  if (total > 0) {
    const Sizes& sizes = model_.sizes();
    attention_.begin_step(tables_of(shares));
    std::vector<float> x = matrix(total, sizes.width()), q = x, o = x;
    std::vector<float> k = matrix(total, sizes.width_kv()), v = k;
    for (int row = 0; const Share& share : shares)
      for (int i = 0; i < share.rows; ++i, ++row) {
        const int position = share.request->cached + i;
        model_.embed(share.request->tokens[static_cast<std::size_t>(position)], position,
                     row_of(x, row, sizes.width()));
      }
    for (int layer = 0; layer < sizes.layers; ++layer) {
      for (int row = 0; row < total; ++row)
        model_.project(layer, row_of(x, row, sizes.width()), row_of(q, row, sizes.width()),
                       row_of(k, row, sizes.width_kv()), row_of(v, row, sizes.width_kv()));
      const auto begin = std::chrono::steady_clock::now();
      const auto width = static_cast<std::size_t>(sizes.width_kv());
      for (std::size_t row = 0; const Share& share : shares) {
        append(layer, share, std::span(k).subspan(row * width), std::span(v).subspan(row * width));
        row += static_cast<std::size_t>(share.rows);
      }
      attention_.attend(layer, q, o);
      counts_.attention_seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      for (int row = 0; row < total; ++row)
        model_.add_attention(layer, row_of(o, row, sizes.width()), row_of(x, row, sizes.width()));
    }
    finish_rows(shares, x);
  }
  ++counts_.steps;
}

// A request whose last token was computed gets another one, or gives its pages back.
void Engine::finish_rows(const std::vector<Share>& shares, std::span<const float> x) {
  const auto width = static_cast<std::size_t>(model_.sizes().width());
  for (std::size_t row = 0; const Share& share : shares) {
    Request& request = *share.request;
    const auto rows = x.subspan(row * width, static_cast<std::size_t>(share.rows) * width);
    request.rows.insert(request.rows.end(), rows.begin(), rows.end());
    counts_.prompt_tokens += std::clamp(request.prompt - request.cached, 0, share.rows);
    request.cached += share.rows, row += static_cast<std::size_t>(share.rows);
    if (request.pending() > 0) continue;
    request.tokens.push_back(model_.next_token(rows.last(width)));
    ++counts_.generated;
  }
  std::erase_if(running_, [&](std::unique_ptr<Request>& request) {
    if (static_cast<int>(request->tokens.size()) < request->prompt + request->wanted) return false;
    pool_.give_back(request->pages);
    promised_ -= pages_of(request->most_keys());
    finished_.push_back(std::move(request));
    ++counts_.finished;
    return true;
  });
}

double Engine::check() const {
  const Sizes& sizes = model_.sizes();
  double worst = 0;
  for (const auto& request : finished_) {
    const int count = request->cached;
    std::vector<float> x = matrix(count, sizes.width()), q = x;
    std::vector<float> k = matrix(count, sizes.width_kv()), v = k;
    for (int row = 0; row < count; ++row)
      model_.embed(request->tokens[static_cast<std::size_t>(row)], row, row_of(x, row, sizes.width()));
    for (int layer = 0; layer < sizes.layers; ++layer) {
      for (int row = 0; row < count; ++row)
        model_.project(layer, row_of(x, row, sizes.width()), row_of(q, row, sizes.width()),
                       row_of(k, row, sizes.width_kv()), row_of(v, row, sizes.width_kv()));
      std::vector<float> o = attention_.attend_alone(q, k, v);
      for (int row = 0; row < count; ++row)
        model_.add_attention(layer, row_of(o, row, sizes.width()), row_of(x, row, sizes.width()));
    }
    for (int row = 0; row < count; ++row) {
      double apart = 0, norm = 0;
      const std::size_t first = static_cast<std::size_t>(row) * static_cast<std::size_t>(sizes.width());
      for (std::size_t i = first; i < first + static_cast<std::size_t>(sizes.width()); ++i)
        apart += std::pow(request->rows[i] - x[i], 2), norm += std::pow(x[i], 2);
      const double relative = std::sqrt(apart / norm);
      worst = std::isfinite(relative) ? std::max(worst, relative) : INFINITY;
    }
  }
  return worst;
}

}  // namespace engine
