#pragma once
// tune: problem -> candidates -> gates -> finalists on held-out data -> leaderboard.

#include <functional>

#include "lab/record/store.h"
#include "lab/tune/options.h"
#include "lab/tune/result.h"

namespace flashcore {

// Order, per problem: what dispatch would pick without the run (the baseline, of whatever family), the default config
// of each supporting family (the first correct one is the incumbent; ref_fwd is searched only if it is alone), the
// search against the incumbent, then in three other processes and with another seed the `finalists` fastest against the
// baseline. The winner is the finalist with the best held-out speed-up among those that are FASTER with a Holm-adjusted
// p below 5%; without one, the baseline. Errors: kBadInput
// for an unknown family or strategy, and for a proposer that ends before its first proposal; kEnvironment if the device
// is not there. A store that cannot be written any more ends no search: store.fault() says so.
//
// Resumes: candidates already tried for the same problem, device and source_hash are read from the store, counted and
// shown to the search, not run again. `stop` is polled; when true the run ends cleanly with what is done saved.
TuneResult tune(const TuneOptions& options, Store& store, const std::function<void(const TuneProgress&)>& progress,
                const std::function<bool()>& stop);

}  // namespace flashcore
