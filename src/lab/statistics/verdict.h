#pragma once
// What an interval says about a margin.

#include "lab/record/outcome.h"
#include "lab/statistics/bootstrap.h"

namespace flashcore {

// FASTER | SLOWER | SAME | INCONCLUSIVE from a speed-up interval (a ratio: 1 is equal) and a margin m (0.03). In the
// logarithm, so that exchanging the candidates exchanges FASTER and SLOWER exactly:
//   FASTER        the whole interval is above sqrt(1 + m), half of the margin
//   SLOWER        the whole interval is below 1 / sqrt(1 + m)
//   SAME          neither, and the whole interval is inside (1 / (1 + m), 1 + m): two one-sided tests (TOST)
//   INCONCLUSIVE  anything else, NaN and infinite bounds included
// With a 95% interval, however wide: a change of the margin or more is called SAME, and one of half the margin or less
// is called FASTER or SLOWER, at most 2.5% of the time. Where the interval is narrower than a quarter of the margin on
// either side, a change of the margin is called what it is at least 97% of the time. The half keeps that promise for a
// change of just the margin: if the whole interval had to be beyond the margin, it would be called in 2.5% of the runs.
SpeedVerdict verdict_of(const Interval& speedup, double margin);

}  // namespace flashcore
