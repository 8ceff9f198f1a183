// Lists of blocks that are made once and read by many launches, on the CPU and on the emulated GPU: the bits of
// launches without them, what an update changes and what it does not, and what is refused.
#include <cstring>
#include <memory>
#include <span>

#include "c_api.h"

namespace api_test {
namespace {

using flashcore::BlockMask;
using Ints = std::vector<std::int32_t>;
using Halves = std::vector<std::uint16_t>;

constexpr std::int64_t kHeads = 2, kRows = 200, kDim = 64;

std::vector<std::uint16_t> halves(std::size_t count, unsigned seed) {
  Halves bits(count);
  const std::vector<float> x = values(count, seed);
  for (std::size_t i = 0; i < count; ++i) {
    std::uint32_t word = 0;
    std::memcpy(&word, &x[i], sizeof word);
    bits[i] = static_cast<std::uint16_t>(word >> 16);
  }
  return bits;
}

Ints documents_of(std::int32_t rows) {
  Ints ids(kRows);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i) / rows;
  return ids;
}

// A batch of two rows of documents, or of two packed sequences, on a device.
class Call {
 public:
  Call(const char* device, const std::string& candidate, bool ragged) : context_(device), problem_(problem(ragged)) {
    problem_.candidate = candidate;
    fill(documents_, documents_of(50));
    fill(bounds_, {0, 130, 200});
  }
  static Attention problem(bool ragged) {
    Attention p;
    p.dtype = FC_BF16, p.heads_q = p.heads_kv = kHeads, p.seqlen_q = p.seqlen_kv = kRows, p.head_dim = kDim;
    p.mask = ragged ? "doc[b] == 0 && j <= i" : "doc[i] == doc[j]";
    p.tensors = {{"doc", FC_ELEMENT_INT, {ragged ? 2 : kRows}}};
    if (!ragged) return p;
    p.batch = 2, p.lengths = FC_LENGTHS_FULL, p.total_q = p.total_kv = kRows;
    p.q_strides = p.k_strides = p.v_strides = p.o_strides = fc_strides{0, kDim, kHeads * kDim};
    return p;
  }

  const Context& context() const { return context_; }
  const Attention& problem() const { return problem_; }
  void set_documents(const Ints& ids) { fill(documents_, ids); }
  void set_bounds(const Ints& bounds) { fill(bounds_, bounds); }
  fc_operands operands() {
    tensors_[0] = documents_.data();
    fc_operands all = FC_OPERANDS_INIT;
    all.q = q_.data(), all.k = k_.data(), all.v = v_.data(), all.o = o_.data();
    all.tensors = tensors_;
    if (problem_.lengths != FC_LENGTHS_FIXED) all.cu_seqlens_q = all.cu_seqlens_kv = bounds_.data();
    return all;
  }
  // What the lists are made of, and nothing else.
  fc_operands read_by_lists() {
    fc_operands all = operands();
    all.q = all.k = all.v = all.o = nullptr;
    return all;
  }
  Halves run(const Plan& plan, fc_block_mask block_mask = nullptr) {
    o_.upload(Halves(o_.size(), 0x7fc0));
    fc_operands all = operands();
    all.block_mask = block_mask;
    plan.launch(all);
    context_.synchronize();
    Halves bits(o_.size());
    o_.download(bits);
    return bits;
  }

 private:
  void fill(Memory<std::int32_t>& memory, Ints ids) {
    ids.resize(memory.size());
    memory.upload(ids);
  }

