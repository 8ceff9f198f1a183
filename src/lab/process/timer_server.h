#pragma once
// A candidate's time, one sample at a time, for a process that interleaves it with somebody else's kernels (scripts/
// peers times PyTorch's backends so). One JSON document per line on stdin and stdout:
//   {"op": "device"}                                    -> name, key, driver, source_hash, ceilings
//   {"op": "prepare", "problem": ID, "candidate": TEXT or null, "regime": "graph", "gates": true}
//                                                       -> handle and the trial of the gates before timing
//   {"op": "sample", "handle": N}                       -> {"time_us": ..., "clock_mhz": ...}
//   {"op": "record", "store": FILE, "trial": ..., "times_us": [...], "regime", "condition", "floor_us", "run", ...}
//                                                       -> {"id": ...}: a trial of `prepare`, timed by the asker
//   {"op": "environment"} | {"op": "check", "handle": N} | {"op": "release", "handle": N}
// An error is {"error": "..."}; a lost context ends the process.

#include <iosfwd>
#include <string>

namespace flashcore {

// Reads until end of file; returns the exit code.
int timer_server_main(const std::string& device, std::istream& in, std::ostream& out);

}  // namespace flashcore
