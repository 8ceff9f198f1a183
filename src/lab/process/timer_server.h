#pragma once
// The laboratory as one of the parties of a peer run (lab/compare/peers.h): gates, then samples of a candidate on
// buffers of its own, by lab/measure. It answers the peers' protocol (docs/peers.md), and besides
//   {"op": "device"}                                  -> DeviceInfo and "ceilings"
//   {"op": "judge", "problem", "name", "suite", "candidate": TEXT or null, "regime", "condition", "seed"}
//                                                     -> the trial of every gate that a published time has to pass,
//                                                     timed
//                                                        outputs, floor and kept results included; "why" it was chosen
//   {"op": "environment"}                             -> clocks, power, temperature
// "output" is judged here, where the red zones are: {"wrong": "", "rel_error"}. A lost context ends the process.

#include <iosfwd>
#include <string>

namespace flashcore {

// Reads until end of file; returns the exit code.
int timer_server_main(const std::string& device, std::istream& in, std::ostream& out);

}  // namespace flashcore
