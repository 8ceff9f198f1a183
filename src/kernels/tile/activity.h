#pragma once
// What warps do, and how a track of a timeline says it. Read by g++ and by NVRTC.

namespace flashcore::tile {

enum class Role : unsigned {
  kProducer,    // one thread that issues loads
  kConsumer,    // of a warpgroup that computes what a producer loads
  kTransposer,  // turns V between the two
  kWarp,        // loads and computes
  kCount
};

// From a mark on until the next one. Multiplies that are asynchronous: issuing them, and waiting for their result.
enum class Activity : unsigned {
  kSetUp = 1,  // which tile, which blocks
  kWaitTile,   // for the number of a tile, or for a place to leave one
  kWaitSlot,   // until what is loaded next may overwrite its stage
  kWaitQ,
  kWaitK,
  kWaitV,
  kWaitTurn,     // ping-pong: until the other consumer has issued its multiplies
  kWaitStore,    // until O has left shared memory
  kWaitPartner,  // for the CTA's other warps, at a barrier
  kLoadQ,        // issuing the copies, or the loads
  kLoadK,
  kLoadV,
  kQk,
  kMask,     // functions of scores too
  kSoftmax,  // rescaling O too
  kPv,
  kTranspose,
  kMerge,  // partial results of several warps, warpgroups or CTAs
  kEpilogue,
  kEnd,
  kCount
};

// The first bytes of a track (ptx::Tracks writes it); 64, as many as records are behind.
struct TrackHeader {
  unsigned role, cta, warp, sm;  // role: kTrackMark + Role
  unsigned long long first_clock, first_time_ns;
  unsigned dropped, unused;
  unsigned long long last_time_ns;  // 0: the role has not ended, or the device has no such time
  unsigned long long rest[2];
};
struct TrackRecord {
  unsigned low;  // half of the time
  unsigned tag;  // activity << kItemBits | item
};
enum : unsigned { kTrackMark = 0x7472'6b00u, kItemBits = 24 };

// Of the kernel that says where the tracks lie.
struct TrackPlaces {
  unsigned long long address;  // a multiple of a track's bytes
  unsigned tracks;
  unsigned stride;  // every so many CTAs one is recorded
};

}  // namespace flashcore::tile
