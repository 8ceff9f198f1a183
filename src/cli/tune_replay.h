#pragma once
// flashcore tune --record and --replay.

#include "cli/common.h"
#include "lab/record/store.h"
#include "lab/tune/tune.h"

namespace flashcore::cli {

// Evolution beside random search on every landscape of the file, over several seeds. Exit code 0.
int replay_landscapes(const Common& common, const std::string& file, int budget);
// What the store knows of the run's problems, as a landscape. Error kEnvironment if FILE cannot be written.
void record_landscapes(const std::string& file, const Store& store, const TuneOptions& options, Console& console);

}  // namespace flashcore::cli
