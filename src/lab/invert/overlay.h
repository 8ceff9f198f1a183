#pragma once
// A family's device source with other functions in the place of some of ptx/. Kernels reach instructions only through
// qualified calls of ptx/, so every call is a named point of any family: ptx::ex2( becomes planted::ex2(. The text
// works for a GPU and on the emulator alike.

#include <string>
#include <string_view>
#include <vector>

#include "device/artifact.h"

namespace flashcore {

class Overlay {
 public:
  // Of the sources that `kernel` ("sm80_fwd/kernel.cuh") is made of.
  Overlay(std::string family, const std::string& kernel);

  // Each returns the number of places that it changed.
  // Calls of ptx::<name>, outside of ptx/ and of the files `except`.
  int plant(std::string_view name, const std::vector<std::string_view>& except = {});
  int replace(const std::string& file, std::string_view from, std::string_view to);
  // Multiplies that stand alone: of a warp's, those into every fourth tile of an accumulator are kept (planted::mma is
  // told which); of a warpgroup's, every fourth step of the loop around them.
  int keep_quarter();
  // After each copy that a producer starts once a slot is empty ("k_empty"), a wait until the slot is full.
  int wait_for_slots();

  bool has(std::string_view text) const;  // in any of the sources
  // The longest run of named barriers that no source uses: the first one, and how many.
  std::pair<int, int> free_barriers() const;

  // The changed files, and the planted functions. `text` is of them.
  SourceMap files(std::string_view text) const;

 private:
  int plant_tiles(std::string& text);
  int guard_steps(std::string& text, std::string_view call);

  std::string family_;
  SourceMap sources_;
  std::vector<std::string> changed_;
  void note(const std::string& path);
};

}  // namespace flashcore
