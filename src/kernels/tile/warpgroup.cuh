#pragma once
// What a consumer warpgroup of the Hopper families does with blocks of keys: 64 query rows, S and P·V by wgmma, P in
// registers. Tiles lie in shared memory as TmaTile says.

#include "kernels/ptx/wgmma.cuh"
#include "kernels/tile/mask.cuh"
#include "kernels/tile/row_softmax.cuh"
#include "kernels/tile/score.cuh"
#include "kernels/tile/timeline.cuh"
#include "kernels/tile/tma_tile.cuh"

namespace flashcore::tile {

constexpr int kWarpgroupRows = 64;

// Starts S = Q·Kᵀ, 64 rows of Q by all kKeys of the block, over kDim columns.
template <bool kBf16, int kDim, int kKeys>
FC_DEVICE void issue_qk(float (&scores)[kKeys / 2], ptx::WgmmaDescriptor q, ptx::WgmmaDescriptor k) {
  ptx::warpgroup_fence_operand(scores);
  ptx::wgmma_fence();
  constexpr int kWholeBlocks = kDim / 64;
#pragma unroll
  for (int b = 0; b < kWholeBlocks; ++b)
    ptx::wgmma_ss_x4<kBf16>(scores, q.advanced(b * kWarpgroupRows * 128).low, k.advanced(b * kKeys * 128).low, b > 0);
#pragma unroll
  for (int d = 4 * kWholeBlocks; d < kDim / 16; ++d) {
    ptx::wgmma_ss<kBf16>(scores, q.advanced(kWholeBlocks * kWarpgroupRows * 128 + d % 4 * 32).word(),
                         k.advanced(kWholeBlocks * kKeys * 128 + d % 4 * 32).word(), d > 0);
  }
  ptx::wgmma_commit();
}

// Starts O += P·V over the keys [16 kBegin, 16 kEnd) of the block.
template <bool kBf16, int kBegin, int kEnd, int kSteps, int kCount>
FC_DEVICE void issue_pv(float (&acc_o)[kCount], const unsigned (&p)[kSteps][4], ptx::WgmmaDescriptor v) {
  ptx::warpgroup_fence_operand(acc_o);
  ptx::wgmma_fence();
  constexpr int kFours = (kEnd - kBegin) / 4;
#pragma unroll
  for (int i = 0; i < kFours; ++i) {
    const int n = kBegin + 4 * i;
    ptx::wgmma_rs_x4<kBf16>(acc_o, p + n, v.advanced(n * 2048).low);
  }
#pragma unroll
  for (int n = kBegin + 4 * kFours; n < kEnd; ++n)
    ptx::wgmma_rs<kBf16, true>(acc_o, p[n], v.advanced(n * 2048).word(), 1);
  ptx::wgmma_commit();
}

// Attention of 64 rows over blocks of kBlockN keys. `Family` derives from it and tells where Q, K and V lie, when they
// are there and when they are no longer read:
//   q_descriptor(), k_descriptor(), v_descriptor()   of the block at hand
//   acquire_k(), acquire_v()      wait for it
//   release_k(), release_v()      it has been read
//   begin_issue(), end_issue()    around the multiplies of a step: ping-pong, or nothing
//   first_done(), all_done()      when the scores of a step are there, and its values
//   begin_softmax(), end_softmax()  around its exponentials, and the functions of scores before them
//   cut(block), mask_scores(block, cut)
//   transform_scores(block)       where the problem has a function of scores
//   express_scores(block), mask_listed(block)   where it has functions of its own
// acquire_k, acquire_v, begin_issue and begin_softmax mark what they wait for.
template <class Family, Traits T, int kBlockN, int kRescaleThreshold>
struct AttentionWarpgroup : Marks {
  static constexpr bool kBf16 = T.element == Element::kBF16;
  static constexpr int kDim = padded_dim(T.head_dim);
  static constexpr int kDimV = padded_dim(T.head_dim_v);
  static constexpr int kSteps = kBlockN / 16;

