#pragma once
// All faults that the emulator, or the comparison with the reference, must name.

#include "kernels/mutations/batches.h"
#include "kernels/mutations/benign.h"
#include "kernels/mutations/bytes.h"
#include "kernels/mutations/decode.h"
#include "kernels/mutations/functions.h"
#include "kernels/mutations/scores.h"
#include "kernels/mutations/sm80.h"
#include "kernels/mutations/sm90.h"
#include "kernels/mutations/wide.h"

namespace flashcore::testing {

inline std::vector<Mutation> mutations() {
  std::vector<Mutation> all;
  for (const auto& of :
       {mutations_of_scores(), mutations_of_batches(), mutations_of_sm80(), mutations_of_sm90(), mutations_of_decode(),
        mutations_of_wide(), mutations_of_functions(), mutations_of_bytes(), mutations_of_benign()})
    all.insert(all.end(), of.begin(), of.end());
  return all;
}

}  // namespace flashcore::testing
