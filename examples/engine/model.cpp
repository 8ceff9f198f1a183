#include "model.h"

#include <cmath>
#include <random>

namespace engine {
namespace {

std::vector<float> random_matrix(int out, int in, std::mt19937_64& random) {
  std::normal_distribution<float> normal(0.0f, 1.0f / std::sqrt(static_cast<float>(in)));
  std::vector<float> weights(static_cast<std::size_t>(out) * static_cast<std::size_t>(in));
  for (float& weight : weights) weight = normal(random);
  return weights;
}

float dot(const float* a, std::span<const float> b) {
  float sum = 0;
  for (std::size_t i = 0; i < b.size(); ++i) sum += a[i] * b[i];
  return sum;
}

void multiply(const std::vector<float>& weights, std::span<const float> x, std::span<float> y) {
  for (std::size_t row = 0; row < y.size(); ++row) y[row] = dot(&weights[row * x.size()], x);
}

}  // namespace

ToyModel::ToyModel(const Sizes& sizes, std::uint64_t seed) : sizes_(sizes) {
  std::mt19937_64 random(seed);
  const int width = sizes.width(), width_kv = sizes.width_kv();
  embedding_ = random_matrix(sizes.vocabulary, width, random);
  for (float& value : embedding_) value *= std::sqrt(static_cast<float>(width));
  for (int layer = 0; layer < sizes.layers; ++layer)
    layers_.push_back({.q = random_matrix(width, width, random),
                       .k = random_matrix(width_kv, width, random),
                       .v = random_matrix(width_kv, width, random),
                       .o = random_matrix(width, width, random)});
}

void ToyModel::embed(int token, int position, std::span<float> x) const {
  const float* row = &embedding_[static_cast<std::size_t>(token) * x.size()];
  for (std::size_t i = 0; i < x.size(); ++i) {
    const float turn = std::pow(1e4f, -static_cast<float>(i / 2 * 2) / static_cast<float>(x.size()));
    const float angle = static_cast<float>(position) * turn;
    x[i] = row[i] + (i % 2 ? std::cos(angle) : std::sin(angle));
  }
}

void ToyModel::project(int layer, std::span<const float> x, std::span<float> q, std::span<float> k,
                       std::span<float> v) const {
  const Layer& of = layers_[static_cast<std::size_t>(layer)];
  std::vector<float> normal(x.begin(), x.end());
  const float norm = 1.0f / std::sqrt(dot(x.data(), x) / static_cast<float>(x.size()) + 1e-6f);
  for (float& value : normal) value *= norm;
  multiply(of.q, normal, q);
  multiply(of.k, normal, k);
  multiply(of.v, normal, v);
}

void ToyModel::add_attention(int layer, std::span<const float> o, std::span<float> x) const {
  std::vector<float> y(x.size());
  multiply(layers_[static_cast<std::size_t>(layer)].o, o, y);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] += y[i];
}

int ToyModel::next_token(std::span<const float> x) const {
  int best = 0;
  float highest = -INFINITY;
  for (int token = 0; token < sizes_.vocabulary; ++token) {
    const float logit = dot(&embedding_[static_cast<std::size_t>(token) * x.size()], x);
    if (logit > highest) highest = logit, best = token;
  }
  return best;
}

}  // namespace engine
