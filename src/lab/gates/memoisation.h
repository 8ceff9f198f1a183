#pragma once
// Is a candidate fast because it computed the same before? A result kept by content is right whenever it is looked at;
// only its time tells. One kept by a part of the content is right as long as nobody brings other content with that
// part, which is what happens here.

#include <string>

#include "lab/measure/prepared_candidate.h"
#include "lab/record/checks.h"

namespace flashcore {

struct ContentAudit {
  std::string wrong;  // what was found; empty: nothing
  Check check = Check::kContentTiming;
  // Of single launches on inputs met before and on new ones. The lower quartile, and the fastest. 0: not timed.
  double same_us = 0, other_us = 0;
};

// `prepared` has been timed on `set`, whose buffers hold oracle.inputs. Runs only the checks that are switched on:
//
// kContentTiming: single launches on the same content and on other content, in random order, each after every byte of
// the inputs was written again and a sample was taken on the old content, whose result the outputs hold. An honest
// kernel takes the same time for either. Other content differs in every row of every head, by numbers that nobody can
// know in advance (varied_inputs()), so neither a part of the inputs nor a sample of them tells that it was met before.
// A candidate whose fastest launch on other content takes 10% longer than the lower quartile on the same, in every
// round of four, keeps results. One that engages only after many launches on one content is asked again after as many
// launches as it was timed on.
//
// kUnseenContent: the outputs of one launch on other content, chosen by chance, are right, where they held the result
// of the old content before.
//
// Leaves oracle.inputs in the buffers.
ContentAudit detect_memoisation(Device& device, const PlacedProblem& problem, const Oracle& oracle,
                                PreparedCandidate& prepared, int set);

}  // namespace flashcore
