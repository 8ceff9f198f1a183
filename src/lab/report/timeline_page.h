#pragma once
// A timeline as one page of HTML that needs no other file: what each role spent its time on, and each warp's lane.

#include <string>

#include "lab/diagnose/timeline.h"

namespace flashcore {

// The lanes of as many CTAs as have this many segments together, the first ones; the page says what it leaves out.
inline constexpr std::size_t kMostDrawnSegments = 120'000;
std::string timeline_html(const Timeline& timeline);

}  // namespace flashcore
