#pragma once
// What rounding may make of the reference's rows: the part of the reference that bounds are made of.

#include <cstdint>

#include "core/reference_head.h"

namespace flashcore {

inline constexpr double kUlpF32 = 0x1p-24;
// P of 8 bits is e4m3, whatever v is, of 2^8 times the probability relative to the row's largest: 256 of the 448 that
// fit. Of the idealised kernel: the predicted error grants kernels 2^6 (reference_error.cpp).
inline constexpr double kScaleOfP8 = 0x1p8;

// Of one row's scores in fp64: what its probabilities say of errors that all keys share.
struct ScoreStatistics {
  double maximum = 0, lse = 0;  // maximum: of the keys
  double top = 0;               // of the keys and the sink
  double given = 0;             // of the keys, before ALiBi; with a user's function the largest in size
  double mean_abs = 0;          // of |score| before ALiBi, weighted with p
  // Of the same, weighted with p. Where an error of the same relative size moves scores unalike (softcap), or not all
  // of the row (ALiBi, a sink), it is about 0 rather than about the mean.
  double deviation = 0;
  double function_mean = 0, function_rms = 0;  // errors of the problem's functions of scores, weighted with p
  double function_most = 0;                    // the largest of them, whatever its key's weight
  double sink_share = 0;                       // error of the row's sum by the sink, relatively
};

// How far off rounding `value` to nearest may be: half the distance between the numbers around it.
double half_gap(const Precision& precision, double value);
// The rms that rounding theory predicts for an idealised kernel's row; p are the normalised probabilities. `slopes`:
// ReferenceScratch's, of the row; null: 1 for each key.
void predict_errors(const PackedHead& head, std::int64_t first, const ReferenceHead& what, const double* p,
                    const double* slopes, const ScoreStatistics& scores, ReferenceRow& row);
// What chance may add to an error that was measured over so many values, as a factor: of few values the ideal kernel
// may get all nearly right where an honest one does not.
double slack(double values);
// Of a row that sees nothing but its sink: that is scaled to base 2 and back.
void predict_lse_of_sink(ReferenceRow& row);

}  // namespace flashcore
