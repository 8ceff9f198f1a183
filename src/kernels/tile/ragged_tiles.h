#pragma once
// What tile/ragged_tiles.cuh keeps in shared memory. Read by g++ and by NVRTC: includes nothing.

namespace flashcore::tile {

constexpr int kRaggedEntries = 256;
constexpr int kRaggedWords = 8;
constexpr int kRaggedTableBytes = 4 * (2 * kRaggedEntries + kRaggedWords);
// A tile on its way from the producer to the consumers.
constexpr int kRaggedSlotBytes = 2 * 16;

}  // namespace flashcore::tile
