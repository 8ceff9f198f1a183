#pragma once
// What a result was measured on, so that it is known when it would come out otherwise.

#include <string>
#include <string_view>

#include "core/operands.h"
#include "device/device.h"
#include "kernels/family.h"

namespace flashcore {

// Of all sources that kernels, their launches and their choice are made of: names the state of a tree.
std::string source_hash();

// Of what decides the time of one candidate on a problem and device: the text that its kernel is compiled from, with
// all that it includes; the compiler's options; its launches' geometry, parameters and workspaces. For a CPU family:
// cpu_source_hash, and the config. Comments and blanks decide nothing. Where this is the same, a result would come out
// again; where it differs, the launches and the compiled code tell (lab/record/freshness.h).
std::string source_hash(const Candidate& candidate, const PlacedProblem& problem, const DeviceLimits& limits);

// Of the text of a CPU family: its folder but family.cpp, what runs every CPU family (is_cpu_source of
// kernels/embedded.h), and what these include of `sources`. Files that a launch of the problem never enters are left
// out: those of ragged batches, of 8-bit operands, of functions.
std::string cpu_source_hash(const std::string& family, const Problem& problem, const SourceMap& sources);

// Of its launches alone: grid, block, cluster and shared memory, parameters, tensor maps, workspaces. Equal launches of
// equal machine code are the same measurement, from whatever text the code was compiled. Empty for a CPU family.
std::string launch_hash(const Candidate& candidate, const PlacedProblem& problem, const DeviceLimits& limits);

// A source without its comments, and with one blank, or line where directives begin and end, for many.
std::string code_of(std::string_view source);

}  // namespace flashcore
