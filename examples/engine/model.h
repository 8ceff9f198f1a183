// A toy transformer with random weights, on the host: all but attention, in plain loops. It shows who calls what.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace engine {

struct Sizes {
  int layers = 2, heads = 8, heads_kv = 2, head_dim = 32, vocabulary = 256;
  int width() const { return heads * head_dim; }
  int width_kv() const { return heads_kv * head_dim; }
};

class ToyModel {
 public:
  ToyModel(const Sizes& sizes, std::uint64_t seed);

  /// The token's embedding, with its position: [width].
  void embed(int token, int position, std::span<float> x) const;
  /// q [heads * head_dim], k and v [heads_kv * head_dim] of a row.
  void project(int layer, std::span<const float> x, std::span<float> q, std::span<float> k, std::span<float> v) const;
  /// Adds the projected output of attention [heads * head_dim] to a row.
  void add_attention(int layer, std::span<const float> o, std::span<float> x) const;
  /// The token that the row makes most likely.
  int next_token(std::span<const float> x) const;
  const Sizes& sizes() const { return sizes_; }

 private:
  struct Layer {
    std::vector<float> q, k, v, o;  // [out, in]
  };
  Sizes sizes_;
  std::vector<float> embedding_;  // [vocabulary, width]
  std::vector<Layer> layers_;
};

}  // namespace engine
