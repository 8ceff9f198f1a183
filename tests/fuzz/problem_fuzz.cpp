// Problem ids, and the words and configs of the command line.
#include "core/config_space.h"
#include "core/foreign_text.h"
#include "core/json_text.h"
#include "core/operands.h"
#include "target.h"

namespace flashcore::fuzz {
namespace {

const Target kProblem("problem", [](std::string_view input) {
  const PlacedProblem problem = PlacedProblem::parse(input);
  problem.validate();
  FLASHCORE_REQUIRE(PlacedProblem::parse(problem.id()) == problem);
  FLASHCORE_REQUIRE(Problem::parse(problem.problem().id()) == problem.problem());
  FLASHCORE_REQUIRE(problem.flops() >= 0 && problem.bytes() >= 0);
  FLASHCORE_REQUIRE(problem.unmasked_pairs() <= problem.seqlen_q * problem.keys_read().size());
});

const Target kConfig("config", [](std::string_view input) {
  const ConfigSpace space({{"block_m", {16, 64, 128}}, {"num_stages", {1, 2}}, {"kv_split", {0, 1, 2147483647}}});
  const ConfigValues values = input.starts_with('{') ? space.from_json(parse_json(input, "config"), "fake_fwd")
                                                     : space.parse(input, space.at(0), "fake_fwd");
  FLASHCORE_REQUIRE(space.parse(space.print(values), space.at(0), "fake_fwd") == values);
  FLASHCORE_REQUIRE(space.from_json(space.to_json(values), "fake_fwd") == values);
});

}  // namespace
}  // namespace flashcore::fuzz
