#include "core/config_space.h"

#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <set>

#include "core/error.h"

namespace flashcore {
namespace {

const ConfigSpace& space() {
  static const ConfigSpace s({{"block_m", {32, 64, 128}}, {"num_stages", {1, 2}}, {"swizzle", {0, 1}}});
  return s;
}
const ConfigValues kBase = {64, 2, 1};

std::string refused(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kBadInput);
    return error.what();
  }
  return "accepted";
}

TEST(ConfigSpaceTest, EveryPointOnceLastFieldFastest) {
  EXPECT_EQ(space().size(), 12u);
  EXPECT_EQ(space().at(0), (ConfigValues{32, 1, 0}));
  EXPECT_EQ(space().at(1), (ConfigValues{32, 1, 1}));
  EXPECT_EQ(space().at(11), (ConfigValues{128, 2, 1}));
  std::set<ConfigValues> points;
  for (std::uint64_t i = 0; i < space().size(); ++i) points.insert(space().at(i));
  EXPECT_EQ(points.size(), 12u);
  EXPECT_THROW(space().at(12), Error);
  EXPECT_EQ(ConfigSpace().size(), 1u);
  EXPECT_EQ(ConfigSpace().at(0), ConfigValues{});
}

TEST(ConfigSpaceTest, EveryPointPrintsAndParsesBack) {
  for (std::uint64_t i = 0; i < space().size(); ++i) {
    const ConfigValues values = space().at(i);
    EXPECT_EQ(space().parse(space().print(values), kBase, "f"), values);
    EXPECT_EQ(space().from_json(space().to_json(values), "f"), values);
  }
  EXPECT_EQ(space().print(kBase), "block_m=64,num_stages=2,swizzle=1");
}

TEST(ConfigSpaceTest, ParsesOverTheBase) {
  EXPECT_EQ(space().parse("", kBase, "f"), kBase);
  EXPECT_EQ(space().parse("num_stages=1", kBase, "f"), (ConfigValues{64, 1, 1}));
  EXPECT_EQ(space().parse("swizzle=0,block_m=128", kBase, "f"), (ConfigValues{128, 2, 0}));
}

TEST(ConfigSpaceTest, RefusesWithWhatIsAllowed) {
  const auto parse = [](const char* text) { return refused([text] { space().parse(text, kBase, "sm80_fwd"); }); };
  EXPECT_NE(
      parse("blockm=64").find("'blockm' is not known to sm80_fwd; its keys are block_m in {32,64,128}, num_stages"),
      std::string::npos);
  EXPECT_NE(parse("block_m=48").find("block_m=48 is not allowed for sm80_fwd; use one of 32, 64, 128"),
            std::string::npos);
  EXPECT_NE(parse("block_m=64,block_m=64").find("given twice"), std::string::npos);
  for (const char* text :
       {"block_m=", "block_m=6 4", "block_m=64.0", "block_m=x", "block_m=99999999999", "block_m=+64"}) {
    EXPECT_NE(parse(text).find("not an integer"), std::string::npos) << text;
  }
  EXPECT_NE(parse("block_m").find("not key=value"), std::string::npos);
  EXPECT_NE(parse("block_m=64,").find("ends in a comma"), std::string::npos);
  EXPECT_NE(parse(",block_m=64").find("not key=value"), std::string::npos);
}

TEST(ConfigSpaceTest, RefusesJsonThatIsNotAWholeConfig) {
  const auto read = [](const char* text) {
    return refused([text] { space().from_json(nlohmann::json::parse(text), "f"); });
  };
  EXPECT_NE(read("[1]").find("not a JSON object"), std::string::npos);
  EXPECT_NE(read(R"({"block_m":64,"num_stages":1})").find("lacks the key 'swizzle'"), std::string::npos);
  EXPECT_NE(read(R"({"block_m":"64","num_stages":1,"swizzle":0})").find("not an integer"), std::string::npos);
  EXPECT_NE(read(R"({"block_m":4294967360,"num_stages":1,"swizzle":0})").find("not an integer"), std::string::npos);
  EXPECT_NE(read(R"({"block_m":64,"num_stages":1,"swizzle":0,"x":1})").find("'x' is not known"), std::string::npos);
  EXPECT_NE(read(R"({"block_m":65,"num_stages":1,"swizzle":0})").find("not allowed"), std::string::npos);
}

}  // namespace
}  // namespace flashcore
