#pragma once
// Parts that the models of Family::expected_us share. Their constants are fitted to measured times
// (results/landscapes/hopper_times.json) by scripts/fit-expected-times, which has the same formulas and writes each
// family's expected_time.json (kernels/fitted_device.h).

#include <cstdint>
#include <optional>

#include "core/problem.h"

namespace flashcore {

// The blocks of keys that the row tiles of one head go through; a tile that sees no key still has one.
struct TileBlocks {
  std::int64_t tiles = 0, longest = 0, total = 0;
  double mean() const { return static_cast<double>(total) / static_cast<double>(tiles); }
};
// Each block is dealt out to `parts` that work side by side: counted is what one of them does.
TileBlocks blocks_of_tiles(const Problem& problem, std::int64_t rows, std::int64_t block_n, std::int64_t parts = 1);

// The mean of both head dims as the tensor cores see them, multiples of 16.
double mean_columns(const Problem& problem);

// What reading the inputs and writing the output takes at the rate that DRAM reaches (CarriedOver), us. Neither this
// nor the multiplies hide the other wholly: most models add their squares.
double dram_us(const Problem& problem, double bytes_per_us);

// What a block's work grows by where its scores go through a softcap or ALiBi.
double cost_of_scores(const Problem& problem);

constexpr double kNotMeasuredUs = 1e9;  // what was not measured comes after all that was

// Keeps the config that is expected to take least, of equal ones the first.
template <class Config>
struct Fastest {
  std::optional<Config> config;
  double us = 0;

  void offer(const Config& other, double other_us) {
    if (!config || other_us < us) config = other, us = other_us;
  }
};

}  // namespace flashcore
