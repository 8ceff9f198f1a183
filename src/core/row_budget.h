#pragma once
// How far an output may be off by rounding alone: what errors are multiplied with, and sums over a row.

namespace flashcore {

// Derived: kBoundFactor times the idealised kernel's own error on this data, or times the predicted rms where that is
// larger, with 3 standard deviations of slack for few values. Stated in docs/correctness.md; never a fixed tolerance.
inline constexpr double kBoundFactor = 2.0;

// Keys of 8 bits that a kernel may sum up on tensor cores before it adds the sum to one in fp32 (promotes it).
inline constexpr double kKeysPerPromotion = 256;

// What rounding may make of sums over one row of an honest kernel: a systematic part, which all rows may have in the
// same direction, and the variance proxy of a random one (sub-Gaussian: a rounding error uniform in [-h, h] has h^2/3).
// Derived in docs/correctness.md. 0 for fp32, whose outputs are not rounded: the norms say all there is.
struct RowBudget {
  double scale_systematic = 0, scale_variance = 0;  // of <o - ref, ref>
  double bias_systematic = 0, bias_variance = 0;    // of the sum of o - ref
  double lse_systematic = 0, lse_variance = 0;      // of lse - ref, for every dtype
  double lse_chain_variance = 0;                    // what comes besides if one thread sums the row alone
  // Standard deviations of errors that rows may have alike, so that over rows they add up as they are; the variances
  // above are without them.
  double scale_alike = 0, bias_alike = 0;
  double worst = 0;  // of the norm of the row's error: what the worst of many rows may have
};

}  // namespace flashcore
