// struct Attention of flashcore.hpp against the C struct, by value, for problems as the fuzzer draws them. That the C
// struct holds every field of a problem is mirror_test.cpp's; an id says them all.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <memory>
#include <set>
#include <string>

#include "flashcore/flashcore.hpp"

namespace {

using flashcore::Attention;

constexpr int kDraws = 200;
constexpr const char* kWhereToAdd =
    "add the field to struct Attention and Attention::c() in include/flashcore/flashcore.hpp, and to in_cpp() in "
    "tests/api/cpp_mirror_test.cpp";

std::set<std::string> random_ids() {
  const std::string command = std::string(FLASHCORE_RANDOM_PROBLEMS) + " " + std::to_string(kDraws) + " 29";
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  std::set<std::string> ids;
  char line[1024];
  while (pipe && std::fgets(line, sizeof(line), pipe.get())) ids.insert(std::string(line, std::strlen(line) - 1));
  return ids;
}

// As a user would write it: what is not bounded or given is left out.
Attention in_cpp(const fc_attention& a) {
  Attention p;
  p.dtype = static_cast<fc_dtype>(a.dtype);
  p.batch = a.batch;
  p.heads_q = a.heads_q;
  p.heads_kv = a.heads_kv;
  p.seqlen_q = a.seqlen_q;
  p.seqlen_kv = a.seqlen_kv;
  p.head_dim = a.head_dim;
  if (a.head_dim_v != a.head_dim) p.head_dim_v = a.head_dim_v;
  p.causal = static_cast<fc_causal>(a.causal);
  const bool windowed = (a.given & FC_GIVEN_WINDOW) != 0;
  if (windowed && a.window_left >= 0) p.window_left = a.window_left;
  if (windowed && a.window_right >= 0) p.window_right = a.window_right;
  p.window_alignment = static_cast<fc_alignment>(a.window_alignment);
  if (a.given & FC_GIVEN_KV_DTYPE) p.kv_dtype = static_cast<fc_dtype>(a.kv_dtype);
  if (a.given & FC_GIVEN_O_DTYPE) p.o_dtype = static_cast<fc_dtype>(a.o_dtype);
  p.scaling = static_cast<fc_scaling>(a.scaling);
  p.v_layout = static_cast<fc_v_layout>(a.v_layout);
  if (a.softcap != 0) p.softcap = a.softcap;
  p.alibi = static_cast<fc_alibi>(a.alibi);
  p.sink = static_cast<fc_sink>(a.sink);
  p.amax = static_cast<fc_amax>(a.amax);
  p.lengths = static_cast<fc_lengths>(a.lengths);
  p.deterministic_batch = a.deterministic_batch != 0;
  p.total_q = a.total_q;
  p.total_kv = a.total_kv;
  p.page_size = a.page_size;
  p.pages = a.pages;
  p.max_pages = a.max_pages;
  p.table_stride = a.table_stride;
  if (a.scale != 0) p.scale = a.scale;
  if (a.score) p.score = a.score;
  if (a.mask) p.mask = a.mask;
  for (std::int32_t t = 0; t < a.tensor_count; ++t) {
    const fc_tensor& tensor = a.tensors[t];
    p.tensors.push_back(
        {tensor.name, static_cast<fc_element>(tensor.element), {tensor.sizes, tensor.sizes + tensor.rank}});
  }
  return p;
}

std::string id_of(const flashcore::Context& cpu, const Attention& problem) {
  const std::string said = cpu.explain(problem), key = "\"problem\":\"";
  const std::size_t start = said.find(key) + key.size();
  return said.substr(start, said.find('"', start) - start);
}

TEST(CppMirrorTest, EveryFieldSurvives) {
  const flashcore::Context cpu("cpu");
  const std::set<std::string> ids = random_ids();
  EXPECT_GT(ids.size(), kDraws * 0.9) << FLASHCORE_RANDOM_PROBLEMS;
  for (const std::string& id : ids) {
    fc_attention a = FC_ATTENTION_INIT;
    ASSERT_EQ(fc_problem_parse(id.c_str(), &a), FC_OK) << fc_last_error();
    // Of a problem with functions the line is JSON, and what an explanation names is its id.
    const std::string explained = id_of(cpu, in_cpp(a));
    fc_attention again = FC_ATTENTION_INIT;
    ASSERT_EQ(fc_problem_parse(explained.c_str(), &again), FC_OK) << fc_last_error();
    if (id[0] != '{') {
      EXPECT_EQ(explained, id) << kWhereToAdd;
    }
    EXPECT_EQ(again.score, a.score) << kWhereToAdd;
    EXPECT_EQ(again.mask, a.mask) << kWhereToAdd;
    EXPECT_EQ(again.tensors, a.tensors) << kWhereToAdd;
  }
}

}  // namespace