  float acc_o[kDimV / 2];
  float acc_s[kBlockN / 2];
  unsigned p[kSteps][4];
  RowSoftmax<T.element, kRescaleThreshold> softmax;

  FC_DEVICE static int thread_index() { return ptx::tid_x() % 128; }  // within the warpgroup
  FC_DEVICE static int warp() { return thread_index() / 32; }
  FC_DEVICE static int lane() { return thread_index() % 32; }
  // Of the lane, where the warpgroup's rows begin at `first_row`.
  FC_DEVICE static int row(int first_row, int r) { return first_row + 16 * warp() + row_of_lane(lane(), r); }

  FC_DEVICE void issue_qk() {
    tile::issue_qk<kBf16, kDim, kBlockN>(acc_s, family().q_descriptor(), family().k_descriptor());
  }
  template <int kBegin = 0, int kEnd = kSteps>
  FC_DEVICE void issue_pv() {
    tile::issue_pv<kBf16, kBegin, kEnd>(acc_o, p, family().v_descriptor());
  }
  // All but kPending of the multiplies that were started are done: those of S, and then those of O.
  template <int kPending>
  FC_DEVICE void wait_qk() {
    ptx::wgmma_wait<kPending>();
    ptx::warpgroup_fence_operand(acc_s);
  }
  FC_DEVICE void wait_pv() {
    ptx::wgmma_wait<0>();
    ptx::warpgroup_fence_operand(acc_o);
  }
  FC_DEVICE void mask_where_cut(int block) {
    if (const Cut cut = family().cut(block); cut.any()) family().mask_scores(block, cut);
  }
  FC_DEVICE void mask_where_listed(int block) {
    if constexpr (T.mask_expression) family().mask_listed(block);
  }

  FC_DEVICE void transform_where_asked(int block) {
    if constexpr (transforms_scores(T)) family().transform_scores(block);
    if constexpr (T.score_expression) family().express_scores(block);
  }

  // Scores of the first block, which have nothing to hide under.
  FC_DEVICE void first_scores() {
    family().acquire_k();
    family().begin_issue();
    mark(Activity::kQk);
    issue_qk();
    family().end_issue();
    wait_qk<0>();
    family().first_done(), family().all_done();
    family().release_k();
  }
  // Scores of a block under the values of the one before it, whose probabilities are in p; then its own probabilities.
  template <bool kMayBeCut>
  FC_DEVICE void next_block(int block, float scale_log2) {
    family().acquire_k();
    family().begin_issue();
    mark(Activity::kQk, block);
    issue_qk();
    family().acquire_v();
    mark(Activity::kQk, block);
    issue_pv();
    family().end_issue();
    wait_qk<1>();
    family().first_done();
    family().release_k();
    constexpr bool kTransforms = transforms_scores(T) || T.score_expression;
    if constexpr (kTransforms) family().begin_softmax();
    mark(Activity::kMask, block);
    // Asked here rather than in a loop of its own for blocks that are cut: a second copy of the loop costs a quarter of
    // the compile time and bought nothing.
    transform_where_asked(block);
    if constexpr (kMayBeCut) mask_where_cut(block);
    mask_where_listed(block);
    // Before the exponentials, which overwrite P. Under the multiply they were measured, in the scores' registers and
    // in their own: slower each time, for the other consumers' multiplies fill the tensor cores either way.
    mark(Activity::kPv, block);
    wait_pv();
    family().all_done();
    family().release_v();
    if constexpr (!kTransforms) family().begin_softmax();
    mark(Activity::kSoftmax, block);
    softmax.update(acc_s, scale_log2, p, acc_o);
    family().end_softmax();
  }
  // Rows that see no key.
  FC_DEVICE void init_empty_row() {
    set_zero(acc_o);
    softmax.reset();
  }

 private:
  FC_DEVICE Family& family() { return static_cast<Family&>(*this); }
};

}  // namespace flashcore::tile
