#pragma once
// Of a normal build, which records nothing. An instrumented one is handed another text in the place of this one
// (kernels/instrumented.h).

namespace flashcore::tile {

enum : int { kTrackBytes = 0 };

}  // namespace flashcore::tile
