#pragma once
// The score and mask functions of an fc_attention, and the tensors that they name.

#include "api/problem.h"

namespace flashcore::api {

// A score that says a softcap becomes one (name_softcap). Error kBadInput as set_expressions(), and for bad counts,
// elements and addresses.
void take_functions(const fc_attention& a, Problem& problem);
// Of a request whose problem has them: strides, order and bytes of the tensors. Error kBadInput for one that is smaller
// than what the functions read, or has strides that no tensor has.
void place_tensors(const fc_attention& a, Request& request);
// The way back. Texts and tensors stay for as long as the process lives.
void fill_functions(const Problem& problem, fc_attention& a);

}  // namespace flashcore::api
