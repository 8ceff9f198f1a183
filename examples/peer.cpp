// A peer of `flashcore peers`: its own attention on the CPU, plain loops in fp32, beside flashcore in one run.
//
//   flashcore peers --device cpu --problem b1_h2_s128_d64_fp32 --peer build/tests/example_peer --json peer.json
//
// The program answers one JSON line with one (docs/peers.md). It makes a problem ready, and says how long a sample
// took: by flashcore's own timer (fc_timer_*), so that both sides are timed by the same code. On a GPU the only
// difference is that a captured graph is given to the timer instead of a function. The output goes into a file, and is
// judged there.

#include <cmath>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <limits>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "flashcore/flashcore.h"

namespace {

using nlohmann::json;

void check(fc_status status) {
  if (status != FC_OK) throw std::runtime_error(fc_last_error());
}

std::vector<float> read_floats(const json& tensor) {
  std::size_t count = 1;
  for (const std::size_t size : tensor.at("shape").get<std::vector<std::size_t>>()) count *= size;
  std::vector<float> values(count);
  std::ifstream file(tensor.at("file").get<std::string>(), std::ios::binary);
  file.read(reinterpret_cast<char*>(values.data()), static_cast<std::streamsize>(count * sizeof(float)));
  if (!file) throw std::runtime_error("cannot read " + tensor.at("file").get<std::string>());
  return values;
}

// One problem made ready. Two outputs, written in turn, as flashcore's are.
class Attention {
 public:
  Attention(const json& question, fc_context context) {
    const json& fields = question.at("fields");
    const auto whole = [&](const char* name) { return fields.at(name).get<std::size_t>(); };
    batch_ = whole("batch"), heads_ = whole("heads_q"), heads_kv_ = whole("heads_kv"), rows_ = whole("seqlen_q");
    keys_ = whole("seqlen_kv"), dim_ = whole("head_dim"), dim_v_ = whole("head_dim_v");
    scale_ = fields.at("scale").is_null() ? 1 / std::sqrt(static_cast<float>(dim_)) : fields.at("scale").get<float>();
    q_ = read_floats(question.at("inputs").at("q"));
    k_ = read_floats(question.at("inputs").at("k"));
    v_ = read_floats(question.at("inputs").at("v"));
    for (auto& o : o_) o.assign(batch_ * heads_ * rows_ * dim_v_, std::numeric_limits<float>::quiet_NaN());
    fc_timed_work work = FC_TIMED_WORK_INIT;
    work.call = [](void* self) { return static_cast<Attention*>(self)->compute(), 0; };
    work.user = this;
    work.sample_us = question.value("sample_us", 0.0);
    check(fc_timer_create(context, &work, &timer_));
  }
  ~Attention() { fc_timer_destroy(timer_); }
  Attention(const Attention&) = delete;
  Attention& operator=(const Attention&) = delete;

  json launches() const {
    std::int32_t launches = 1;
    check(fc_timer_launches(timer_, 0, &launches));
    return launches;
  }

  json sample(const json& question) {
    double time_us = 0, clock_mhz = 0;
    check(fc_timer_sample(timer_, question.value("warm_up_ms", 0.0), question.value("measure_ms", 0.0), &time_us,
                          &clock_mhz));
    return {{"time_us", time_us}, {"clock_mhz", clock_mhz}};
  }

  // What the timed calls wrote, into files.
  json output(const std::string& folder) {
    json outputs = json::array();
    for (std::size_t i = 0; i < 2; ++i) {
      const std::string name = folder + "/example_o" + std::to_string(i) + ".bin";
      std::ofstream file(name, std::ios::binary);
      file.write(reinterpret_cast<const char*>(o_[i].data()),
                 static_cast<std::streamsize>(o_[i].size() * sizeof(float)));
      outputs.push_back({{"o", name}});
    }
    return {{"outputs", outputs}};
  }

 private:
  void compute() {
    std::vector<float>& o = o_[turn_++ % 2];
    std::vector<float> scores(keys_);
    for (std::size_t bh = 0; bh < batch_ * heads_; ++bh) {
      const std::size_t kv_head = bh / heads_ * heads_kv_ + bh % heads_ / (heads_ / heads_kv_);
      for (std::size_t row = 0; row < rows_; ++row) {
        const float* q = &q_[(bh * rows_ + row) * dim_];
        float largest = -std::numeric_limits<float>::infinity(), sum = 0;
        for (std::size_t j = 0; j < keys_; ++j) {
          const float* k = &k_[(kv_head * keys_ + j) * dim_];
          float dot = 0;
          for (std::size_t d = 0; d < dim_; ++d) dot += q[d] * k[d];
          scores[j] = dot * scale_;
          largest = std::max(largest, scores[j]);
        }
        float* out = &o[(bh * rows_ + row) * dim_v_];
        std::fill(out, out + dim_v_, 0.0F);
        for (std::size_t j = 0; j < keys_; ++j) {
          const float p = std::exp(scores[j] - largest);
          const float* v = &v_[(kv_head * keys_ + j) * dim_v_];
          sum += p;
          for (std::size_t d = 0; d < dim_v_; ++d) out[d] += p * v[d];
        }
        for (std::size_t d = 0; d < dim_v_; ++d) out[d] /= sum;
      }
    }
  }

  std::size_t batch_ = 0, heads_ = 0, heads_kv_ = 0, rows_ = 0, keys_ = 0, dim_ = 0, dim_v_ = 0, turn_ = 0;
  float scale_ = 1;
  std::vector<float> q_, k_, v_, o_[2];
  fc_timer timer_ = nullptr;
};

class Peer {
 public:
  json answer(const json& question) {
    const auto op = question.at("op").get<std::string>();
    if (op == "hello") {
      check(fc_context_create(question.at("device").get<std::string>().c_str(), &context_));
      return {{"protocol", 1},
              {"name", "example_peer"},
              {"parties", {{{"name", "plain_loops"}, {"version", "1"}, {"notes", {"writes no LSE"}}}}}};
    }
    if (op == "prepare") return prepare(question);
    if (op == "end") return json::object();
    const int handle = question.at("handle").get<int>();
    if (op == "sample") return prepared_.at(handle)->sample(question);
    if (op == "output") return prepared_.at(handle)->output(question.at("folder").get<std::string>());
    if (op == "release") return {{"released", prepared_.erase(handle)}};
    return {{"error", "unknown op " + op}};
  }

 private:
  json prepare(const json& question) {
    const json& fields = question.at("fields");
    if (fields.at("dtype") != "fp32") return {{"refused", "it computes fp32 only"}};
    if (fields.value("lengths", "fixed") != "fixed") return {{"refused", "it knows no ragged batches"}};
    if (!fields.at("window_left").is_null() || !fields.at("window_right").is_null())
      return {{"refused", "it knows no mask"}};
    prepared_[next_] = std::make_unique<Attention>(question, context_);
    return {{"handle", next_}, {"launches", prepared_[next_++]->launches()}};
  }

  fc_context context_ = nullptr;
  std::map<int, std::unique_ptr<Attention>> prepared_;
  int next_ = 0;
};

}  // namespace

int main() {
  Peer peer;
  for (std::string line; std::getline(std::cin, line);) {
    json answer;
    try {
      answer = peer.answer(json::parse(line));
    } catch (const std::exception& error) {
      answer = {{"error", error.what()}};
    }
    std::cout << answer.dump() << std::endl;  // one line, at once
  }
  return 0;
}
