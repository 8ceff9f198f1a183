// Block tables made of lists of pages, on the CPU and on the emulated GPU, whose bounds it watches: lists as FlashInfer
// has them, lists that there cannot be, attention by what is made, and what is refused.
#include <memory>
#include <span>

#include "c_api.h"

namespace api_test {
namespace {

using flashcore::Csr;
using Ints = std::vector<std::int32_t>;

struct Lists {
  Ints indptr = {0, 3, 3, 4, 6}, indices = {8, 2, 5, 0, 7, 1}, last = {1, 9, 4, 3};
  std::int64_t page_size = 4, max_pages = 3, stride = 0;
  Ints table, used;  // made

  std::size_t batch() const { return last.size(); }

  // `entry`: what the memory of both holds before.
  void make(const char* device, std::int32_t entry = -77) {
    const Context context(device);
    const std::int64_t row = stride == 0 ? max_pages : stride;
    const auto count = static_cast<std::size_t>(static_cast<std::int64_t>(batch() - 1) * row + max_pages);
    table.assign(count, entry), used.assign(batch(), entry);
    const auto put = [&](const Ints& x) { return Memory<std::int32_t>(context, std::span<const std::int32_t>(x)); };
    const Memory<std::int32_t> starts = put(indptr), pages = put(indices), ends = put(last), to = put(table),
                               keys = put(used);
    fc_csr_operands o = FC_CSR_OPERANDS_INIT;
    o.batch = static_cast<std::int64_t>(batch()), o.page_size = page_size;
    o.entries = static_cast<std::int64_t>(indices.size()), o.max_pages = max_pages, o.table_stride = stride;
    o.indptr = starts.data(), o.indices = pages.data(), o.last_page_len = ends.data();
    o.block_table = to.data(), o.seqused_kv = keys.data();
    Csr(context).launch(o);
    context.synchronize();
    to.download(table), keys.download(used);
  }
};

class OnEachDevice : public ::testing::TestWithParam<const char*> {};

TEST_P(OnEachDevice, ListsBecomeATable) {
  Lists lists;
  lists.make(GetParam());
  EXPECT_EQ(lists.table, (Ints{8, 2, 5, -1, -1, -1, 0, -1, -1, 7, 1, -1}));
  EXPECT_EQ(lists.used, (Ints{9, 0, 4, 7})) << "the last page of no page is not read";
}

TEST_P(OnEachDevice, BetweenRowsNothingIsWritten) {
  Lists lists;
  lists.stride = 5;
  lists.make(GetParam());
  EXPECT_EQ(lists.table, (Ints{8, 2, 5, -77, -77, -1, -1, -1, -77, -77, 0, -1, -1, -77, -77, 7, 1, -1}));
}

TEST_P(OnEachDevice, RowsOfSeveralBlocksOfThreads) {
  Lists lists;
  lists.indptr = {0, 300, 301}, lists.last = {4, 1}, lists.max_pages = 301, lists.indices.resize(301);
  std::iota(lists.indices.begin(), lists.indices.end(), 1000);
  lists.make(GetParam());
  for (std::size_t i = 0; i < 602; ++i)
    EXPECT_EQ(lists.table[i], i < 300 ? 1000 + static_cast<int>(i) : i == 301 ? 1300 : -1) << i;
  EXPECT_EQ(lists.used, (Ints{1200, 1}));
}

// Each is one sequence's fault, and the others are as they were.
TEST_P(OnEachDevice, ListsThatThereCannotBeHaveALengthThatNoSequenceHas) {
  struct Case {
    const char* what;
    void (*change)(Lists&);
    Ints used;
  };
  const Case cases[] = {{"a last page longer than a page", [](Lists& l) { l.last[0] = 5; }, {-1, 0, 4, 7}},
                        {"an empty last page", [](Lists& l) { l.last[3] = 0; }, {9, 0, 4, -1}},
                        {"a last page of a negative length", [](Lists& l) { l.last[2] = -3; }, {9, 0, -1, 7}},
                        {"boundaries that descend", [](Lists& l) { l.indptr[2] = 5; }, {9, 5, -1, 7}},
                        {"a beginning before the first", [](Lists& l) { l.indptr[0] = -1; }, {-1, 0, 4, 7}},
                        {"an end behind the last", [](Lists& l) { l.indptr[4] = 7; }, {9, 0, 4, -1}},
                        {"the largest end", [](Lists& l) { l.indptr[4] = 2147483647; }, {9, 0, 4, -1}},
                        {"more pages than columns", [](Lists& l) { l.max_pages = 2; }, {-1, 0, 4, 7}},
                        {"no columns", [](Lists& l) { l.max_pages = 0; }, {-1, 0, -1, -1}},
                        {"more keys than a length counts", [](Lists& l) { l.page_size = 2147483647; }, {-1, 0, 4, -1}},
                        {"no entries", [](Lists& l) { l.indices.clear(); }, {-1, 0, -1, -1}}};
  for (const Case& each : cases) {
    SCOPED_TRACE(each.what);
    Lists lists;
    lists.last[1] = 1;
    each.change(lists);
    lists.make(GetParam());
    EXPECT_EQ(lists.used, each.used);
  }
}

INSTANTIATE_TEST_SUITE_P(Csr, OnEachDevice, ::testing::Values("cpu", "emulator"));

// The bits of a call with a table made by hand.
TEST(CsrTest, AttentionReadsWhatIsMade) {
  const Context cpu("cpu");
  Attention p;
  p.dtype = FC_FP32, p.batch = 4, p.heads_q = 4, p.heads_kv = 2, p.head_dim = 8, p.seqlen_q = 1, p.seqlen_kv = 12;
  p.q_strides = p.o_strides = fc_strides{0, 8, 32}, p.k_strides = p.v_strides = fc_strides{64, 8, 16};
  p.lengths = FC_LENGTHS_FULL, p.total_q = 4;
  p.page_size = 4, p.pages = 9, p.max_pages = 3;
  const Plan plan(cpu, p);
  const std::vector<float> q = values(4 * 32, 1), k = values(9 * 64, 2), v = values(9 * 64, 3);
  const auto run = [&](const Ints& table, const Ints& used) {
    const Ints cu_q = {0, 1, 2, 3, 4};
    std::vector<float> o(q.size(), NAN), lse(16, NAN);
    fc_operands all = FC_OPERANDS_INIT;
    all.q = q.data(), all.k = k.data(), all.v = v.data(), all.o = o.data(), all.lse = lse.data();
    all.cu_seqlens_q = cu_q.data(), all.seqused_kv = used.data(), all.block_table = table.data();
    plan.launch(all);
    return o;
  };
  Lists lists;
  lists.make("cpu");
  EXPECT_EQ(run(lists.table, lists.used), run({8, 2, 5, 0, 0, 0, 0, 0, 0, 7, 1, 0}, {9, 0, 4, 7}));
}

TEST(CsrTest, WhatDoesNotFitIsRefused) {
  const Context cpu("cpu");
  const Csr csr(cpu);
  Lists lists;
  Ints table(12, -77), used(4, -77);
  fc_csr_operands good = FC_CSR_OPERANDS_INIT;
  good.batch = 4, good.page_size = 4, good.entries = 6, good.max_pages = 3;
  good.indptr = lists.indptr.data(), good.indices = lists.indices.data(), good.last_page_len = lists.last.data();
  good.block_table = table.data(), good.seqused_kv = used.data();
  const auto refused = [&](const std::string& words, auto change) {
    fc_csr_operands o = good;
    change(o);
    expect_refused(FC_ERROR_BAD_INPUT, words, [&] { csr.launch(o); });
  };
  refused("struct_size is 7", [](auto& o) { o.struct_size = 7; });
  refused("batch is 0; 1 to", [](auto& o) { o.batch = 0; });
  refused("page_size is 0; 1 to", [](auto& o) { o.page_size = 0; });
  refused("entries is -1; 0 to", [](auto& o) { o.entries = -1; });
  refused("max_pages is -1; 0 to", [](auto& o) { o.max_pages = -1; });
  refused("table_stride is 2; 3 to", [](auto& o) { o.table_stride = 2; });
  refused("more than a launch writes", [](auto& o) { o.batch = 2147483646, o.max_pages = 129; });
  refused("indptr is null", [](auto& o) { o.indptr = nullptr; });
  refused("indices is null", [](auto& o) { o.indices = nullptr; });
  refused("last_page_len is null", [](auto& o) { o.last_page_len = nullptr; });
  refused("block_table is null", [](auto& o) { o.block_table = nullptr; });
  refused("seqused_kv is null", [](auto& o) { o.seqused_kv = nullptr; });
  refused("seqused_kv at", [&](auto& o) { o.seqused_kv = table.data() + 3; });
  refused("overlaps indices", [&](auto& o) { o.block_table = lists.indices.data(); });
  EXPECT_EQ(table, Ints(12, -77)) << "a refused call wrote";
  expect_refused(FC_ERROR_BAD_INPUT, "the csr handle is null; fc_csr_create makes one",
                 [&] { flashcore::detail::check(fc_csr_launch(nullptr, &good, nullptr)); });
  expect_refused(FC_ERROR_BAD_INPUT, "a stream was given", [&] { csr.launch(good, &good); });
  csr.launch(good);
  EXPECT_EQ(used[0], 9);
}

}  // namespace
}  // namespace api_test
