#pragma once
// What host and device agree on about the micro-tests. Read by g++ and by NVRTC.

namespace flashcore::conformance {

constexpr int kThreads = 128;

// The input: four regions of 32-bit words.
constexpr int kRegionWords = 2048;
constexpr int kFloatWords = 0;                // floats, the first 64 of them special
constexpr int kF16Words = kRegionWords;       // pairs of fp16 in (-2, 2)
constexpr int kBf16Words = 2 * kRegionWords;  // pairs of bf16 in (-2, 2)
constexpr int kRawWords = 3 * kRegionWords;   // any bits
constexpr int kInputWords = 4 * kRegionWords;

constexpr int kClusterCtas = 4;
constexpr int kGridX = 2, kGridY = 3, kGridZ = 2;  // of the test of special registers

constexpr int kSharedBytes = 40960;
constexpr int kMatrixABytes = 8192;  // of the wgmma tests; operand B has the rest
// Tensors of the TMA tests, of 16-bit elements: 2 heads × 24 rows × 64 columns, boxes of 16 rows. The input's starts at
// kF16Words, the output's at this word of the output.
constexpr int kTensorRows = 24, kTensorHeads = 2, kTensorColumns = 64, kBoxRows = 16;
constexpr int kStoredWords = 1024;

template <class Map>
struct Params {
  Map map_in, map_out;
  const void* in;
  unsigned* out;
};

}  // namespace flashcore::conformance
