#pragma once
// The inner loops of the reference: a few query rows of one head against all of its keys.

#include "core/reference_head.h"

namespace flashcore {

// The factors of each key, or none.
struct KeyFactors {
  std::vector<double> k, v;
};
PackedHead pack_head(const HostTensor& k, const HostTensor& v, VLayout v_layout, std::int64_t batch, std::int64_t head,
                     const KeyFactors& factors);
// 1 .. kReferenceRows rows.
void reference_block(const PackedHead& head, const ReferenceHead& what, std::vector<ReferenceRow>& rows,
                     ReferenceScratch& scratch);

}  // namespace flashcore