  Context context_;
  Attention problem_;
  Memory<std::uint16_t> q_ = put(1), k_ = put(2), v_ = put(3), o_ = put(4);
  Memory<std::int32_t> documents_{context_, static_cast<std::size_t>(kRows)}, bounds_{context_, 3};
  const void* tensors_[1] = {};
  Memory<std::uint16_t> put(unsigned seed) {
    const Halves bits = halves(static_cast<std::size_t>(kHeads * kRows * kDim), seed);
    return {context_, std::span<const std::uint16_t>(bits)};
  }
};

struct Kernel {
  const char *device, *candidate;
  bool has_lists;
};
class OnEachKernel : public ::testing::TestWithParam<Kernel> {
 protected:
  Call call(bool ragged = false) { return {GetParam().device, GetParam().candidate, ragged}; }
};

TEST_P(OnEachKernel, LaunchesWithListsHaveTheBitsOfThoseWithout) {
  for (const bool ragged : {false, true}) {
    Call c = call(ragged);
    const Plan plan(c.context(), c.problem());
    const Halves expected = c.run(plan);
    const BlockMask lists(plan, c.read_by_lists());
    for (int i = 0; i < 3; ++i) EXPECT_EQ(c.run(plan, lists.get()), expected) << ragged;
    EXPECT_EQ(c.run(plan), expected) << ragged;
    // Layers of a model have plans of their own.
    EXPECT_EQ(c.run(Plan(c.context(), c.problem()), lists.get()), expected) << ragged;
    EXPECT_EQ(plan.describe().find("\"block_mask_bytes\":0") == std::string::npos, GetParam().has_lists);
  }
}

// What the header promises, and what it warns of: lists of other documents hide blocks that are visible.
TEST_P(OnEachKernel, ListsAreThoseOfTheLastUpdate) {
  Call c = call();
  const Plan plan(c.context(), c.problem());
  const BlockMask lists(plan, c.read_by_lists());
  const Halves before = c.run(plan, lists.get());
  c.set_documents(documents_of(200));
  const Halves stale = c.run(plan, lists.get()), expected = c.run(plan);
  EXPECT_NE(expected, before);
  EXPECT_EQ(stale != expected, GetParam().has_lists);
  lists.update(c.read_by_lists());
  EXPECT_EQ(c.run(plan, lists.get()), expected);
}

TEST_P(OnEachKernel, LengthsAreListedToo) {
  Call c = call(true);
  const Plan plan(c.context(), c.problem());
  c.set_bounds({0, 10, 200});
  const BlockMask lists(plan, c.read_by_lists());
  c.set_bounds({0, 190, 200});
  // Wrong where the lists are stale, and within the tensors all the same.
  const Halves stale = c.run(plan, lists.get()), expected = c.run(plan);
  EXPECT_EQ(stale != expected, GetParam().has_lists);
  lists.update(c.read_by_lists());
  EXPECT_EQ(c.run(plan, lists.get()), expected);
}

TEST_P(OnEachKernel, APlanWithoutListsInItsLaunchesGetsAnEmptyHandle) {
  Call c = call();
  Attention named = c.problem(), plain = c.problem();
  named.mask = "j <= i", named.tensors = {};
  plain.mask = "", plain.tensors = {};
  for (const Attention& p : {named, plain}) {
    const Plan plan(c.context(), p);
    fc_operands none = FC_OPERANDS_INIT, all = c.operands();
    all.tensors = nullptr;
    const BlockMask lists(plan, none);
    lists.update(none);
    all.block_mask = lists.get();
    plan.launch(all);
    EXPECT_NE(plan.describe().find("\"block_mask_bytes\":0"), std::string::npos);
  }
}

TEST_P(OnEachKernel, AnotherPlansListsAreRefused) {
  Call c = call();
  const Plan plan(c.context(), c.problem());
  const BlockMask lists(plan, c.read_by_lists());
  const auto refused = [&](const char* words, auto change) {
    Attention other = c.problem();
    change(other);
    const Plan given(c.context(), other);
    fc_operands all = c.operands();
    all.block_mask = lists.get();
    expect_refused(FC_ERROR_BAD_INPUT, words, [&] { given.launch(all); });
  };
  refused("differ in mask 'doc[i] == doc[j]' and 'doc[i] <= doc[j]'; make a block mask of this plan",
          [](Attention& p) { p.mask = "doc[i] <= doc[j]"; });
  refused("differ in seqlen_kv 200 and 150", [](Attention& p) { p.seqlen_kv = 150; });
  refused("differ in head_dim 64 and 32", [](Attention& p) { p.head_dim = 32; });
  // These lists would be the same, but those of the CPU, which are none, would be so always.
  refused("differ in mask 'doc[i] == doc[j]' and 'document[i] == document[j]'",
          [](Attention& p) { p.mask = "document[i] == document[j]", p.tensors[0].name = "document"; });
  refused("differ in softcap none and 30", [](Attention& p) { p.softcap = 30; });
  const Call elsewhere(GetParam().device, GetParam().candidate, false);
  const Plan given(elsewhere.context(), elsewhere.problem());
  fc_operands all = c.operands();
  all.block_mask = lists.get();
  expect_refused(FC_ERROR_BAD_INPUT, "block_mask is of another context on ", [&] { given.launch(all); });
}

TEST_P(OnEachKernel, WhatDoesNotFitIsRefused) {
  Call c = call(), packed = call(true);
  const Plan plan(c.context(), c.problem()), ragged(packed.context(), packed.problem());
  const auto refused = [](const std::string& words, const Plan& of, fc_operands operands, auto change) {
    change(operands);
    expect_refused(FC_ERROR_BAD_INPUT, words, [&] { BlockMask(of, operands); });
  };
  refused("the tensor 'doc' is null", plan, c.read_by_lists(), [](auto& o) { o.tensors = nullptr; });
  refused("fc_operands.struct_size is 8", plan, c.read_by_lists(), [](auto& o) { o.struct_size = 8; });
  refused("cu_seqlens_q is null", ragged, packed.read_by_lists(), [](auto& o) { o.cu_seqlens_q = nullptr; });
  refused("cu_seqlens_kv is null", ragged, packed.read_by_lists(), [](auto& o) { o.cu_seqlens_kv = nullptr; });
  refused("cu_seqlens_q is given", plan, packed.read_by_lists(), [](auto&) {});

  fc_block_mask made = nullptr;
  fc_operands good = c.read_by_lists();
  EXPECT_EQ(fc_block_mask_create(plan.get(), &good, nullptr, nullptr), FC_ERROR_BAD_INPUT);
  EXPECT_EQ(fc_block_mask_create(nullptr, &good, nullptr, &made), FC_ERROR_BAD_INPUT);
  EXPECT_EQ(fc_block_mask_create(plan.get(), nullptr, nullptr, &made), FC_ERROR_BAD_INPUT);
  ASSERT_EQ(fc_block_mask_create(plan.get(), &good, nullptr, &made), FC_OK) << fc_last_error();
  fc_operands missing = good;
  missing.tensors = nullptr;
  EXPECT_EQ(fc_block_mask_update(made, &missing, nullptr), FC_ERROR_BAD_INPUT);
  EXPECT_EQ(fc_block_mask_update(made, &good, nullptr), FC_OK) << fc_last_error();
  ASSERT_EQ(fc_block_mask_destroy(made), FC_OK);
  EXPECT_EQ(fc_block_mask_destroy(made), FC_ERROR_BAD_INPUT);
  EXPECT_EQ(fc_block_mask_update(made, &good, nullptr), FC_ERROR_BAD_INPUT);
  fc_operands all = c.operands();
  all.block_mask = made;
  expect_refused(FC_ERROR_BAD_INPUT, "is no open block_mask: it was closed, or never made; fc_block_mask_create makes",
                 [&] { plan.launch(all); });
}

TEST_P(OnEachKernel, APlanMayGoBeforeItsBlockMask) {
  Call c = call();
  auto plan = std::make_unique<Plan>(c.context(), c.problem());
  const BlockMask lists(*plan, c.read_by_lists());
  plan.reset();
  lists.update(c.read_by_lists());
  const Plan again(c.context(), c.problem());
  EXPECT_EQ(c.run(again, lists.get()), c.run(again));
}

INSTANTIATE_TEST_SUITE_P(BlockMask, OnEachKernel,
                         ::testing::Values(Kernel{"cpu", "", false}, Kernel{"emulator", "sm80_fwd", true},
                                           Kernel{"emulator", "sm90_fwd", true}),
                         [](const auto& of) {
                           return std::string(*of.param.candidate ? of.param.candidate : "cpu_fwd");
                         });

// A tensor that the score alone names is not read by lists, nor is a block table.
TEST(BlockMaskTest, ListsReadWhatTheMaskNames) {
  Call c("emulator", "sm80_fwd", false);
  Attention p = c.problem();
  p.score = "s + bias[j]";
  p.tensors.insert(p.tensors.begin(), {"bias", FC_ELEMENT_FLOAT, {kRows}});
  const Plan plan(c.context(), p);
  const Memory<float> bias(c.context(), values(kRows, 9));
  fc_operands all = c.operands();
  const void* tensors[] = {nullptr, all.tensors[0]};
  all.tensors = tensors;
  const BlockMask lists(plan, all);
  all.block_mask = lists.get();
  expect_refused(FC_ERROR_BAD_INPUT, "the tensor 'bias' is null", [&] { plan.launch(all); });
  tensors[0] = bias.data();
  plan.launch(all);
}

// A caller built with the header of ABI version 14.
TEST(BlockMaskTest, AnOlderStructHasNone) {
  Call c("cpu", "", false);
  const Plan plan(c.context(), c.problem());
  fc_operands all = c.operands();
  all.struct_size = offsetof(fc_operands, block_mask);
  all.block_mask = reinterpret_cast<fc_block_mask>(7);  // beyond its end
  plan.launch(all);
  all.struct_size = sizeof all;
  expect_refused(FC_ERROR_BAD_INPUT, "0x7 is no open block_mask", [&] { plan.launch(all); });
  expect_refused(FC_ERROR_BAD_INPUT, "a stream was given", [&] { BlockMask(plan, c.read_by_lists(), &all); });
}

}  // namespace
}  // namespace api_test
