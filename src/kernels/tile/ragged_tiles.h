#pragma once
// What tile/ragged_tiles.cuh keeps in shared memory. Read by g++ and by NVRTC: includes nothing.

namespace flashcore::tile {

// An enumeration, because constants of a namespace are data of every kernel that includes them, ragged or not.
enum RaggedLayout : int {
  kRaggedEntries = 256,
  kRaggedWords = 8,
  kRaggedTableBytes = 4 * (2 * kRaggedEntries + kRaggedWords),
  kRaggedSlotBytes = 2 * 16,  // of a tile on its way from the producer to the consumers
};

}  // namespace flashcore::tile
