#pragma once
// What q, k and v hold at each place, by a pattern.

#include <cstdint>
#include <span>

#include "core/data.h"
#include "core/indexed_random.h"

namespace flashcore {

// One element of one operand, by where it is.
struct Place {
  std::int64_t batch, head, row, column;
};

class PatternValues {
 public:
  // Refers to the problem. `is_sequence`: it is of one sequence of a ragged batch.
  PatternValues(const Problem& problem, Pattern pattern, std::uint64_t seed, bool is_sequence);
  // Of `first` and the columns after it.
  void q(const Place& first, std::span<float> out) const;
  void k(const Place& first, std::span<float> out) const;
  void v(const Place& first, std::span<float> out) const;

 private:
  bool has_wide_o() const;
  double head_factor(const Place& at) const;
  double token_factor_of_q(const Place& at) const;
  double token_factor_of_k(const Place& at) const;
  double token_factor_of_v(const Place& at) const;
  float q_value(const Place& at, double plain) const;
  float k_scaled(const Place& at, double plain) const;
  float v_value(const Place& at, double plain) const;
  double tail_peak(std::int64_t keys) const;
  Place place_of_normal(const Place& at) const;
  double k_value(const Place& at) const;
  double channel_offset(const Place& at) const;
  double sink_direction(const Place& at) const;
  double sink_size(std::int64_t key) const;
  double squares_of_k(const Place& at) const;
  bool is_outlier(const Place& at) const;
  float poison_q(const Place& at, float plain) const;
  std::int64_t first_poisoned_key() const;
  float poison_k(const Place& at, float plain) const;
  float poison_v(const Place& at, float plain) const;

  const Problem& p_;
  const bool is_sequence_;
  const Band<std::int64_t> band_;
  Pattern pattern_;
  IndexedRandom q_, k_, v_, choice_, place_;
  double peak_ = 0, large_ = 0, negative_ = 0, extreme_v_ = 1;
  double by_q_ = 1, by_k_ = 1, by_v_ = 1;
};

}  // namespace flashcore
